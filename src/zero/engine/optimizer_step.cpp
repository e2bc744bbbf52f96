#include "zero/engine/optimizer_step.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace penstock::zero {

Result<void> OptimizerStep::begin(TimePoint waited) {
  PENSTOCK_TRY_ASSIGN(auto norm, compute_global_norm());
  norm_ = norm;
  norm_->waited = waited;
  return ok();
}

/// Computes the norm of the gradients of all ranks. The result is the same on all ranks.
Result<OptimizerStep::GlobalNorm> OptimizerStep::compute_global_norm() {
  std::vector<double> of_flats;
  for (const FlatState& flat : context_.flats) of_flats.push_back(sum_tree(flat.grad.square_partials));
  const double mine = sum_tree(of_flats);
  std::vector<double> of_ranks(context_.communicator.size());
  PENSTOCK_TRY(context_.exchange(ConstHostSpan(std::span(&mine, 1)), HostSpan(std::span(of_ranks))));

  GlobalNorm result;
  const double squares = sum_tree(of_ranks);
  result.finite = std::isfinite(squares);
  result.gradients = gradient_norm(context_.config, squares);
  return result;
}

Result<StepOutcome> OptimizerStep::finish(std::uint64_t number, std::uint32_t micro_batches) {
  StepOutcome outcome{.gradient_norm = norm_->gradients.norm,
                      .clip_factor = norm_->gradients.clip_factor,
                      .step = number,
                      .gradient_wait = norm_->waited};
  if (!norm_->finite) {
    outcome.kind = StepOutcome::Kind::skipped;
    outcome.skip_reason = "the gradient norm is not finite";
    outcome.step = number - 1;
    for (FlatState& flat : context_.flats) context_.runtime.discard(flat.gradient);
    norm_.reset();
    return outcome;
  }
  PENSTOCK_TRY(update(number));
  tiers::Ledger& ledger = context_.runtime.ledger();
  ledger.predict_traffic(tiers::Purpose::optimizer_tile, plan_.tile_reads, plan_.tile_writes);
  ledger.predict_traffic(tiers::Purpose::parameter_shard,
                         plan_.shard_reads_max * micro_batches + plan_.update_shard_reads_max,
                         plan_.shard_writes);
  norm_.reset();
  return outcome;
}

Result<void> OptimizerStep::update(std::uint64_t number) {
  const auto updated = optimizer_.update(
      context_.flats, {.number = number,
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
  auto exchanged = context_.exchange(ConstHostSpan(std::span(&failed, 1)), HostSpan(std::span(of_ranks)));
  if (!mine) return mine;
  if (!exchanged) return exchanged;
  const auto rank = std::find(of_ranks.begin(), of_ranks.end(), 1);
  if (rank == of_ranks.end()) return ok();
  return Error(ErrorCode::peer_failed, "Engine::step")
      .reason("rank " + std::to_string(rank - of_ranks.begin()) + " did not finish the step")
      .advice("remove the cause, then call step() again on every rank");
}

}  // namespace penstock::zero
