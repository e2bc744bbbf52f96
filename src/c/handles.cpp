#include "c/handles.hpp"

#include <pthread.h>
#include <atomic>
#include <cmath>

namespace penstock::c {

namespace {

std::atomic<std::uint32_t> forks = 0;
[[maybe_unused]] const int is_counted = pthread_atfork(nullptr, nullptr, [] { ++forks; });

}  // namespace

HandleProcess::HandleProcess() : forks_(forks) {}
bool HandleProcess::is_this() const {
  return forks_ == forks;
}

Result<void> check_process(const char* function, std::initializer_list<Argument> arguments) {
  for (const Argument& argument : arguments) {
    if (!argument.is_of_another_process) continue;
    return Error(ErrorCode::failed_state, function)
        .object(argument.name)
        .reason("this process was forked from the one that made it, and has none of its threads")
        .advice("make it after the fork");
  }
  return ok();
}

Result<void> check_not_null(const char* function, std::initializer_list<Argument> arguments) {
  for (const Argument& argument : arguments) {
    if (argument.pointer == nullptr)
      return Error::invalid_argument(function).object(argument.name).reason("it is NULL");
  }
  return ok();
}

Result<void> check_struct_size(const char* function, const char* argument, std::size_t size,
                               std::size_t smallest) {
  if (size >= smallest && size <= struct_size_max) return ok();
  return Error::invalid_argument(function)
      .object(std::string(argument) + ".size")
      .reason("no version of this struct has this size")
      .wanted("at least " + std::to_string(smallest) + " bytes")
      .got(size)
      .advice("set the member `size` to the struct's sizeof");
}

Result<void> check_limit(const char* function, const char* argument, double bytes_a_second) {
  if (std::isfinite(bytes_a_second) && bytes_a_second >= 0) return ok();
  return Error::invalid_argument(function)
      .object(argument)
      .wanted("bytes a second, finite and 0 or more")
      .got(std::to_string(bytes_a_second));
}

Result<void> check_unknown_members(const char* function, const char* argument, const void* given,
                                   std::size_t known) {
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  const auto* const bytes = static_cast<const unsigned char*>(given);
  for (std::size_t i = known; i < size; ++i) {
    if (bytes[i] == 0) continue;
    return Error::unsupported(function)
        .object(argument)
        .reason("the program sets members that this version of the library does not have")
        .wanted("at most " + std::to_string(known) + " bytes")
        .got(size)
        .advice("load a newer libpenstock.so, see penstock_abi_version()");
  }
  return ok();
}

Result<TimePoint> duration(const char* function, const char* argument, double seconds, TimePoint otherwise) {
  constexpr double most = 100.0 * 365 * 24 * 3600;
  if (seconds == 0) return otherwise;
  if (std::isfinite(seconds) && seconds >= 1e-6 && seconds <= most)
    return std::chrono::duration_cast<TimePoint>(std::chrono::duration<double>(seconds));
  return Error::invalid_argument(function)
      .object(argument)
      .wanted("a microsecond to 100 years, in seconds; or 0, for the default")
      .got(std::to_string(seconds));
}

}  // namespace penstock::c
