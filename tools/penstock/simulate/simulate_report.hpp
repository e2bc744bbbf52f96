#pragma once

#include "command.hpp"
#include "zero/simulate/machine_file.hpp"
#include "zero/simulate/simulation.hpp"

#include <json/json.h>
#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::tool {

/// What is simulated, and what is said of it.
struct SimulatedCase {
  std::string title;
  swap::AccessTrace trace;
  zero::simulate::Machine machine;
  zero::simulate::SimulationOptions settings;
  zero::simulate::Simulation simulation;
  double operations = 0;     ///< of a step of a model
  std::uint64_t tokens = 0;  ///< of all ranks in a step of it
};

/// "33.708 ms", "1.205 s": steps of small models take less than a millisecond.
[[nodiscard]] std::string time_text(double seconds);

void print_report(const SimulatedCase& simulated);
[[nodiscard]] Json::Value to_json(const SimulatedCase& simulated);

}  // namespace penstock::tool
