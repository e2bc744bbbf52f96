#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

namespace penstock {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are");

template <class T>
concept ArchivedNumber = std::integral<T> || std::floating_point<T> || std::is_enum_v<T>;
template <class T>
concept ArchivedArray = requires(T& array) {
  array.size();
  array.resize(0);
};
/// A struct is archived by a function beside it, which names its fields once for both directions:
///
///     template <class Archive> void fields(Archive& archive, auto& peer)
///     requires std::same_as<std::remove_cvref_t<decltype(peer)>, Peer> { archive(peer.host, peer.process); }
template <class T, class Archive>
concept ArchivedStruct = std::is_class_v<T> && !ArchivedArray<T> && requires(T & value, Archive& archive) {
  fields(archive, value);
};

/// Appends values to bytes: numbers little-endian, an array or text as its 32-bit size and its elements, an optional as
/// one byte and its value, an std::array as its elements.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& bytes) : bytes_(bytes) {}

  template <class... Values>
  void operator()(const Values&... values) {
    (write(values), ...);
  }

 private:
  template <ArchivedNumber T>
  void write(T number) {
    bytes_.resize(bytes_.size() + sizeof number);
    std::memcpy(bytes_.data() + bytes_.size() - sizeof number, &number, sizeof number);
  }
  template <ArchivedArray T>
  void write(const T& array) {
    write(static_cast<std::uint32_t>(array.size()));
    for (const auto& element : array) write(element);
  }
  template <class T, std::size_t size>
  void write(const std::array<T, size>& array) {
    for (const T& element : array) write(element);
  }
  template <class T>
  void write(const std::optional<T>& value) {
    write(value.has_value());
    if (value) write(*value);
  }
  template <ArchivedStruct<ByteWriter> T>
  void write(const T& value) {
    fields(*this, value);
  }

  std::vector<std::byte>& bytes_;
};

/// Reads what ByteWriter wrote. After the end of the bytes everything is zero or empty, and ok() is false. For an enum
/// type `is_known(value)` beside it tells whether a number is one of its values.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class... Values>
  void operator()(Values&... values) {
    (read(values), ...);
  }
  /// Whether the bytes were those of the values, and nothing else.
  [[nodiscard]] bool ok() const { return ok_ && bytes_.empty(); }

 private:
  template <ArchivedNumber T>
  void read(T& number) {
    if (bytes_.size() < sizeof number) {
      ok_ = false;
      return;
    }
    if constexpr (std::same_as<T, bool>) {
      ok_ = ok_ && bytes_.front() <= std::byte{1};
      number = bytes_.front() == std::byte{1};
    } else {
      std::memcpy(&number, bytes_.data(), sizeof number);
    }
    bytes_ = bytes_.subspan(sizeof number);
    if constexpr (std::is_enum_v<T> && !std::same_as<T, std::byte>) ok_ = ok_ && is_known(number);
  }
  template <ArchivedArray T>
  void read(T& array) {
    std::uint32_t size = 0;
    read(size);
    // Each element takes a byte at least, so that a wrong size cannot make this allocate much more than there is.
    if (!ok_ || size > bytes_.size()) {
      ok_ = false;
      return;
    }
    array.resize(size);
    for (auto& element : array) {
      read(element);
      if (!ok_) return;
    }
  }
  template <class T, std::size_t size>
  void read(std::array<T, size>& array) {
    for (T& element : array) read(element);
  }
  template <class T>
  void read(std::optional<T>& value) {
    bool has_value = false;
    read(has_value);
    if (has_value) read(value.emplace());
  }
  template <ArchivedStruct<ByteReader> T>
  void read(T& value) {
    fields(*this, value);
  }

  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace penstock
