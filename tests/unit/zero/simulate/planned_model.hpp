#pragma once

#include "zero/simulate/planned_step.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include <cstdint>
#include <string>

namespace penstock::zero::simulate::test {

struct Planned {
  Config config{.stage = 3};
  ModelLayout model;
  MemoryPlan plan;
  PlannedStep step;
};

/// Four units of 2^18 parameters on two ranks, all on disk.
inline Planned planned(std::uint32_t micro_batches) {
  Planned made;
  Config& config = made.config;
  config.dtype = config.grad_accum_dtype = DType::bf16;
  config.gradient_accumulation_steps = micro_batches;
  config.offload_param = config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"."}};
  for (int unit = 0; unit < 4; ++unit) {
    made.model.units.push_back(
        {.name = std::to_string(unit), .parameters = {{"weight", ElementCount(1 << 18), 0}}});
  }
  made.plan = plan_memory(config, made.model, 2, 2).value();
  made.step = plan_step(config, made.model, made.plan, {.micro_batches = micro_batches}).value();
  return made;
}

}  // namespace penstock::zero::simulate::test
