#pragma once

#include "errors.hpp"

#include <nanobind/stl/string.h>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

namespace penstock::python {

using Choices = std::initializer_list<std::pair<const char*, std::int32_t>>;

/// The number of a choice. Throws InvalidArgument, with all of them, for another text.
inline std::int32_t number_of(const std::string& text, const Choices& choices, const char* function,
                              const char* argument) {
  std::string wanted;
  for (const auto& [name, number] : choices) {
    if (text == name) return number;
    wanted += std::string(wanted.empty() ? "\"" : ", \"") + name + "\"";
  }
  refuse({.function = function,
          .argument = argument,
          .reason = "there is no such choice",
          .wanted = wanted,
          .got = "\"" + text + "\""});
}

/// As the C interface takes it. Throws InvalidArgument for a zero byte, at which it would end there.
inline const char* text_of(const std::string& given, const char* function, const char* argument) {
  if (given.find('\0') == std::string::npos) return given.c_str();
  refuse({.function = function,
          .argument = argument,
          .reason = "it has a zero byte",
          .wanted = "text without control characters",
          .got = nb::cast<std::string>(nb::repr(nb::cast(given)))});
}

/// Throws InvalidArgument: 0 has another meaning in the C interface.
inline void check_above_zero(const char* function, const char* argument, double value) {
  if (value > 0) return;
  refuse({.function = function,
          .argument = argument,
          .reason = "it is out of its range",
          .wanted = "more than 0",
          .got = nb::cast<std::string>(nb::str(nb::float_(value)))});
}

inline const Choices io_engines{{"automatic", PENSTOCK_IO_AUTOMATIC},
                                {"io_uring", PENSTOCK_IO_URING},
                                {"libaio", PENSTOCK_IO_LIBAIO},
                                {"threads", PENSTOCK_IO_THREADS}};

inline const Choices report_formats{{"text", PENSTOCK_REPORT_TEXT},
                                    {"json", PENSTOCK_REPORT_JSON},
                                    {"prometheus", PENSTOCK_REPORT_PROMETHEUS}};

/// The format of a file that is asked for, or else the one of its extension, as with penstock.report_file.
inline std::string report_format(const std::optional<std::string>& asked, const std::string& file) {
  if (asked) return *asked;
  const std::filesystem::path extension = std::filesystem::path(file).extension();
  if (extension == ".json") return "json";
  return extension == ".prom" ? "prometheus" : "text";
}

inline const Choices pinnings{
    {"none", PENSTOCK_PIN_NONE}, {"preferred", PENSTOCK_PIN_PREFERRED}, {"required", PENSTOCK_PIN_REQUIRED}};

}  // namespace penstock::python
