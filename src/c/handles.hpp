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

/// The process that has made a handle: another one, which was forked, has not its threads, and seldom its memory.
class HandleProcess {
 public:
  HandleProcess();
  [[nodiscard]] bool is_this() const;

 private:
  std::uint32_t forks_;  // of this process and those that it comes from
};

/// An argument that must not be null; a handle with a member `process` must have been made by this process.
struct Argument {
  template <class T>
  Argument(const char* argument, const T* given) : name(argument), pointer(given) {
    if constexpr (requires { given->process.is_this(); }) {
      is_of_another_process = given != nullptr && !given->process.is_this();
    }
  }
  const char* name;
  const void* pointer;
  bool is_of_another_process = false;
};
/// Errors: invalid_argument, naming the first that is null.
Result<void> check_not_null(const char* function, std::initializer_list<Argument> arguments);
/// Errors: failed_state, naming the first of another process.
Result<void> check_process(const char* function, std::initializer_list<Argument> arguments);

/// Runs `body`, which returns a Result<void>, if none of `arguments` is null.
template <class Body>
[[nodiscard]] penstock_error* call(const char* function, std::initializer_list<Argument> arguments,
                                   const Body& body) noexcept {
  try {
    auto done = check_not_null(function, arguments);
    if (done) done = check_process(function, arguments);
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

/// The size of a struct in the first version that had it. A specialisation says so once members were appended.
template <class T>
inline constexpr std::size_t first_size = sizeof(T);

/// What the caller has filled; members that the caller's version lacks are 0.
///
/// Errors: invalid_argument, for null and for a size that none can have; unsupported, for members of a later version
/// that are not 0.
template <class T>
[[nodiscard]] Result<T> read_struct(const char* function, const char* argument, const T* given) {
  static_assert(std::is_trivially_copyable_v<T> && offsetof(T, size) == 0);
  PENSTOCK_TRY(check_not_null(function, {{argument, given}}));
  PENSTOCK_TRY(check_struct_size(function, argument, given->size, first_size<T>));
  PENSTOCK_TRY(check_unknown_members(function, argument, given, sizeof(T)));
  T read{};
  std::memcpy(&read, given, std::min(given->size, sizeof(T)));
  return read;
}
/// Errors: invalid_argument, for more than any call can mean.
inline Result<void> check_count(const char* function, const char* argument, std::size_t count) {
  constexpr std::size_t most = std::size_t{1} << 20;
  if (count <= most) return ok();
  return Error::invalid_argument(function)
      .object(argument)
      .wanted("at most " + std::to_string(most))
      .got(count);
}

/// Calls `visit` with each of `count` structs, which have the size of the caller's version, and returns its first
/// error.
///
/// Errors: invalid_argument, for null, if there are any, and for too many.
template <class T, class Visit>
Result<void> for_each_struct(const char* function, const char* argument, const T* first, std::size_t count,
                             const Visit& visit) {
  if (count == 0) return ok();
  PENSTOCK_TRY(check_count(function, argument, count));
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
  return check_struct_size(function, argument, to->size, first_size<T>);
}
/// Writes the members that the caller's version has.
template <class T>
void write_struct(T* to, T value) {
  value.size = to->size;
  std::memcpy(to, &value, std::min(value.size, sizeof(T)));
}

/// Errors: invalid_argument, for a rate that is negative or not finite.
Result<void> check_limit(const char* function, const char* argument, double bytes_a_second);

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
/// `otherwise`, for 0. Errors: invalid_argument, for what is below a microsecond, not finite, or more than a century.
[[nodiscard]] Result<TimePoint> duration(const char* function, const char* argument, double seconds,
                                         TimePoint otherwise);

[[nodiscard]] inline double seconds_of(TimePoint time) {
  return std::chrono::duration<double>(time).count();
}

/// Frees the handle. One of another process is left as it is: what ends it would wait for threads that are not there.
template <class T>
void end(T* handle) {
  if (handle == nullptr || !handle->process.is_this()) return;
  delete handle;
}

/// Gives the object to the caller.
template <class T>
void give(T** to, T&& made) {
  *to = new T(std::move(made));
}

}  // namespace penstock::c
