#pragma once

#include "kit/ptx_instructions.hpp"

#include <penstock/base/span.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <vector>

namespace penstock::test {

/// The memory of a kernel that PtxModule runs: some spans of host memory. Counts accesses by their size in bytes.
class CountedMemory final : public ptx::Memory {
 public:
  using Accesses = std::map<std::size_t, std::size_t>;

  explicit CountedMemory(std::initializer_list<ConstHostSpan> spans) : spans_(spans) {}

  std::byte* at(std::uint64_t address, std::size_t size) const override {
    ++accesses_[size];
    for (const ConstHostSpan& span : spans_) {
      const auto first = reinterpret_cast<std::uintptr_t>(span.data());
      if (address >= first && address - first + size <= span.size().value()) {
        return reinterpret_cast<std::byte*>(address);
      }
    }
    throw ptx::IllegalAccess();
  }

  [[nodiscard]] const Accesses& accesses() const { return accesses_; }

 private:
  std::vector<ConstHostSpan> spans_;
  mutable Accesses accesses_;
};

}  // namespace penstock::test
