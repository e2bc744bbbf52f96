#pragma once

#include <penstock/zero/layout/memory_plan.hpp>

namespace penstock::zero {

/// What plan_memory() refuses before it plans. Errors: as it says.
Result<void> check_inputs(const Config& config, const ModelLayout& model, std::uint32_t ranks,
                          std::uint32_t local_ranks, std::uint32_t local_rank);

/// Whether a processor can update the optimizer's states where the plan keeps them. Precondition:
/// MemoryPlan::gradients_on_device is set. Errors: unsupported.
Result<void> check_optimizer_place(const MemoryPlan& plan, const Config& config);

}  // namespace penstock::zero
