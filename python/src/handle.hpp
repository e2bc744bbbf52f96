#pragma once

#include "errors.hpp"

#include <pthread.h>
#include <unistd.h>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace penstock::python {

/// How many forks are between the process that has loaded the library and this one.
inline std::uint32_t forks() {
  static std::uint32_t count = 0;
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { ++count; });
  (void)registered;
  return count;
}

/// An object of the C interface that Python owns. `end` frees it; it may wait, and runs without the GIL.
///
/// In a process that was forked, which has none of the object's threads, every use is refused, and the object is left
/// as it is.
template <class T, void (*end)(T*)>
class Handle {
 public:
  Handle() = default;
  Handle(T* object, const char* type)
      : object_(object, [forks = forks()](T* ended) { end_after(forks, ended); }), type_(type) {}

  /// Throws FailedState in another process, and after close(). The object lives as long as the pointer. With the GIL.
  [[nodiscard]] std::shared_ptr<T> get(const char* function) const {
    check_process(function);
    if (object_) return object_;
    refuse({.function = function,
            .argument = type_,
            .reason = "it was closed",
            .advice = "make another one",
            .code = PENSTOCK_FAILED_STATE});
  }
  void check_process(const char* function) const {
    if (is_of_this_process()) return;
    refuse({.function = function,
            .argument = type_,
            .reason = "this process was forked from the one that made it, and has none of its threads",
            .got = "process " + std::to_string(::getpid()),
            .advice = "make it after the fork, or start processes by multiprocessing's \"spawn\"",
            .code = PENSTOCK_FAILED_STATE});
  }
  [[nodiscard]] bool is_of_this_process() const { return forks_ == forks(); }
  [[nodiscard]] bool is_closed() const { return !object_; }
  /// Frees the object once calls in other threads have returned. With the GIL.
  void close() { std::exchange(object_, nullptr).reset(); }

 private:
  static void end_after(std::uint32_t forks_before, T* ended) {
    if (forks_before != forks()) return;
    if (PyGILState_Check() == 0) return end(ended);
    const WithoutGil released;
    end(ended);
  }

  std::shared_ptr<T> object_;
  const char* type_ = "";
  std::uint32_t forks_ = forks();  // when it was made
};

}  // namespace penstock::python
