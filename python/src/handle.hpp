#pragma once

#include "errors.hpp"

#include <unistd.h>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace penstock::python {

/// An object of the C interface that Python owns. `end` frees it; it may wait, and runs without the GIL.
///
/// In a process that was forked, which has none of the object's threads, every use is refused, and the object is left
/// as it is.
template <class T, void (*end)(T*)>
class Handle {
 public:
  Handle() = default;
  Handle(T* object, const char* type)
      : object_(object, [process = ::getpid()](T* ended) { end_in(process, ended); }), type_(type) {}

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
            .got = "process " + std::to_string(::getpid()) + ", made by " + std::to_string(process_),
            .advice = "make it after the fork, or start processes by multiprocessing's \"spawn\"",
            .code = PENSTOCK_FAILED_STATE});
  }
  [[nodiscard]] bool is_of_this_process() const { return process_ == ::getpid(); }
  [[nodiscard]] bool is_closed() const { return !object_; }
  /// Frees the object once calls in other threads have returned. With the GIL.
  void close() { std::exchange(object_, nullptr).reset(); }

 private:
  static void end_in(::pid_t process, T* ended) {
    if (process != ::getpid()) return;
    if (PyGILState_Check() == 0) return end(ended);
    const WithoutGil released;
    end(ended);
  }

  std::shared_ptr<T> object_;
  const char* type_ = "";
  ::pid_t process_ = ::getpid();
};

}  // namespace penstock::python
