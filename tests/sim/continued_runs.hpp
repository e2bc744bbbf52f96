#pragma once

#include "kit/cluster.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>

namespace penstock::zero::test {

// Random runs that end and are continued.

inline OffloadDevice random_tier(penstock::test::SeededRandom& random) {
  return std::array{OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme}[random.below(3)];
}

inline constexpr std::array continued_formats = {RunFormat{cpu_adam::StateFormat::fp32},
                                                 RunFormat{cpu_adam::StateFormat::split},
                                                 RunFormat{cpu_adam::StateFormat::fp32, DType::fp32},
                                                 RunFormat{cpu_adam::StateFormat::split_bf16},
                                                 RunFormat{cpu_adam::StateFormat::split_q8},
                                                 narrow_formats[0]};

/// Some runs get more host memory than they need, which is home of what is on disk; in some of these, the ranks of one
/// NUMA node get more than those of another.
inline void give_random_memory(RunOptions& options, std::uint64_t seed) {
  penstock::test::SeededRandom random(seed + 43'000);
  PenstockConfig& penstock = options.config.penstock;
  const ByteCount least = smallest_host_budget(options);
  penstock.host_budget = {};
  penstock.node_budgets.clear();
  penstock.rank_nodes.clear();
  const std::uint64_t how = random.below(3);
  if (how == 1) penstock.host_budget = least + ByteCount(random.below(3'000'000));
  if (how < 2) return;
  for (std::uint32_t node = 0; node < 2; ++node)
    penstock.node_budgets.push_back(least + ByteCount(random.below(2) * random.below(3'000'000)));
  for (std::uint32_t rank = 0; rank < options.ranks; ++rank)
    penstock.rank_nodes.push_back(static_cast<std::uint32_t>(random.below(2)));
}

/// Of any stage, tiers and format.
inline RunOptions random_continued_run(std::uint64_t seed, std::uint32_t ranks) {
  penstock::test::SeededRandom random(seed + 41'000);
  RunOptions options{
      .ranks = ranks, .micro_batches = 1 + static_cast<std::uint32_t>(random.below(2)), .steps = 4};
  options.model = random.below(2) == 0 ? deep_model() : random_model(random);
  Config& config = options.config;
  config.stage = static_cast<std::uint32_t>(random.below(4));
  config.offload_optimizer.device = random_tier(random);
  config.offload_param.device = config.stage == 3 ? random_tier(random) : OffloadDevice::none;
  if (random.below(2) == 0) options.device_memory = tiers::DeviceMemory::separate;
  const RunFormat& format = continued_formats[random.below(continued_formats.size())];
  if (format.format == cpu_adam::StateFormat::moments) config.stage = std::max(config.stage, 1u);
  format.set(config);
  if (random.below(4) == 0 && options.model.groups.size() > 1) options.model.groups[1].frozen = true;
  keep_random_states(options, seed);
  update_in_backward_at_random(options, seed);
  give_random_memory(options, seed);
  return options;
}

inline RunOptions durable(RunOptions options, const std::filesystem::path& directory) {
  options.config.penstock.durable_directories = {directory};
  return options;
}

}  // namespace penstock::zero::test
