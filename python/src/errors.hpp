#pragma once

#include "without_gil.hpp"

#include <penstock/penstock.h>

#include <nanobind/nanobind.h>
#include <string>

// Errors of the C interface as Python's exceptions.
namespace penstock::python {

namespace nb = nanobind;

/// What is wrong with an argument, found before the C interface sees it.
struct Refusal {
  const char* function;  ///< "Files.begin_read"
  const char* argument;
  std::string reason, wanted, got, advice;
  penstock_code code = PENSTOCK_INVALID_ARGUMENT;
};

/// penstock.errors.exception_of(), before any other of these.
void set_exceptions(nb::object function);
/// Throws the exception for the error, which it frees, unless it is null. The caller holds the GIL.
void check(penstock_error* error);
[[noreturn]] void refuse(const Refusal& refusal);

/// Runs a call that may wait, without the GIL, and throws the exception for its error.
template <class Call>
void run(const Call& call) {
  penstock_error* error = nullptr;
  {
    const WithoutGil released;
    error = call();
  }
  check(error);
}

/// The texts, which it frees.
[[nodiscard]] nb::list to_list(penstock_lines* lines);
/// One text, with a line break behind each; it frees them.
[[nodiscard]] nb::str to_text(penstock_lines* lines);

}  // namespace penstock::python
