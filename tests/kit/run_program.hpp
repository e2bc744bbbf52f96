#pragma once

#include <json/json.h>
#include <string>
#include <vector>

namespace penstock::test {

struct ProgramResult {
  int status = -1;  ///< exit status, -1 if a signal ended it
  std::string out, err;

  /// Standard output, parsed; null where it is no JSON.
  [[nodiscard]] Json::Value json() const;
};

/// What standard output of a program is.
enum class StandardOutput { captured, full_device, closed };

/// Runs `program` with these arguments, no shell between, and waits for it.
[[nodiscard]] ProgramResult run_program(const std::string& program, const std::vector<std::string>& arguments,
                                        StandardOutput output = StandardOutput::captured);

/// Expects that `program` exits with 1 and says on standard error that it could not print, on a full device and with
/// standard output closed.
void expect_output_errors(const std::string& program, const std::vector<std::string>& arguments);

}  // namespace penstock::test
