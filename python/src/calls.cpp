// Context managers that a signal handler of Python cannot come into: each enters and leaves in one call of C.
#include "bind.hpp"
#include "count.hpp"
#include "errors.hpp"
#include "without_gil.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <cstddef>
#include <map>
#include <memory>
#include <semaphore>
#include <string>
#include <utility>

namespace penstock::python {

namespace {

/// At most so many threads at a time; the others wait.
class Semaphore {
 public:
  explicit Semaphore(const Count& count)
      : free_(static_cast<std::ptrdiff_t>(count.get<std::uint32_t>("Semaphore", "count", 1))) {}
  void enter() {
    if (free_.try_acquire()) return;
    const WithoutGil released;
    free_.acquire();
  }
  void leave() { free_.release(); }

 private:
  std::counting_semaphore<> free_;
};

/// Which threads are in a call of an object. With the GIL.
class Calls {
 public:
  Calls(bool many_threads, bool nested) : many_threads_(many_threads), nested_(nested) {}

  void enter(const std::string& function, const std::string& what) {
    const unsigned long thread = PyThread_get_thread_ident();
    const bool is_inside = depths_.contains(thread);
    if (!many_threads_ && depths_.size() > (is_inside ? 1u : 0u)) {
      refuse({.function = function.c_str(),
              .argument = what.c_str(),
              .reason = "another thread is in a call of it",
              .advice = "use it from one thread at a time",
              .code = PENSTOCK_FAILED_STATE});
    }
    if (!nested_ && is_inside) {
      refuse({.function = function.c_str(),
              .argument = what.c_str(),
              .reason = "this thread is in another call of it",
              .advice = "in a signal handler, note what is to be done, and do it after the call",
              .code = PENSTOCK_FAILED_STATE});
    }
    ++depths_[thread];
  }
  void leave() {
    const auto mine = depths_.find(PyThread_get_thread_ident());
    if (mine != depths_.end() && --mine->second == 0) depths_.erase(mine);
  }

 private:
  bool many_threads_, nested_;
  std::map<unsigned long, std::size_t> depths_;  // by thread
};

/// One call. Entered at most once.
class Call {
 public:
  Call(std::shared_ptr<Calls> of, std::string function, std::string what)
      : of_(std::move(of)), function_(std::move(function)), what_(std::move(what)) {}
  void enter() { of_->enter(function_, what_); }
  void leave() { of_->leave(); }

 private:
  std::shared_ptr<Calls> of_;
  std::string function_, what_;
};

/// Makes calls of one object.
class CallsOf {
 public:
  CallsOf(bool many_threads, bool nested) : calls_(std::make_shared<Calls>(many_threads, nested)) {}
  [[nodiscard]] Call call(std::string function, std::string what) const {
    return {calls_, std::move(function), std::move(what)};
  }

 private:
  std::shared_ptr<Calls> calls_;
};

}  // namespace

void bind_calls(nb::module_& module) {
  nb::class_<Semaphore>(module, "_Semaphore", "A context for so many threads at a time.")
      .def(nb::init<const Count&>(), nb::arg("count"))
      .def("__enter__", &Semaphore::enter)
      .def("__exit__", [](Semaphore& semaphore, nb::args) { semaphore.leave(); });
  nb::class_<Call>(module, "_Call", "A context, in which a call is.")
      .def("__enter__", &Call::enter)
      .def("__exit__", [](Call& call, nb::args) { call.leave(); });
  nb::class_<CallsOf>(module, "_Calls", R"(Refuses calls of an object by FailedState.

many_threads: whether several threads may be in a call. nested: whether a thread that is in one may begin another, which
a signal handler does.)")
      .def(nb::init<bool, bool>(), nb::kw_only(), nb::arg("many_threads"), nb::arg("nested"))
      .def("__call__", &CallsOf::call, nb::arg("function"), nb::arg("what"),
           "A context. function, what: operation and object of the error.");
}

}  // namespace penstock::python
