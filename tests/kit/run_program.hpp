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

/// Runs `program` with these arguments, no shell between, and waits for it.
[[nodiscard]] ProgramResult run_program(const std::string& program,
                                        const std::vector<std::string>& arguments);

}  // namespace penstock::test
