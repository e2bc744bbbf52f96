#pragma once

#include "zero/estimate/estimate.hpp"
#include "zero/estimate/named_model.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::zero::estimate {

/// The ranks of a run.
struct RunShape {
  std::uint32_t ranks_per_node = 1, nodes = 1;
  tiers::DeviceMemory device_memory = tiers::DeviceMemory::separate;

  /// At most 65535 of each, so that the product fits.
  [[nodiscard]] std::uint32_t ranks() const { return ranks_per_node * nodes; }
};

/// What a run takes, from plan_memory(), from which the runtime allocates.
struct PlanEstimate {
  /// Bytes in one tier. The allocated lines of a tier add up to its total; another line is a part of the allocated line
  /// before it, at most.
  struct Line {
    tiers::Tier tier;
    std::string_view what;
    bool allocated;
    ByteCount per_rank;
    ByteCount per_node = {};
  };
  /// The links that are slow.
  enum class Link : std::uint8_t { nvme, device };
  /// What crosses a link in one step, at most.
  struct Traffic {
    Link link;
    std::string_view what;
    ByteCount in, out;  ///< of one rank: read from the disk, written to it; to the device, from it
    ByteCount node_in = {}, node_out = {};
  };
  /// One directory of a node, for all of its ranks.
  struct Path {
    std::filesystem::path directory;
    double share = 0;         ///< of the node's swap files
    ByteCount swap_bytes;     ///< that are allocated
    ByteCount read, written;  ///< in one step
  };

  RunShape run;
  /// Of the rank whose host budget is the smallest. What is per rank here is its own; what is per node adds up the
  /// ranks.
  MemoryPlan plan;
  bool budgets_differ = false;  ///< because of penstock.node_budgets; else all ranks of a node have this plan
  ElementCount parameters;
  std::uint32_t micro_batches = 1;
  std::vector<Line> lines;       ///< in the order device, host, nvme; without lines of zero bytes
  std::vector<Traffic> traffic;  ///< without those of zero bytes
  std::vector<Path> paths;       ///< if anything is on disk
  bool shares_are_given =
      false;  ///< by path_weights, or as there is one path; else all are taken to be equal
  /// Host memory that a process pins, of the rank that has most of it; zero without pin_memory.
  ByteCount pinned;
  /// What the kernel counts for the user of a node's ranks if io_uring registers their memory, once per path.
  ByteCount registered;

  [[nodiscard]] ByteCount per_rank(tiers::Tier tier) const;
  [[nodiscard]] ByteCount per_node(tiers::Tier tier) const;
  /// Of one rank and step, in both directions.
  [[nodiscard]] ByteCount moved(Link link) const;
  /// Read from and written to the disks of a node in one step.
  [[nodiscard]] ByteCount read_per_node() const;
  [[nodiscard]] ByteCount written_per_node() const;
};

/// Plans the ranks of a node, those with the same host budget once. Errors: those of plan_memory().
[[nodiscard]] Result<PlanEstimate> estimate_plan(const Config& config, const ModelLayout& layout,
                                                 const RunShape& run);

/// The steps after which `written` bytes a step reach a drive's rated endurance, in bytes; none if nothing is written.
[[nodiscard]] std::optional<std::uint64_t> steps_to_endurance(double endurance_bytes, ByteCount written);

/// The row of DeepSpeed's table that is nearest to the configuration: for it, nvme is cpu.
struct DeepSpeedComparison {
  std::uint32_t stage = 3;  ///< of the table
  DeepSpeedEstimateRow row;
};
/// Errors: those of deepspeed_estimate().
[[nodiscard]] Result<DeepSpeedComparison> compare_deepspeed(const Config& config, const NamedModel& model,
                                                            const RunShape& run);

}  // namespace penstock::zero::estimate
