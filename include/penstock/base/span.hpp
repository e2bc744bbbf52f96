#pragma once

#include <penstock/base/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace penstock {

namespace detail {
template <class Byte>
class BasicHostSpan {
 public:
  constexpr BasicHostSpan() = default;
  constexpr BasicHostSpan(Byte* data, ByteCount size) : data_(data), size_(size) {}
  /// A mutable view is also a const one.
  template <class Other>
  requires(std::is_const_v<Byte>&& std::is_same_v<Other, std::byte>) constexpr BasicHostSpan(
      const BasicHostSpan<Other>& other)
      : data_(other.data()), size_(other.size()) {}
  template <class T, std::size_t N>
  constexpr explicit BasicHostSpan(std::span<T, N> elements)
      : data_(reinterpret_cast<Byte*>(elements.data())), size_(elements.size_bytes()) {}

  [[nodiscard]] constexpr Byte* data() const { return data_; }
  [[nodiscard]] constexpr ByteCount size() const { return size_; }
  [[nodiscard]] constexpr bool empty() const { return size_.is_zero(); }

  /// Empty, if this span does not contain the whole range.
  [[nodiscard]] constexpr BasicHostSpan subspan(ByteCount offset, ByteCount length) const {
    if (offset > size_ || length > size_ - offset) return {};
    return {data_ + offset.value(), length};
  }
  /// The bytes as elements of T. Empty, if the address is not aligned for T or the size is no multiple of its size.
  template <class T>
  [[nodiscard]] auto as() const {
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    if (!is_aligned(data_, Alignment(alignof(T))) || size_.value() % sizeof(T) != 0)
      return std::span<Element>();
    return std::span<Element>(reinterpret_cast<Element*>(data_), size_.value() / sizeof(T));
  }

 private:
  Byte* data_ = nullptr;
  ByteCount size_;
};
}  // namespace detail

/// A view of host bytes, owned elsewhere.
using HostSpan = detail::BasicHostSpan<std::byte>;
using ConstHostSpan = detail::BasicHostSpan<const std::byte>;

/// An address in the memory of some device. Only the adapter of that device may dereference it.
enum class DeviceAddress : std::uintptr_t {};

/// A view of device bytes, owned elsewhere. Cannot be dereferenced.
class DeviceSpan {
 public:
  constexpr DeviceSpan() = default;
  constexpr DeviceSpan(DeviceAddress address, ByteCount size) : address_(address), size_(size) {}

  [[nodiscard]] constexpr DeviceAddress address() const { return address_; }
  [[nodiscard]] constexpr ByteCount size() const { return size_; }
  [[nodiscard]] constexpr bool empty() const { return size_.is_zero(); }

  /// Empty, if this span does not contain the whole range.
  [[nodiscard]] constexpr DeviceSpan subspan(ByteCount offset, ByteCount length) const {
    if (offset > size_ || length > size_ - offset) return {};
    return {DeviceAddress(static_cast<std::uintptr_t>(address_) + offset.value()), length};
  }

 private:
  DeviceAddress address_{};
  ByteCount size_;
};

/// Host bytes that hold elements of one dtype.
struct HostTensor {
  ConstHostSpan bytes;
  DType dtype = DType::fp32;
};

/// Device bytes that hold elements of one dtype.
struct DeviceTensor {
  DeviceSpan bytes;
  DType dtype = DType::fp32;

  [[nodiscard]] constexpr ElementCount count() const { return ElementCount(bytes.size() / size_of(dtype)); }
  /// Elements [first, first + length) of this one. Empty, if it does not have all of them.
  [[nodiscard]] constexpr DeviceTensor slice(ElementCount first, ElementCount length) const {
    if (first > count() || length > count() - first) return {{}, dtype};
    const ByteCount size = size_of(dtype);
    return {bytes.subspan(size * first.value(), size * length.value()), dtype};
  }
};

}  // namespace penstock
