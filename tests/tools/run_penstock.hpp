#pragma once

#include "kit/run_program.hpp"

namespace penstock::test {

inline ProgramResult run_penstock(const std::vector<std::string>& arguments) {
  return run_program(PENSTOCK_PROGRAM, arguments);
}

}  // namespace penstock::test
