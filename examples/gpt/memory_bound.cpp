#include "gpt/memory_bound.hpp"

#include "gpt/activations.hpp"
#include "gpt/model_description.hpp"
#include "gpt/peak_memory.hpp"

#include <penstock/tiers/memory/memory_limits.hpp>

#include <algorithm>

namespace gpt {

using penstock::ByteCount;
using penstock::Result;
using penstock::to_string;

MemoryBound memory_bound(const penstock::zero::MemoryPlan& plan, const ModelConfig& model,
                         const TrainingConfig& training, bool device_is_host) {
  MemoryBound bound{.host = plan.host_budget * training.ranks,
                    .beside = ByteCount(GPT_HAS_CUDA ? 224 << 20 : 64 << 20)};
  if (!device_is_host) return bound;
  const ByteCount scratch(ModelDescription(model).scratch_count().value() * sizeof(float));
  bound.device = plan.device_budget * training.ranks;
  bound.activations = (Activations::size(model, training.sequences) + scratch) * training.ranks;
  return bound;
}

Result<void> check_memory(const MemoryBound& bound) {
  const ByteCount total = bound.total();
  const ByteCount further = total - std::min(total, resident_memory());
  auto enough = penstock::tiers::check_memory("check_memory", further, penstock::tiers::memory_limit());
  if (enough) return enough;
  return std::move(enough).error().note(
      "needed  host budgets " + to_string(bound.host) + ", device budgets " + to_string(bound.device) +
      ", activations " + to_string(bound.activations) + ", the process " + to_string(bound.beside));
}

}  // namespace gpt
