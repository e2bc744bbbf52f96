#include "zero/layout/device_plan.hpp"
#include "zero/layout/flat_residency.hpp"
#include "zero/layout/padded.hpp"
#include "zero/layout/rank_bytes.hpp"
#include "zero/layout/rehearse_steps.hpp"
#include "zero/layout/unit_needs.hpp"

#include <algorithm>
#include <string>

namespace penstock::zero {

namespace {

/// Room for the full gradients of one unit, or of two if one is written while one is reduced.
ByteCount gradients_need(const UnitNeeds& needs, const ResidencyLimits& limits) {
  return needs.gradients * gradient_rounds(limits) + needs.shared_gradients;
}

/// By how much a budget grows in which a rehearsal failed. Units of different sizes leave gaps, so that the sum alone
/// may not suffice.
ByteCount growth(ByteCount need) {
  return round_up(ByteCount(need.value() / 64), extent_alignment);
}

ByteCount all_flats(const ShardLayout& shards, DType dtype, ByteCount gap) {
  ByteCount all;
  for (const FlatLayout& flat : shards.flats()) all += padded(flat.length, dtype) + gap;
  return all;
}

/// The smallest budget for gathered flats and full gradients in which the rehearsal of a step succeeds.
ByteCount smallest_budget(const MemoryPlan& plan, const Config& config, const ShardLayout& shards) {
  const InPlace in_place = in_place_of(plan, config);
  const ResidencyLimits limits = limits_of(plan, config, shards);
  const UnitNeeds needs = unit_needs(shards, config.dtype, {});
  const ByteCount gathered = limits.whole ? needs.all_flats : needs.gathered;
  const ByteCount need = gradients_need(needs, limits) + (in_place.parameters ? ByteCount() : gathered);
  ByteCount flats = need;
  while (!rehearse_steps(shards, config.dtype, in_place, limits, config.gradient_accumulation_steps, flats)) {
    flats += growth(need);
  }
  return flats;
}

/// Sets what gathered flats and full gradients hold at most, in the planned order and in every order. A flat is
/// gathered once, and one gradient of it is open. The rehearsal bounds neither: a trainer may use units in another
/// order, twice, or several at a time, and what one purpose leaves free the other may take.
Result<void> predict_flats(MemoryPlan& plan, const Config& config, const ShardLayout& shards) {
  const InPlace in_place = in_place_of(plan, config);
  const UnitNeeds needs = unit_needs(shards, config.dtype, {});
  plan.device_gathered_max =
      in_place.parameters ? ByteCount() : std::min(needs.all_flats, plan.device_flats());
  plan.device_gradients_max = std::min(needs.all_gradients, plan.device_flats());
  PENSTOCK_TRY_ASSIGN(
      const FlatPeaks peaks,
      rehearse_peaks(shards, config.dtype, in_place, limits_of(plan, config, shards),
                     config.gradient_accumulation_steps, plan.device_flats(), plan.host_leases));
  plan.device_gathered = peaks.gathered;
  plan.device_gradients = peaks.gradients;
  return ok();
}

/// How a run may fit into a smaller device budget.
std::string advice_on_device(const MemoryPlan& plan, const Config& config) {
  std::string advice = "raise the budget";
  if (plan.gradients_on_device) advice += ", set offload_optimizer.device to cpu or nvme";
  if (!config.penstock.device_states.is_zero()) advice += ", lower penstock.device_states";
  return advice + (config.shards_parameters()
                       ? ", or use smaller units"
                       : ", or set zero_optimization.stage to 3, which gathers one unit at a time");
}

/// One is copied while the trainer holds its leases.
std::uint32_t checkpoint_slots_min(const CheckpointLayout& checkpoints) {
  return checkpoints.leased_max < checkpoints.count ? checkpoints.leased_max + 1 : checkpoints.count;
}

}  // namespace

InPlace in_place_of(const MemoryPlan& plan, const Config& config) {
  return {.parameters = plan.shares_memory,
          .lease_gap = plan.host_lease_gap,
          .first_gradients =
              plan.shares_memory && !plan.gradients_on_disk && config.grad_accum_dtype == config.dtype};
}

ResidencyLimits limits_of(const MemoryPlan& plan, const Config& config, const ShardLayout& shards) {
  ElementCount bucket = config.reduce_bucket_size;
  if (!plan.exact_slots_max.is_zero()) {
    // There is memory for the peers' slots of the largest flat.
    ElementCount largest;
    for (const FlatLayout& flat : shards.flats()) {
      if (!flat.frozen) largest = std::max(largest, flat.length);
    }
    bucket = std::min(bucket, largest);
  }
  const bool whole = !config.shards_parameters();
  return {.reduce_bucket = bucket,
          .overlap = config.overlaps_communication(),
          .prefetch = config.prefetch_bucket_size,
          .live_parameters = whole ? ModelLayout::model_elements_max : config.max_live_parameters,
          .param_persistence = whole ? ElementCount() : config.param_persistence_threshold,
          .model_persistence = whole ? ElementCount() : config.model_persistence_threshold,
          .reuse_distance = whole || config.penstock.release == Release::planned
                                ? std::nullopt
                                : std::optional(config.max_reuse_distance),
          .whole = whole};
}

LeasePlan plan_leases(const MemoryPlan& plan, const Config& config, const ShardLayout& shards) {
  const ResidencyLimits limits = limits_of(plan, config, shards);
  const InPlace in_place = in_place_of(plan, config);
  const ByteCount all = all_flats(shards, config.dtype, in_place.lease_gap);
  if (!plan.shards_on_disk) return {.minimum = all, .wanted = all};

  const UnitNeeds needs = unit_needs(shards, config.dtype, in_place.lease_gap);
  const ByteCount need = needs.gathered;
  LeasePlan leases{.minimum = need};
  while (!rehearse_leases(shards, config.dtype, in_place, limits, leases.minimum)) {
    leases.minimum += growth(need);
  }
  leases.wanted = leases.minimum;
  const ByteCount given = config.penstock.device_budget;
  const ByteCount beside = gradients_need(needs, limits) + plan.device_kept();
  if (given <= leases.minimum + beside) return leases;
  const ByteCount more = std::min(given - beside, all);
  // In a larger budget the ranges may fragment worse. If the rehearsal fails there, the smaller one is used.
  if (more > leases.minimum && rehearse_leases(shards, config.dtype, in_place, limits, more))
    leases.wanted = more;
  return leases;
}

void plan_checkpoint_slots(MemoryPlan& plan, const Config& config, const ShardLayout& shards,
                           const ModelLayout& model) {
  const std::uint32_t count = model.checkpoints.count;
  if (count == 0) return;
  plan.checkpoints = {.count = count,
                      .size = round_up(model.checkpoints.size, extent_alignment),
                      .device_slots = checkpoint_slots_min(model.checkpoints)};
  const ByteCount given = config.penstock.device_budget;
  // A device whose memory is host memory moves a checkpoint from there to there.
  if (given.is_zero() || plan.shares_memory) return;
  const ByteCount minimum = smallest_budget(plan, config, shards) + plan.device_kept();
  if (given <= minimum) return;
  const std::uint64_t more = (given - minimum) / plan.checkpoints.size;
  plan.checkpoints.device_slots +=
      static_cast<std::uint32_t>(std::min<std::uint64_t>(more, count - plan.checkpoints.device_slots));
}

Result<void> plan_device(MemoryPlan& plan, const Config& config, const ShardLayout& shards,
                         const ModelLayout& model) {
  const ByteCount kept = plan.device_kept();
  const ByteCount flats = smallest_budget(plan, config, shards);

  const std::uint32_t more_slots = plan.checkpoints.device_slots - checkpoint_slots_min(model.checkpoints);
  plan.device_budget = flats + kept;
  plan.device_minimum = plan.device_budget - plan.checkpoints.size * more_slots;
  // A larger budget is used if the rehearsal succeeds in it: ranges may fragment worse there.
  const auto use_larger = [&](ByteCount budget) {
    const auto rehearsed =
        rehearse_steps(shards, config.dtype, in_place_of(plan, config), limits_of(plan, config, shards),
                       config.gradient_accumulation_steps, budget - kept);
    if (rehearsed) plan.device_budget = budget;
  };
  if (const ByteCount given = config.penstock.device_budget; given.is_zero()) {
    // In place, flats are in host memory, where each lease costs a gap: there is no room for what persists.
    const ByteCount persistent =
        plan.shares_memory ? ByteCount()
                           : persistent_bytes(shards, config.dtype, limits_of(plan, config, shards));
    if (!persistent.is_zero()) use_larger(flats + persistent + kept);
  } else {
    if (given < plan.device_minimum) {
      return Error(ErrorCode::budget_too_small, "plan_memory")
          .reason("the device budget is too small for " +
                  std::string(config.shards_parameters() ? "two gathered units" : "all parameters") +
                  " and full gradients" + (kept.is_zero() ? "" : ", and for what else is kept there"))
          .where("penstock.device_budget")
          .wanted("at least " + to_exact_string(plan.device_minimum))
          .got(given)
          .note("needed  gathered units and gradients " + to_string(plan.device_minimum - kept) +
                ", optimizer " +
                to_string(plan.device_tiles + plan.device_accumulators + plan.update.device_bytes()) +
                ", parameter shards " + to_string(plan.device_shards) + ", checkpoints " +
                to_string(plan.checkpoints.device_bytes()) + ", collectives " +
                to_string(plan.device_collectives))
          .note("largest " + longest_on_device(shards, config))
          .advice(advice_on_device(plan, config));
    }
    const ByteCount leases = plan.shards_on_disk ? plan.host_leases : ByteCount();
    // What is kept there begins at a multiple of the alignment.
    const ByteCount left = given - std::min(given, leases);
    const ByteCount rest = std::max(
        ByteCount(left.value() / extent_alignment.bytes() * extent_alignment.bytes()), plan.device_budget);
    use_larger(rest);
  }
  return predict_flats(plan, config, shards);
}

}  // namespace penstock::zero
