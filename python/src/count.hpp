#pragma once

#include "errors.hpp"

#include <nanobind/nanobind.h>
#include <cstdint>
#include <limits>
#include <string>

namespace penstock::python {

/// An argument that counts something, such as bytes. It may be out of the range, or no integer.
class Count {
 public:
  Count() = default;
  explicit Count(nb::object given) : given_(std::move(given)) {}

  /// Throws InvalidArgument for what is no integer, is below `least` or above the most of T.
  template <class T = std::uint64_t>
  [[nodiscard]] T get(const char* function, const char* argument, std::uint64_t least = 0) const {
    constexpr std::uint64_t most = std::numeric_limits<T>::max();
    const nb::object number = nb::steal(PyNumber_Index(given_.ptr()));
    if (!number.is_valid()) {
      PyErr_Clear();
      refuse({.function = function,
              .argument = argument,
              .reason = "it is no integer",
              .wanted = "an integer",
              .got = nb::cast<std::string>(nb::repr(given_))});
    }
    const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
    const bool is_out_of_range = PyErr_Occurred() != nullptr;
    PyErr_Clear();
    if (!is_out_of_range && value >= least && value <= most) return static_cast<T>(value);
    refuse({.function = function,
            .argument = argument,
            .reason = "it is out of its range",
            .wanted = std::to_string(least) + " to " + std::to_string(most),
            .got = nb::cast<std::string>(nb::str(number))});
  }

 private:
  nb::object given_;
};

}  // namespace penstock::python

template <>
struct nanobind::detail::type_caster<penstock::python::Count> {
  NB_TYPE_CASTER(penstock::python::Count, const_name("int"))
  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    value = penstock::python::Count(borrow(source));
    return true;
  }
};
