#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::test {

/// Makes choices of a fuzzer's bytes, and zeros when they are used up.
class Choices {
 public:
  Choices(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  [[nodiscard]] bool exhausted() const { return size_ == 0; }
  std::uint8_t byte() {
    if (exhausted()) return 0;
    --size_;
    return *data_++;
  }
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return value;
  }
  /// In [0, bound), bound in [1, 2^16].
  std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t high = byte();
    return (high << 8 | byte()) % bound;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

}  // namespace penstock::test
