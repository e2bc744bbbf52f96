#pragma once

#include <penstock/base/span.hpp>

namespace penstock::test {

/// Zeroed bytes that end exactly at an inaccessible page, so that an access beyond the end faults. A page before them
/// is inaccessible too.
class GuardedBytes {
 public:
  explicit GuardedBytes(ByteCount size);
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  ~GuardedBytes();

  [[nodiscard]] HostSpan span() const { return span_; }

 private:
  void* mapping_ = nullptr;
  std::size_t mapping_size_ = 0;
  HostSpan span_;
};

}  // namespace penstock::test
