// The calls of the engine that set and read the states of parameters: initialize, restore, read_states, digest.

#include "base/number_text.hpp"
#include "zero/engine/engine_state.hpp"
#include "zero/engine/flat_parts.hpp"
#include "zero/engine/parameter_digest.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace penstock::zero {

namespace {

/// Calls `visit(parameter, first, values)` for each parameter's part of the elements [first, first + values.size()) of
/// a flat.
template <class T, class Visit>
Result<void> for_each_parameter(const FlatLayout& flat, ElementCount first, std::span<T> values,
                                const Visit& visit) {
  return for_each_parameter(flat, first, ElementCount(values.size()), [&](const FlatPart& part) {
    return visit(part.parameter, part.first, values.subspan(part.offset, part.count));
  });
}

template <class Function>
Result<void> check_callable(const char* operation, const char* name, const Function& function) {
  if (function) return ok();
  return Error::invalid_argument(operation).object(name).wanted("a function").got("an empty std::function");
}

/// The least number that `dtype` rounds to infinity, which is half a unit above its largest one; none for fp32.
std::optional<float> least_infinite(DType dtype) {
  switch (dtype) {
    case DType::fp16: return 65520.0f;
    case DType::bf16: return 0x1.FFp127f;
    case DType::fp32: break;
  }
  return std::nullopt;
}

/// Judges the first value with which no run gets better: one that is not finite, or a master whose parameter is not.
Result<void> judge_values(const char* operation, const ParameterLayout& parameter, const Config& config,
                          cpu_adam::StateKind kind, std::uint64_t first, std::span<const float> values,
                          const EngineState::JudgeValue& judge) {
  const bool squared =
      kind == cpu_adam::StateKind::second_moment && !cpu_adam::is_custom(config.optimizer.type);
  const auto limit =
      kind == cpu_adam::StateKind::master ? least_infinite(config.dtype) : std::optional<float>();
  const float least_wrong = limit.value_or(std::numeric_limits<float>::infinity());
  const auto is_wrong = [&](float value) {
    return !(std::fabs(value) < least_wrong) || (squared && value < 0);  // NaN is below nothing
  };
  // All are looked at, in vectors: an early end would take longer.
  if (std::count_if(values.begin(), values.end(), is_wrong) == 0) return ok();
  const auto bad = std::find_if(values.begin(), values.end(), is_wrong);
  const auto at = first + static_cast<std::uint64_t>(bad - values.begin());
  auto error =
      Error::invalid_argument(operation)
          .object(std::string(to_string(kind)) + " of " + parameter.name + ", element " + std::to_string(at))
          .got(number_text(*bad));
  if (squared) return judge(std::move(error).wanted("a finite number, 0 or more"), *bad);
  if (!std::isfinite(*bad)) return judge(std::move(error).wanted("a finite number"), *bad);
  return judge(std::move(error)
                   .wanted("a number that is finite in " + std::string(to_string(config.dtype)))
                   .advice("train in bf16 or fp32, or scale the model's values"),
               *bad);
}

Result<void> refuse(Error error, float) {
  return error;
}

}  // namespace

Result<void> EngineState::initialize(const Fill& fill) {
  PENSTOCK_TRY(check_callable("Engine::initialize", "fill", fill));
  PENSTOCK_TRY(check_new_run("Engine::initialize"));
  PENSTOCK_TRY(restore(
      "Engine::initialize", 0,
      [&](ParameterId parameter, cpu_adam::StateKind kind, std::uint64_t first,
          std::span<float> values) -> Result<void> {
        if (kind == cpu_adam::StateKind::master) fill(parameter, first, values);
        return ok();
      },
      refuse));
  if (commits_) commits_->adopt({});
  return ok();
}

Result<void> EngineState::restore(std::uint64_t step, const StateSource& source) {
  PENSTOCK_TRY(check_new_run("Engine::restore"));
  PENSTOCK_TRY(restore("Engine::restore", step, source, refuse));
  if (commits_) commits_->adopt({});
  return ok();
}

Result<void> EngineState::restore(const char* operation, std::uint64_t step, const StateSource& source,
                                  const JudgeValue& judge) {
  PENSTOCK_TRY(check_callable(operation, "source", source));
  if (constexpr std::uint64_t most = std::uint64_t{1} << 62;
      step > most) {  // the steps after it have numbers too
    return Error::invalid_argument(operation)
        .object("step")
        .wanted("at most " + std::to_string(most))
        .got(step);
  }
  PENSTOCK_TRY(check_restorable(operation));
  PENSTOCK_TRY(context_.finish_update());
  PENSTOCK_TRY(residency_->drop_all(operation, *this));
  initialized_ = false;
  const auto checked = [&](ParameterId id, cpu_adam::StateKind kind, std::uint64_t first,
                           std::span<float> values) -> Result<void> {
    PENSTOCK_TRY(source(id, kind, first, values));
    return judge_values(operation, options_.model.parameter(id), options_.config, kind, first, values, judge);
  };
  PENSTOCK_TRY(optimizer_.restore(
      context_.flats, context_.communicator.rank(), step,
      [&](const FlatLayout& flat, cpu_adam::StateKind kind, ElementCount first, std::span<float> values) {
        return for_each_parameter(flat, first, values, [&](ParameterId id, std::uint64_t begin, auto part) {
          return checked(id, kind, begin, part);
        });
      }));
  tiers::Ledger& ledger = context_.runtime.ledger();
  const MemoryPlan& plan = options_.plan;
  const bool at_home = !context_.internals.memory_is_limited();
  ledger.predict_traffic(tiers::Purpose::optimizer_tile, {}, at_home ? plan.tile_writes : plan.disk_tiles);
  ledger.predict_traffic(tiers::Purpose::parameter_shard, {},
                         at_home ? plan.disk_shards - plan.home_shards : plan.disk_shards);
  context_.completed_steps = step;
  step_.reset_loss_scale();
  initialized_ = true;
  return ok();
}

/// Calls `sink` with each of `kinds` of this rank's shards.
Result<void> EngineState::visit_states(std::span<const cpu_adam::StateKind> kinds, const StateSink& sink) {
  PENSTOCK_TRY(context_.finish_update());
  PENSTOCK_TRY(optimizer_.visit_states(
      context_.flats, kinds,
      [&](const FlatState& flat, cpu_adam::StateKind kind, ElementCount first,
          std::span<const float> values) {
        const ElementCount begin = flat.layout->shard * context_.communicator.rank() + first;
        return for_each_parameter(
            *flat.layout, begin, values,
            [&](ParameterId id, std::uint64_t at, auto part) { return sink(id, kind, at, part); });
      }));
  tiers::Ledger& ledger = context_.runtime.ledger();
  const MemoryPlan& plan = options_.plan;
  const bool at_home = !context_.internals.memory_is_limited();
  ledger.predict_traffic(tiers::Purpose::optimizer_tile, at_home ? plan.tile_reads : plan.disk_tiles, {});
  ledger.predict_traffic(tiers::Purpose::parameter_shard,
                         plan.update_shard_reads_max + plan.disk_frozen_shards - plan.home_frozen_shards +
                             (at_home ? ByteCount() : plan.home_shards),
                         {});
  return ok();
}

Result<void> EngineState::read_states(const StateSink& sink) {
  PENSTOCK_TRY(check_callable("Engine::read_states", "sink", sink));
  PENSTOCK_TRY(ready("Engine::read_states"));
  PENSTOCK_TRY(check_here("Engine::read_states", ParkKinds::parameters | ParkKinds::optimizer));
  PENSTOCK_TRY(check_not_updating("Engine::read_states"));
  return visit_states(cpu_adam::all_states, sink);
}

Result<std::string> EngineState::digest() {
  constexpr const char* operation = "Engine::digest";
  PENSTOCK_TRY(ready(operation));
  PENSTOCK_TRY(check_here(operation, ParkKinds::parameters | ParkKinds::optimizer));
  PENSTOCK_TRY(check_not_updating(operation));
  // Wait for gathers in flight: the exchange comes after them in the collective order.
  PENSTOCK_TRY(residency_->drop_all(operation, *this));
  ParameterDigest digest(options_.model);
  constexpr cpu_adam::StateKind masters = cpu_adam::StateKind::master;
  PENSTOCK_TRY(visit_states(std::span(&masters, 1),
                            [&](ParameterId id, cpu_adam::StateKind, std::uint64_t first,
                                std::span<const float> values) -> Result<void> {
                              digest.add(id, first, values);
                              return ok();
                            }));
  PENSTOCK_TRY(add_sums_of_peers(digest));
  return digest.to_string();
}

Result<void> EngineState::add_sums_of_peers(ParameterDigest& digest) {
  const ParameterDigest::Sum mine = digest.sum();
  std::vector<ParameterDigest::Sum> of_ranks(context_.communicator.size());
  PENSTOCK_TRY(context_.exchange(ConstHostSpan(std::span(&mine, 1)), HostSpan(std::span(of_ranks)),
                                 CollectiveSignature::Subject::digest));
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    if (rank != context_.communicator.rank()) digest.add(of_ranks[rank]);
  }
  return ok();
}

}  // namespace penstock::zero
