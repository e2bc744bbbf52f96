#pragma once

#include <penstock/base/check.hpp>
#include <penstock/base/span.hpp>

#include <sys/mman.h>

namespace penstock::bench {

/// Zeroed memory on 2 MiB pages where the kernel grants them.
class HugeBuffer {
 public:
  explicit HugeBuffer(ByteCount size) : size_(size) {
    constexpr Alignment huge(2 << 20);
    mapping_size_ = round_up(size, huge) + ByteCount(huge.bytes());
    mapping_ =
        ::mmap(nullptr, mapping_size_.value(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    PENSTOCK_CHECK(mapping_ != MAP_FAILED);
    ::madvise(mapping_, mapping_size_.value(), MADV_HUGEPAGE);
    const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
    data_ = static_cast<std::byte*>(mapping_) + (round_up(address, huge.bytes()) - address);
  }
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;
  ~HugeBuffer() { ::munmap(mapping_, mapping_size_.value()); }

  [[nodiscard]] HostSpan span() const { return {data_, size_}; }

 private:
  void* mapping_ = nullptr;
  ByteCount mapping_size_;
  std::byte* data_ = nullptr;
  ByteCount size_;
};

}  // namespace penstock::bench
