#pragma once

#include <bit>
#include <compare>
#include <cstdint>
#include <limits>
#include <string>

namespace penstock {

/// A number of bytes. Does not mix with element counts or file offsets.
class ByteCount {
 public:
  constexpr ByteCount() = default;
  constexpr explicit ByteCount(std::uint64_t value) : value_(value) {}

  [[nodiscard]] constexpr std::uint64_t value() const { return value_; }
  [[nodiscard]] constexpr bool is_zero() const { return value_ == 0; }

  constexpr auto operator<=>(const ByteCount&) const = default;
  constexpr ByteCount& operator+=(ByteCount other) { return value_ += other.value_, *this; }
  constexpr ByteCount& operator-=(ByteCount other) { return value_ -= other.value_, *this; }
  friend constexpr ByteCount operator+(ByteCount a, ByteCount b) { return a += b; }
  friend constexpr ByteCount operator-(ByteCount a, ByteCount b) { return a -= b; }
  friend constexpr ByteCount operator*(ByteCount a, std::uint64_t n) { return ByteCount(a.value_ * n); }
  friend constexpr ByteCount operator*(std::uint64_t n, ByteCount a) { return a * n; }
  friend constexpr std::uint64_t operator/(ByteCount a, ByteCount b) { return a.value_ / b.value_; }
  friend constexpr ByteCount operator/(ByteCount a, std::uint64_t n) { return ByteCount(a.value_ / n); }

 private:
  std::uint64_t value_ = 0;
};

/// A number of elements of some DType.
class ElementCount {
 public:
  constexpr ElementCount() = default;
  constexpr explicit ElementCount(std::uint64_t value) : value_(value) {}

  [[nodiscard]] constexpr std::uint64_t value() const { return value_; }
  [[nodiscard]] constexpr bool is_zero() const { return value_ == 0; }

  constexpr auto operator<=>(const ElementCount&) const = default;
  constexpr ElementCount& operator+=(ElementCount other) { return value_ += other.value_, *this; }
  constexpr ElementCount& operator-=(ElementCount other) { return value_ -= other.value_, *this; }
  friend constexpr ElementCount operator+(ElementCount a, ElementCount b) { return a += b; }
  friend constexpr ElementCount operator-(ElementCount a, ElementCount b) { return a -= b; }
  friend constexpr ElementCount operator*(ElementCount a, std::uint64_t n) {
    return ElementCount(a.value_ * n);
  }
  friend constexpr std::uint64_t operator/(ElementCount a, ElementCount b) { return a.value_ / b.value_; }
  friend constexpr ElementCount operator/(ElementCount a, std::uint64_t n) {
    return ElementCount(a.value_ / n);
  }

 private:
  std::uint64_t value_ = 0;
};

/// A position in a file, in bytes from its start.
class FileOffset {
 public:
  constexpr FileOffset() = default;
  constexpr explicit FileOffset(std::uint64_t value) : value_(value) {}

  [[nodiscard]] constexpr std::uint64_t value() const { return value_; }

  constexpr auto operator<=>(const FileOffset&) const = default;
  friend constexpr FileOffset operator+(FileOffset a, ByteCount n) {
    return FileOffset(a.value_ + n.value());
  }
  friend constexpr ByteCount operator-(FileOffset a, FileOffset b) { return ByteCount(a.value_ - b.value_); }

 private:
  std::uint64_t value_ = 0;
};

/// A power of two, in bytes; 1 by default.
class Alignment {
 public:
  constexpr Alignment() = default;
  /// A number that is no power of two is rounded down to one, and 0 up to 1.
  constexpr explicit Alignment(std::uint64_t bytes) : bytes_(bytes == 0 ? 1 : std::bit_floor(bytes)) {}

  [[nodiscard]] constexpr std::uint64_t bytes() const { return bytes_; }
  constexpr auto operator<=>(const Alignment&) const = default;

 private:
  std::uint64_t bytes_ = 1;
};

[[nodiscard]] constexpr bool is_aligned(std::uint64_t value, Alignment alignment) {
  return (value & (alignment.bytes() - 1)) == 0;
}
[[nodiscard]] constexpr bool is_aligned(ByteCount size, Alignment alignment) {
  return is_aligned(size.value(), alignment);
}
[[nodiscard]] constexpr bool is_aligned(FileOffset offset, Alignment alignment) {
  return is_aligned(offset.value(), alignment);
}
[[nodiscard]] inline bool is_aligned(const void* address, Alignment alignment) {
  return is_aligned(reinterpret_cast<std::uintptr_t>(address), alignment);
}

/// The next multiple; wraps around as unsigned arithmetic does. `value`, if `multiple` is 0.
[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return multiple == 0 ? value : (value + multiple - 1) / multiple * multiple;
}
[[nodiscard]] constexpr ByteCount round_up(ByteCount size, Alignment alignment) {
  return ByteCount(round_up(size.value(), alignment.bytes()));
}
/// a / b, rounded up; 0, if `b` is 0.
[[nodiscard]] constexpr std::uint64_t ceil_divide(std::uint64_t a, std::uint64_t b) {
  return b == 0 ? 0 : a / b + (a % b != 0 ? 1 : 0);
}

inline namespace literals {
constexpr ByteCount operator""_B(unsigned long long n) {
  return ByteCount(n);
}
constexpr ByteCount operator""_KiB(unsigned long long n) {
  return ByteCount(n << 10);
}
constexpr ByteCount operator""_MiB(unsigned long long n) {
  return ByteCount(n << 20);
}
constexpr ByteCount operator""_GiB(unsigned long long n) {
  return ByteCount(n << 30);
}
}  // namespace literals

/// `41.3 GiB`, `512 B`: one decimal, binary prefixes; all messages print bytes with it.
[[nodiscard]] std::string to_string(ByteCount bytes);
/// `41.3 GiB (44345292595 B)`, `512 B`.
[[nodiscard]] std::string to_exact_string(ByteCount bytes);
/// `12 345 678`: digits in groups of three.
[[nodiscard]] std::string to_string(ElementCount elements);

}  // namespace penstock
