#pragma once

#include "rows.hpp"

#include <string>
#include <vector>

namespace penstock::bench {

struct Report {
  std::string device;
  int rounds;
  std::vector<CopyRow> copies;
  std::vector<KernelRow> kernels;
};

void print_table(const Report& report);
/// Prints one line.
void print_json(const Report& report);

}  // namespace penstock::bench
