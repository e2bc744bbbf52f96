#include "zero/engine/optimizer_step.hpp"

#include "base/number_text.hpp"

#include <penstock/base/compute.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero {

namespace {

/// Where the update does not wait for the norm of all gradients, no step can be skipped.
Error refuse_gradient(const char* operation, const std::string& reason, const std::string& of) {
  return Error(ErrorCode::non_finite, operation)
      .reason("the step cannot be skipped, because penstock.update_in_backward may have updated a part: " +
              reason)
      .object(of)
      .advice(
          "continue from the last commit or checkpoint; or leave the key out, so that such steps are "
          "skipped");
}

}  // namespace

Result<LearningRate> OptimizerStep::learning_rate() const {
  const std::uint64_t step = context_.completed_steps + 1;
  LearningRate now = context_.config.learning_rate_of(step);
  if (given_rate_) now.rate = *given_rate_;
  const auto refuse = [&](const char* what, const char* wanted, double got) {
    return Error::invalid_config("Engine::step")
        .object("scheduler.params")
        .reason(
            std::string("step ").append(std::to_string(step)).append(" would have no usable ").append(what))
        .wanted(wanted)
        .got(number_text(got));
  };
  if (!std::isfinite(static_cast<float>(now.rate)))
    return refuse("learning rate", "a number that fp32 holds", now.rate);
  using enum cpu_adam::Optimizer;
  const cpu_adam::Optimizer type = context_.config.optimizer.type;
  const bool has_betas = type == adam || type == lion || type == muon;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const GroupHyperparameters group = group_hyperparameters(context_.config.optimizer, groups_[i], now);
    if (!std::isfinite(group.learning_rate))
      return refuse("learning rate", "a number that fp32 holds", group.learning_rate)
          .object("learning_rate_factor of optimizer group " + std::to_string(i));
    for (const float beta : {group.beta1, group.beta2}) {
      if (has_betas && !groups_[i].frozen && beta >= 1)
        return refuse("beta", "below 1", beta).advice("lower decay_mom_rate or cycle_max_mom");
    }
  }
  return now;
}

void OptimizerStep::update_in_backward(std::span<const std::uint32_t> flats) {
  if (!update_.has_begun()) {
    const auto now = learning_rate();
    if (!now) return;
    begin_update(/*clip_factor=*/1, *now);
  }
  update_.add(flats);
}

Result<void> OptimizerStep::check_gradient(const char* operation, double divisor,
                                           const FlatState& flat) const {
  const auto reason_of = [&](double squares) {
    return reason_to_skip(divisor, gradient_norm(context_.config, divisor, squares));
  };
  const std::vector<double>& partials = flat.grad.square_partials;
  const std::string reason = reason_of(sum_tree(partials));
  if (reason.empty()) return ok();
  const auto first = std::find_if(partials.begin(), partials.end(),
                                  [&](double squares) { return !reason_of(squares).empty(); });
  if (first == partials.end()) return refuse_gradient(operation, reason, flat.layout->name);
  constexpr ElementCount block(Compute::square_sum_block);
  const ElementCount begin = block * static_cast<std::uint64_t>(first - partials.begin());
  return refuse_gradient(operation, reason, context_.names().of(*flat.layout, begin, block));
}

/// What the error of a step that cannot be skipped for `reason` names: parameters or a flat of this rank, else a rank,
/// else all together, which may be too large where none is.
Error OptimizerStep::unusable_gradients(const std::string& reason,
                                        const std::vector<double>& squares_of_ranks) const {
  constexpr const char* operation = "Engine::step";
  for (const FlatState& flat : context_.flats) {
    if (flat.grad.absent) continue;
    if (const auto usable = check_gradient(operation, divisor(), flat); !usable) return usable.error();
  }
  for (std::size_t rank = 0; rank < squares_of_ranks.size() && squares_of_ranks.size() > 1; ++rank) {
    const GradientNorm norm = gradient_norm(context_.config, divisor(), squares_of_ranks[rank]);
    if (!reason_to_skip(divisor(), norm).empty())
      return refuse_gradient(operation, reason, "the gradients of rank " + std::to_string(rank));
  }
  return refuse_gradient(operation, reason, "all gradients together");
}

Result<StepOutcome> OptimizerStep::finish(std::uint32_t micro_batches,
                                          std::span<const std::uint32_t> units_without_gradient,
                                          WearLimit::Refuses refuses) {
  PENSTOCK_TRY_ASSIGN(const LearningRate now, learning_rate());
  const double loss_scale = loss_scaler_.scale();
  const StepSettings settings =
      step_settings(context_.config, {.number = context_.completed_steps + 1,
                                      .micro_batches = micro_batches,
                                      .learning_rate = now,
                                      .loss_scale = loss_scale,
                                      .units_without_gradient = units_without_gradient,
                                      .groups = groups_,
                                      .layout_hash = layout_hash_,
                                      .collectives_hash = context_.collective_trace.hash()});
  PENSTOCK_TRY_ASSIGN(const std::vector<double> squares_of_ranks, exchange_squares(settings, refuses));
  const GradientNorm norm = gradient_norm(context_.config, divisor(), sum_tree(squares_of_ranks));
  const bool may_skip = context_.config.skips_non_finite_gradients();
  StepOutcome outcome{.skip_reason = may_skip ? reason_to_skip(divisor(), norm) : std::string(),
                      .gradient_norm = norm.norm,
                      .clip_factor = norm.clip_factor,
                      .learning_rate = now.rate,
                      .loss_scale = loss_scale,
                      .step = context_.completed_steps + 1};
  if (context_.config.penstock.update_in_backward && !outcome.skip_reason.empty())
    return context_.fail(unusable_gradients(outcome.skip_reason, squares_of_ranks)).error();
  if (outcome.skip_reason.empty() && wear_.refuses != WearLimit::Refuses::this_step) {
    if (!update_.has_begun()) begin_update(norm.clip_factor, now);
    update_.add_others();
    return outcome;
  }
  outcome.kind = StepOutcome::Kind::skipped;
  outcome.step = context_.completed_steps;
  for (FlatState& flat : context_.flats) PENSTOCK_TRY(context_.discard_gradient(flat));
  return outcome;
}

double OptimizerStep::divisor() const {
  return gradient_divisor(context_.config, loss_scaler_.scale(), context_.communicator.size());
}

/// The sum of the squares of each rank's gradients: the same on all ranks.
Result<std::vector<double>> OptimizerStep::exchange_squares(const StepSettings& settings,
                                                            WearLimit::Refuses refuses) {
  std::vector<double> of_flats;
  for (const FlatState& flat : context_.flats) {
    of_flats.push_back(flat.grad.absent ? 0 : sum_tree(flat.grad.square_partials));
  }
  struct OfRank {
    double squares = 0;
    double refuses = 0;
    StepSettings settings;
  };
  const OfRank mine{
      .squares = sum_tree(of_flats), .refuses = static_cast<double>(refuses), .settings = settings};
  std::vector<OfRank> of_ranks(context_.communicator.size());
  PENSTOCK_TRY(context_.exchange(ConstHostSpan(std::span(&mine, 1)), HostSpan(std::span(of_ranks)),
                                 CollectiveSignature::Subject::gradient_norm));
  std::vector<double> squares_of_ranks;
  wear_ = {};
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    squares_of_ranks.push_back(of_ranks[rank].squares);
    const auto of_rank = static_cast<WearLimit::Refuses>(of_ranks[rank].refuses);
    if (of_rank > wear_.refuses) wear_ = {of_rank, rank};
    if (auto same = check_same_settings(of_ranks[0].settings, of_ranks[rank].settings, rank); !same) {
      return context_.fail(same.error()).error();
    }
  }
  return squares_of_ranks;
}

void OptimizerStep::begin_update(double clip_factor, const LearningRate& now) {
  OffloadedOptimizer::Step step{.number = context_.completed_steps + 1,
                                .gradient_factor = gradient_factor(divisor(), clip_factor)};
  if (context_.config.penstock.update_in_backward && context_.config.skips_non_finite_gradients())
    step.check_gradient = [this, by = divisor()](const FlatState& flat) {
      return check_gradient("Engine::reduce", by, flat);
    };
  const OptimizerConfig& optimizer = context_.config.optimizer;
  for (const OptimizerGroup& group : groups_) {
    step.settings.push_back(group_hyperparameters(optimizer, group, now));
    if (!cpu_adam::is_custom(optimizer.type))
      step.configs.push_back(hyperparameters(optimizer, step.settings.back()));
  }
  tiers::Ledger& ledger = context_.runtime.ledger();
  ledger.predict_traffic(tiers::Purpose::optimizer_tile, plan_.tile_reads, plan_.tile_writes);
  ledger.predict_traffic(tiers::Purpose::parameter_shard, plan_.update_shard_reads_max, plan_.shard_writes);
  if (context_.internals.memory_is_limited()) {  // then some have no home there
    const ByteCount shards = plan_.home_shards - plan_.home_frozen_shards;
    ledger.predict_traffic(tiers::Purpose::parameter_shard, shards, shards);
    ledger.predict_traffic(tiers::Purpose::optimizer_tile, plan_.home_tiles, plan_.home_tiles);
  }
  update_.begin(std::move(step));
}

}  // namespace penstock::zero
