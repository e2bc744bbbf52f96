#pragma once

#include <penstock/penstock.h>
#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// The handle of C is the object itself.
struct penstock_lines {
  std::vector<std::string> lines;
};

// What the functions of the C interface share: errors and exceptions become penstock_error, and what C has given is
// judged before C++ sees it.
namespace penstock::c {

/// Null, where the host has no memory left for it, is never returned.
[[nodiscard]] penstock_error* to_c(const Error& error) noexcept;
/// The error of an exception that is being handled.
[[nodiscard]] penstock_error* to_c_from_exception(const char* function) noexcept;

/// An argument that must not be null.
struct Argument {
  const char* name;
  const void* pointer;
};
/// Errors: invalid_argument, naming the first that is null.
Result<void> check_not_null(const char* function, std::initializer_list<Argument> arguments);

/// Runs `body`, which returns a Result<void>, if none of `arguments` is null.
template <class Body>
[[nodiscard]] penstock_error* call(const char* function, std::initializer_list<Argument> arguments,
                                   const Body& body) noexcept {
  try {
    auto done = check_not_null(function, arguments);
    if (done) done = body();
    return done ? nullptr : to_c(done.error());
  } catch (...) {
    return to_c_from_exception(function);
  }
}

/// Structs of the interface begin with their size, and later versions append members.
inline constexpr std::size_t struct_size_max = 4096;
Result<void> check_struct_size(const char* function, const char* argument, std::size_t size,
                               std::size_t smallest);
Result<void> check_unknown_members(const char* function, const char* argument, const void* given,
                                   std::size_t known);

/// What the caller has filled; members that the caller's version lacks are 0.
///
/// Errors: invalid_argument, for null and for a size that none can have; unsupported, for members of a later version
/// that are not 0.
template <class T>
[[nodiscard]] Result<T> read_struct(const char* function, const char* argument, const T* given) {
  static_assert(std::is_trivially_copyable_v<T> && offsetof(T, size) == 0);
  PENSTOCK_TRY(check_not_null(function, {{argument, given}}));
  PENSTOCK_TRY(check_struct_size(function, argument, given->size, 2 * sizeof(std::size_t)));
  PENSTOCK_TRY(check_unknown_members(function, argument, given, sizeof(T)));
  T read{};
  std::memcpy(&read, given, std::min(given->size, sizeof(T)));
  return read;
}
/// Calls `visit` with each of `count` structs, which have the size of the caller's version, and returns its first
/// error.
///
/// Errors: invalid_argument, for null, if there are any.
template <class T, class Visit>
Result<void> for_each_struct(const char* function, const char* argument, const T* first, std::size_t count,
                             const Visit& visit) {
  if (count == 0) return ok();
  PENSTOCK_TRY(check_not_null(function, {{argument, first}}));
  const auto* const bytes = reinterpret_cast<const std::byte*>(first);
  for (std::size_t i = 0; i < count; ++i)
    PENSTOCK_TRY(visit(reinterpret_cast<const T*>(bytes + i * first->size)));
  return ok();
}
/// Checks a struct that write_struct() will fill. Errors: those of read_struct().
template <class T>
Result<void> check_written_struct(const char* function, const char* argument, const T* to) {
  PENSTOCK_TRY(check_not_null(function, {{argument, to}}));
  return check_struct_size(function, argument, to->size, 2 * sizeof(std::size_t));
}
/// Writes the members that the caller's version has.
template <class T>
void write_struct(T* to, T value) {
  value.size = to->size;
  std::memcpy(to, &value, std::min(value.size, sizeof(T)));
}

/// Errors: invalid_argument, for a number that is not below `count`.
template <class Enum>
[[nodiscard]] Result<Enum> enumerator(const char* function, const char* argument, std::int32_t number,
                                      std::int32_t count) {
  if (number >= 0 && number < count) return static_cast<Enum>(number);
  return Error::invalid_argument(function)
      .object(argument)
      .wanted("0 to " + std::to_string(count - 1))
      .got(std::to_string(number));
}
/// `otherwise`, for 0. Errors: invalid_argument, for what is negative, not finite, or more than a century.
[[nodiscard]] Result<TimePoint> duration(const char* function, const char* argument, double seconds,
                                         TimePoint otherwise);

[[nodiscard]] inline double seconds_of(TimePoint time) {
  return std::chrono::duration<double>(time).count();
}

/// Gives the object to the caller.
template <class T>
void give(T** to, T&& made) {
  *to = new T(std::move(made));
}

}  // namespace penstock::c
