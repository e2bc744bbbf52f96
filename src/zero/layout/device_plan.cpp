#include "zero/layout/device_plan.hpp"
#include "zero/layout/flat_residency.hpp"
#include "zero/layout/padded.hpp"

#include <algorithm>

namespace penstock::zero {

namespace {

/// Room for the two largest neighbouring units gathered, unless they are used in place, and twice for the largest full
/// gradients of one unit: one being written, one being reduced.
ByteCount device_need(const ShardLayout& shards, const ModelLayout& model, DType dtype, InPlace in_place) {
  const auto unit_bytes = [&](std::uint32_t unit) {
    ByteCount bytes;
    for (const std::uint32_t flat : shards.needed_by(unit))
      bytes += padded(shards.flats()[flat].length, dtype);
    return bytes;
  };
  ByteCount two, one, shared;
  for (std::uint32_t u = 0; u < model.units.size(); ++u) {
    one = std::max(one, unit_bytes(u));
    two = std::max(two, unit_bytes(u) + (u + 1 < model.units.size() ? unit_bytes(u + 1) : ByteCount()));
  }
  // The full gradient of a shared flat stays from the first to the last unit that uses it in a backward pass.
  for (std::uint32_t f = 0; f < shards.flats().size(); ++f) {
    if (shards.user_count(f) > 1) shared += padded(shards.flats()[f].length, dtype);
  }
  return (in_place.parameters ? ByteCount() : two) + one + one + shared;
}

}  // namespace

InPlace in_place_of(const MemoryPlan& plan, const Config& config) {
  return {.parameters = plan.parameters_in_place(),
          .first_gradients =
              plan.shares_memory && !plan.gradients_on_disk && config.grad_accum_dtype == config.dtype};
}

Result<void> plan_device(MemoryPlan& plan, const Config& config, const ShardLayout& shards,
                         const ModelLayout& model) {
  const InPlace in_place = in_place_of(plan, config);
  const auto rehearse = [&](ByteCount budget) {
    return rehearse_steps(shards, model.units.size(), config.dtype, in_place,
                          config.gradient_accumulation_steps, budget);
  };
  // Units of different sizes leave gaps, so that this sum alone may not suffice.
  const ByteCount need = device_need(shards, model, config.dtype, in_place);
  const ByteCount step = round_up(ByteCount(need.value() / 64), extent_alignment);
  plan.device_minimum = need;
  auto peaks = rehearse(need);
  while (!peaks) peaks = rehearse(plan.device_minimum += step);

  plan.device_budget = plan.device_minimum;
  if (const ByteCount given = config.penstock.device_budget; !given.is_zero()) {
    if (given < plan.device_minimum) {
      return Error(ErrorCode::budget_too_small, "plan_memory")
          .reason("the device budget is too small for two gathered units and their gradients")
          .where("penstock.device_budget")
          .wanted("at least " + to_exact_string(plan.device_minimum))
          .got(given)
          .advice("raise the budget or use smaller units");
    }
    // In a larger budget the ranges may fragment worse. If the rehearsal fails there, the smaller one is used.
    if (auto more = rehearse(given)) peaks = more, plan.device_budget = given;
  }
  plan.device_gathered = peaks->gathered;
  plan.device_gradients = peaks->gradients;
  return ok();
}

}  // namespace penstock::zero
