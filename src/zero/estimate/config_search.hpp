#pragma once

#include "zero/estimate/plan_estimate.hpp"

#include <functional>
#include <set>
#include <string>

namespace penstock::zero::estimate {

/// What a configuration may use.
struct SearchOptions {
  /// Gives dtype, batch sizes, optimizer, tile sizes, and all else that the search does not choose. Both offload blocks
  /// name the directories that may be used.
  Config base;
  RunShape run;
  ByteCount host_budget;    ///< of all ranks of a node; 0: any
  ByteCount device_budget;  ///< of each rank; 0: any
  bool lossy = false;       ///< also state formats that round the moments
  /// Keep penstock.node_budgets of the base; host_budget is their sum then.
  bool by_numa_node = false;
  /// Keys of the base that were given, as config_keys() spells them: of those that the search chooses, these are kept.
  std::set<std::string, std::less<>> given = {};

  [[nodiscard]] bool keeps(std::string_view key) const { return given.contains(key); }
};

/// One configuration that was tried.
struct Candidate {
  Config config;
  ByteCount nvme, device;              ///< moved per rank and step: its cost
  ByteCount host_need, device_need;    ///< the smallest budgets of `config`: of a node, and of a rank
  std::optional<PlanEstimate> chosen;  ///< empty, if it does not fit

  /// "stage 3, offload_param cpu, offload_optimizer nvme, state_format split".
  [[nodiscard]] std::string name() const;
};

/// The candidates in the order of their cost: bytes that move between disk and memory in a step, then those between
/// host memory and device, then the order in which they are tried: stage 2 (all parameters on the device) before stage
/// 3; within a stage none, cpu, nvme for offload_optimizer and then for offload_param; state formats fp32, split, and
/// if `lossy` split_bf16 and split_q8. offload_param none is tried only with offload_optimizer none, since it is cpu
/// with the others. With a device budget, what it leaves holds offloaded states where that makes a candidate fit or
/// saves bytes between disk and memory: penstock.device_states, unless the base has a value. Left out is what the base
/// cannot have: stage 2 with a ratio of the update, stage 3 with gradient_allreduce_op sum, split formats without bf16,
/// and formats of which a tile has no room in the base's device_states. A base with 16-bit masters keeps its format,
/// and where that is `moments` its states are offloaded. Of the keys that were given only their values are tried.
struct ConfigSearch {
  std::vector<Candidate> candidates;
  std::optional<std::size_t> best;  ///< the first that fits

  /// Errors: those of plan_memory() other than budget_too_small; invalid_argument, if no candidate is left.
  [[nodiscard]] static Result<ConfigSearch> run(const SearchOptions& options, const ModelLayout& layout);

  /// budget_too_small, with the smallest needs of all candidates, and of those that the other budget permits.
  /// Precondition: !best.
  [[nodiscard]] Error nothing_fits(const SearchOptions& options) const;
};

/// The most bytes of offloaded states that the device's budget has room for beside what `config` needs; 0: none, or
/// the configuration cannot keep states there, or was given how many.
[[nodiscard]] ByteCount most_device_states(const Config& config, const SearchOptions& options,
                                           const ModelLayout& layout);

/// The keys of a configuration that differ from the defaults, as JSON that Config::from_text() reads for any number of
/// ranks: without train_batch_size.
[[nodiscard]] std::string to_short_json(const Config& config);

}  // namespace penstock::zero::estimate
