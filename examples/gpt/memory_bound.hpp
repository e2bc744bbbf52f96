#pragma once

#include "gpt/model_config.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

namespace gpt {

/// An upper bound of the memory of a training process, by what it holds.
struct MemoryBound {
  penstock::ByteCount host;         ///< the host budgets of all ranks
  penstock::ByteCount device;       ///< their device budgets; zero where the device has its own memory
  penstock::ByteCount activations;  ///< and the scratch memory of the arithmetic; zero likewise
  /// Code, libraries, stacks, the text. In a build with CUDA it includes 160 MiB for cuBLAS, which relocates 84 MiB of
  /// tables when it is loaded.
  penstock::ByteCount beside;

  [[nodiscard]] penstock::ByteCount total() const { return host + device + activations + beside; }
};

/// The bound for `ranks` ranks, whose host budgets together are `host_budgets`, and whose plans are else like `plan`.
/// `device_is_host`: host memory is used as the device.
[[nodiscard]] MemoryBound memory_bound(const penstock::zero::MemoryPlan& plan,
                                       penstock::ByteCount host_budgets, const ModelConfig& model,
                                       const TrainingConfig& training, std::uint32_t ranks,
                                       bool device_is_host);

/// The bound for the loop on plain buffers in host memory, which take `buffers` beside the activations.
[[nodiscard]] MemoryBound plain_memory_bound(penstock::ByteCount buffers, const ModelConfig& model,
                                             const TrainingConfig& training);

/// Call before the ranks are created: a process that uses more memory than its control group may use is killed, and
/// OpenBLAS, which the first rank loads, waits forever for address space that it does not get.
///
/// Errors: no_space, with what is missing and the file or limit.
[[nodiscard]] penstock::Result<void> check_memory(const MemoryBound& bound, std::uint32_t ranks);

}  // namespace gpt
