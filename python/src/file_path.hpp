#pragma once

#include "errors.hpp"

#include <nanobind/nanobind.h>
#include <string>

namespace penstock::python {

/// An argument that names a file or a directory: text, bytes, or an os.PathLike.
class FilePath {
 public:
  FilePath() = default;
  explicit FilePath(nb::object given) : given_(std::move(given)) {}

  /// In the encoding of the file system. Throws InvalidArgument for something else, and for a zero byte.
  [[nodiscard]] std::string get(const char* function, const char* argument) const {
    PyObject* encoded = nullptr;
    if (PyUnicode_FSConverter(given_.ptr(), &encoded) != 0) {
      const nb::bytes bytes = nb::steal<nb::bytes>(encoded);
      return {bytes.c_str(), bytes.size()};
    }
    PyErr_Clear();
    refuse({.function = function,
            .argument = argument,
            .reason = "it is no path",
            .wanted = "text without a zero byte, bytes or an os.PathLike",
            .got = nb::cast<std::string>(nb::repr(given_))});
  }

 private:
  nb::object given_;
};

}  // namespace penstock::python

template <>
struct nanobind::detail::type_caster<penstock::python::FilePath> {
  NB_TYPE_CASTER(penstock::python::FilePath, const_name("str | os.PathLike"))
  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    value = penstock::python::FilePath(borrow(source));
    return true;
  }
};
