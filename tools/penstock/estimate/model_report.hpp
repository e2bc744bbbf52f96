#pragma once

#include "estimate/arguments.hpp"
#include "zero/estimate/activations.hpp"
#include "zero/estimate/placement.hpp"
#include "zero/simulate/timed_config.hpp"

#include <cstdio>
#include <optional>
#include <vector>

namespace penstock::tool {

/// What `penstock estimate --model` prints.
struct ModelReport {
  zero::estimate::NamedModel model;
  zero::Config config;
  zero::estimate::PlanEstimate estimate;
  zero::estimate::DeepSpeedComparison deepspeed;
  std::vector<double> endurance_bytes = {};      ///< of each drive; empty: not known
  std::vector<zero::estimate::Knob> knobs = {};  ///< that move less over the drives
  /// Of so many tokens.
  struct Activations {
    std::uint64_t tokens = 0, blocks = 0;
    zero::estimate::ActivationSizes sizes;
    std::optional<zero::estimate::Recomputation> plan = {};  ///< if the memory of the device is known
  };
  std::optional<Activations> activations = {};
  /// On the machine of --machine. The knobs are sorted by their seconds then; one that cannot run there has none.
  struct Timing {
    zero::simulate::TimedConfig timed;
    std::vector<std::optional<double>> of_knobs;
  };
  std::optional<Timing> timing = {};
};

/// Prints the table to standard output.
void print_report(const ModelReport& report);
/// The same figures; docs/estimate.md describes the members.
[[nodiscard]] Json::Value to_json(const ModelReport& report);

/// Where what a rank keeps is, tiles and checkpoints. `activations`: of the trainer, on the device; 0: not known.
void print_placement(std::FILE* to, const zero::estimate::PlanEstimate& estimate, ByteCount activations);
/// The same as the members `placement` and `update`.
void add_placement(Json::Value& json, const zero::estimate::PlanEstimate& estimate, ByteCount activations);

/// Elements of the largest unit, with those that it shares.
[[nodiscard]] ElementCount largest_unit(const zero::ModelLayout& layout);

}  // namespace penstock::tool
