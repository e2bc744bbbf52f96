#include "zero/engine/optimizer_step.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace penstock::zero {

Result<void> OptimizerStep::begin(std::uint32_t micro_batches,
                                  std::span<const std::uint32_t> units_without_gradient, TimePoint waited) {
  const StepSettings settings = step_settings(context_.config, context_.model,
                                              {.number = context_.completed_steps + 1,
                                               .micro_batches = micro_batches,
                                               .learning_rate = learning_rate_,
                                               .units_without_gradient = units_without_gradient,
                                               .layout_hash = layout_hash_});
  PENSTOCK_TRY_ASSIGN(auto norm, compute_global_norm(settings));
  norm_ = norm;
  norm_->waited = waited;
  return ok();
}

/// Computes the norm of the gradients of all ranks. The result is the same on all ranks.
Result<OptimizerStep::GlobalNorm> OptimizerStep::compute_global_norm(const StepSettings& settings) {
  std::vector<double> of_flats;
  for (const FlatState& flat : context_.flats) {
    of_flats.push_back(flat.grad.absent ? 0 : sum_tree(flat.grad.square_partials));
  }
  struct OfRank {
    double squares = 0;
    StepSettings settings;
  };
  const OfRank mine{.squares = sum_tree(of_flats), .settings = settings};
  std::vector<OfRank> of_ranks(context_.communicator.size());
  PENSTOCK_TRY(context_.exchange(ConstHostSpan(std::span(&mine, 1)), HostSpan(std::span(of_ranks)),
                                 CollectiveSignature::Subject::gradient_norm));
  std::vector<double> squares_of_ranks;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    squares_of_ranks.push_back(of_ranks[rank].squares);
    if (auto same = check_same_settings(of_ranks[0].settings, of_ranks[rank].settings, rank); !same) {
      return context_.fail(same.error()).error();
    }
  }
  GlobalNorm result;
  const double squares = sum_tree(squares_of_ranks);
  result.gradients = gradient_norm(context_.config, squares);
  result.skip_reason = reason_to_skip(context_.config, result.gradients);
  return result;
}

Result<StepOutcome> OptimizerStep::finish() {
  StepOutcome outcome{.gradient_norm = norm_->gradients.norm,
                      .clip_factor = norm_->gradients.clip_factor,
                      .step = context_.completed_steps + 1,
                      .gradient_wait = norm_->waited};
  if (!norm_->skip_reason.empty()) {
    outcome.kind = StepOutcome::Kind::skipped;
    outcome.skip_reason = norm_->skip_reason;
    outcome.step = context_.completed_steps;
    for (FlatState& flat : context_.flats) PENSTOCK_TRY(context_.runtime.discard(flat.gradient));
    norm_.reset();
    return outcome;
  }
  PENSTOCK_TRY(update());
  tiers::Ledger& ledger = context_.runtime.ledger();
  ledger.predict_traffic(tiers::Purpose::optimizer_tile, plan_.tile_reads, plan_.tile_writes);
  ledger.predict_traffic(tiers::Purpose::parameter_shard, plan_.update_shard_reads_max, plan_.shard_writes);
  norm_.reset();
  return outcome;
}

Result<void> OptimizerStep::update() {
  const auto updated = optimizer_.update(
      context_.flats, {.number = context_.completed_steps + 1,
                       .gradient_factor = gradient_factor(context_.config, norm_->gradients.clip_factor),
                       .config = [this](std::uint32_t group) {
                         return adam_config(context_.config.optimizer,
                                            context_.model.groups[group].weight_decay, learning_rate_);
                       }});
  // Corrupted or non-finite data is a final error: a tile may have been updated in part.
  if (!updated &&
      (updated.error().code() == ErrorCode::corrupted || updated.error().code() == ErrorCode::non_finite)) {
    return context_.fail(updated.error());
  }
  const auto mine = context_.fail_unless_retryable(updated);
  if (context_.failure) return mine;
  return exchange_outcomes(mine);
}

/// Exchanges the outcomes of all ranks: succeeds only if every rank has succeeded.
Result<void> OptimizerStep::exchange_outcomes(const Result<void>& mine) {
  const std::uint8_t failed = mine ? 0 : 1;
  std::vector<std::uint8_t> of_ranks(context_.communicator.size());
  auto exchanged = context_.exchange(ConstHostSpan(std::span(&failed, 1)), HostSpan(std::span(of_ranks)),
                                     CollectiveSignature::Subject::step_outcome);
  if (!mine) return mine;
  if (!exchanged) return exchanged;
  const auto rank = std::find(of_ranks.begin(), of_ranks.end(), 1);
  if (rank == of_ranks.end()) return ok();
  return Error(ErrorCode::peer_failed, "Engine::step")
      .reason("rank " + std::to_string(rank - of_ranks.begin()) + " did not finish the step")
      .advice("remove the cause, then call step() again on every rank");
}

}  // namespace penstock::zero
