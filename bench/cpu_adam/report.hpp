#pragma once

#include "measure/machine.hpp"
#include "measure/statistics.hpp"

#include <penstock/kernels/variants.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::bench {

struct Row {
  std::uint32_t threads;
  std::string name, against;
  double bytes_per_element;
  measure::Center seconds, ratio, to_floor;  // its rate divided by that of `against` and of the floor
};

struct Report {
  measure::Machine machine;
  std::uint64_t elements;
  int rounds;
  Isa isa;
  std::vector<Row> rows;
};

void print_table(const Report& report);
/// Prints one line.
void print_json(const Report& report);

}  // namespace penstock::bench
