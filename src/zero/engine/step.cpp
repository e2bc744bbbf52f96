#include "zero/engine/engine_state.hpp"
#include "zero/engine/step_arithmetic.hpp"

#include <algorithm>
#include <cmath>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace penstock::zero {

Result<StepOutcome> Engine::State::step() {
  PENSTOCK_TRY(usable("Engine::step"));
  if (!verdict_) {
    PENSTOCK_TRY(ready("Engine::step"));
    PENSTOCK_TRY(heard(runtime_.check_stores()));
    const TimePoint began = Clock::steady().now();
    PENSTOCK_TRY(residency_->settle_all(*this));
    const TimePoint gradient_wait = Clock::steady().now() - began;
    PENSTOCK_TRY(check_all_landed());
    PENSTOCK_TRY(residency_->drop_all(*this));  // the parameters change now
    auto verdict = judge();
    if (!verdict) return verdict.error();
    verdict_ = *verdict;
    verdict_->gradient_wait = gradient_wait;
  }

  StepOutcome outcome{.gradient_norm = verdict_->norm,
                      .clip_factor = verdict_->clip_factor,
                      .gradient_wait = verdict_->gradient_wait};
  if (!verdict_->finite) {
    outcome.kind = StepOutcome::Kind::skipped;
    outcome.skip_reason = "the gradient norm is not finite";
    outcome.step = current_step;
    for (FlatState& flat : flats_) runtime_.discard(flat.gradient);
    finish_step();
    return outcome;
  }

  const Config& config = options_.config;
  const auto updated = optimizer_.update(
      flats_, {.number = current_step + 1,
               .gradient_factor = gradient_factor(config, verdict_->clip_factor),
               .config = [&](std::uint32_t group) {
                 return adam_config(config.optimizer, options_.model.groups[group].weight_decay,
                                    learning_rate_);
               }});
  // Bytes that were wrong once are not to be trusted again, and half a tile may have been updated.
  if (!updated &&
      (updated.error().code() == ErrorCode::corrupted || updated.error().code() == ErrorCode::non_finite)) {
    return fail(updated.error()).error();
  }
  const auto outcome_here = heard(updated);
  if (failure_) return outcome_here.error();
  PENSTOCK_TRY(agree(outcome_here));
  outcome.step = ++current_step;
  const MemoryPlan& plan = options_.plan;
  runtime_.ledger().predict_traffic(tiers::Purpose::optimizer_tile, plan.tile_reads, plan.tile_writes);
  runtime_.ledger().predict_traffic(tiers::Purpose::parameter_shard,
                                    plan.shard_reads_max * micro_batches_ + plan.update_shard_reads_max,
                                    plan.shard_writes);
  finish_step();
  return outcome;
}

Result<void> Engine::State::check_all_landed() const {
  for (const FlatState& flat : flats_) {
    if (flat.landed == micro_batches_) continue;
    return Error::invalid_argument("Engine::step")
        .reason("a gradient is missing: not every unit was reduced in every micro-batch")
        .object(flat.layout->name)
        .wanted(micro_batches_)
        .got(flat.landed);
  }
  return ok();
}

/// The global norm and what follows from it, the same on all ranks.
Result<Engine::State::Verdict> Engine::State::judge() {
  std::vector<double> of_flats;
  for (const FlatState& flat : flats_) of_flats.push_back(sum_tree(flat.square_partials));
  const double mine = sum_tree(of_flats);
  std::vector<double> of_ranks(communicator_.size());
  PENSTOCK_TRY(exchange(ConstHostSpan(std::span(&mine, 1)), HostSpan(std::span(of_ranks))));

  Verdict verdict;
  const double squares = sum_tree(of_ranks);
  verdict.finite = std::isfinite(squares);
  const GradientNorm gradients = gradient_norm(options_.config, squares);
  verdict.norm = gradients.norm;
  verdict.clip_factor = gradients.clip_factor;
  return verdict;
}

Result<void> Engine::State::exchange(ConstHostSpan mine, HostSpan all) {
  bool done = false;
  std::optional<Error> error;
  swap::Move move;
  move.then(make_exchange_hop(*hops_, mine, all));
  move.on_event = [&](swap::HopState state, const Result<void>& result) {
    done = state == swap::HopState::done;
    if (!result) error = result.error();
  };
  runtime_.start(std::move(move));
  // Its turn comes: whoever calls has seen to it that no gather before it waits for room.
  runtime_.wait_for_rest([&] { return done; });
  if (error) return fail(*error);
  return ok();
}

/// Every rank has done its part, or none goes on.
Result<void> Engine::State::agree(const Result<void>& mine) {
  const std::uint8_t failed = mine ? 0 : 1;
  std::vector<std::uint8_t> of_ranks(communicator_.size());
  if (auto exchanged = exchange(ConstHostSpan(std::span(&failed, 1)), HostSpan(std::span(of_ranks)));
      !exchanged) {
    return mine ? exchanged : mine;
  }
  if (!mine) return mine;
  const auto rank = std::find(of_ranks.begin(), of_ranks.end(), 1);
  if (rank == of_ranks.end()) return ok();
  return Error(ErrorCode::peer_failed, "Engine::step")
      .reason("rank " + std::to_string(rank - of_ranks.begin()) + " did not finish the step")
      .advice("call step() again on every rank, once the cause is gone");
}

void Engine::State::finish_step() {
  verdict_.reset();
  for (FlatState& flat : flats_) flat.landed = 0;
  runtime_.end_round();
  residency_->end_step();
}

Result<std::string> Engine::State::digest() {
  PENSTOCK_TRY(ready("Engine::digest"));
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(), &XXH3_freeState);
  XXH3_128bits_reset(hash.get());
  auto visited = optimizer_.visit_masters(flats_, [&](std::span<const float> masters) {
    XXH3_128bits_update(hash.get(), masters.data(), masters.size_bytes());
  });
  if (!visited) return visited.error();
  PENSTOCK_TRY(residency_->drop_all(*this));
  runtime_.ledger().predict_traffic(tiers::Purpose::optimizer_tile, options_.plan.tile_reads, {});
  runtime_.ledger().predict_traffic(tiers::Purpose::parameter_shard, options_.plan.update_shard_reads_max,
                                    {});

  XXH128_canonical_t mine;
  XXH128_canonicalFromHash(&mine, XXH3_128bits_digest(hash.get()));
  std::vector<XXH128_canonical_t> of_ranks(communicator_.size());
  if (auto exchanged = exchange(ConstHostSpan(std::span(&mine, 1)), HostSpan(std::span(of_ranks)));
      !exchanged) {
    return exchanged.error();
  }
  XXH128_canonical_t all;
  XXH128_canonicalFromHash(&all, XXH3_128bits(of_ranks.data(), of_ranks.size() * sizeof(of_ranks[0])));
  std::string text;
  for (const unsigned char byte : all.digest) {
    static constexpr char hex[] = "0123456789abcdef";
    text += hex[byte >> 4];
    text += hex[byte & 15];
  }
  return text;
}

}  // namespace penstock::zero
