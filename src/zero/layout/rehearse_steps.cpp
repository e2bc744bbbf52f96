#include "zero/layout/rehearse_steps.hpp"

#include "zero/layout/padded.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <set>
#include <utility>

namespace penstock::zero {

namespace {
// Decisions repeat earlier. Of steps of more micro-batches, only the memory that they need is rehearsed.
constexpr std::uint32_t rehearsed_micro_batches_max = 16;

class NoEffects final : public FlatResidency::Effects {
 public:
  /// `may_drop`: a budget in which a flat must be dropped suffices.
  explicit NoEffects(bool may_drop) : may_drop_(may_drop) {}

 private:
  Result<void> gather(std::uint32_t) override { return ok(); }
  Result<void> drop(std::uint32_t) override {
    if (may_drop_) return ok();
    return Error(ErrorCode::budget_too_small, "rehearse_steps").reason("a flat that stays has no room");
  }
  Result<void> open_gradient(std::uint32_t) override { return ok(); }
  Result<void> reduce(std::span<const std::uint32_t>) override { return ok(); }
  Result<void> finish_gradient(std::uint32_t) override { return ok(); }

  const bool may_drop_;
};

// More than any model has, and less than the sums of a few of these overflow.
constexpr ByteCount unlimited(std::uint64_t{1} << 60);

/// What a rehearsal has and does.
struct Rehearsal {
  const ShardLayout& shards;
  DType dtype;
  InPlace in_place;
  const ResidencyLimits& limits;
  ByteCount gathered_in_place;  // the budget of leases
  ByteCount device;             // the budget of everything else
  bool gradients = true;        // whether full gradients are opened
};

/// The budgets of a rehearsal, and the residency that decides about them.
struct Rehearsed {
  /// Steps of `expected` micro-batches.
  Rehearsed(const Rehearsal& with, std::uint32_t expected)
      : device(tiers::Tier::device, with.device, ledger),
        leases(tiers::Tier::host, with.gathered_in_place, ledger, extent_alignment,
               tiers::MemoryBudget::Ranges::counted),
        residency(with.shards, with.dtype, with.in_place, with.limits,
                  {.gathered = with.in_place.parameters ? leases : device, .gradients = device},
                  unit_order(with.shards.unit_count(), expected)) {}

  tiers::Ledger ledger;
  tiers::MemoryBudget device, leases;
  FlatResidency residency;
};

Result<void> rehearse_micro_batches(const Rehearsal& with, std::uint32_t count, FlatResidency& residency) {
  NoEffects none(/*may_drop=*/!with.limits.whole);
  const std::size_t units = with.shards.unit_count();
  for (std::uint64_t i = 0; i < std::uint64_t{count} * 2 * units; ++i) {
    const std::uint32_t unit = unit_at(i, units);
    PENSTOCK_TRY(residency.acquire(unit, none));
    residency.lease(unit);
    const bool reduces = with.gradients && i / units % 2 == 1 && !with.shards.trained_by(unit).empty();
    if (reduces) PENSTOCK_TRY(residency.open_gradients(unit, none));
    residency.release(unit);
    if (!reduces) continue;
    for (const std::uint32_t flat : with.shards.trained_by(unit)) (void)residency.close_gradient(flat);
    PENSTOCK_TRY(residency.reduce_buckets(none));
  }
  return ok();
}

/// Rehearses the first `count` micro-batches of a step of `expected`. Returns where everything is after them.
Result<FlatResidency::Places> rehearse(const Rehearsal& with, std::uint32_t count, std::uint32_t expected) {
  Rehearsed rehearsed(with, expected);
  PENSTOCK_TRY(rehearse_micro_batches(with, count, rehearsed.residency));
  return rehearsed.residency.places();
}

/// Rehearses steps of more and more micro-batches until decisions repeat, and of `micro_batches` at least. A
/// micro-batch looks ahead into the next one at most: what it does follows from where everything is when it begins, and
/// from whether it is the last. From the first repetition on, nothing is new.
Result<void> rehearse_until_repeated(const Rehearsal& with, std::uint32_t micro_batches) {
  std::set<FlatResidency::Places> seen;
  for (std::uint32_t count = 1;; ++count) {
    PENSTOCK_TRY(rehearse(with, count, count));
    PENSTOCK_TRY_ASSIGN(auto places, rehearse(with, count, count + 1));
    const bool repeats = !seen.insert(std::move(places)).second;
    if (repeats || count >= std::max(micro_batches, rehearsed_micro_batches_max)) return ok();
  }
}

}  // namespace

Result<void> rehearse_steps(const ShardLayout& shards, DType dtype, InPlace in_place,
                            const ResidencyLimits& limits, std::uint32_t micro_batches, ByteCount budget) {
  return rehearse_until_repeated({.shards = shards,
                                  .dtype = dtype,
                                  .in_place = in_place,
                                  .limits = limits,
                                  .gathered_in_place = unlimited,
                                  .device = budget},
                                 micro_batches);
}

Result<void> rehearse_leases(const ShardLayout& shards, DType dtype, InPlace in_place,
                             const ResidencyLimits& limits, ByteCount budget) {
  PENSTOCK_CHECK(in_place.parameters);
  return rehearse_until_repeated({.shards = shards,
                                  .dtype = dtype,
                                  .in_place = in_place,
                                  .limits = limits,
                                  .gathered_in_place = budget,
                                  .device = {},
                                  .gradients = false},
                                 1);
}

Result<FlatPeaks> rehearse_peaks(const ShardLayout& shards, DType dtype, InPlace in_place,
                                 const ResidencyLimits& limits, std::uint32_t micro_batches, ByteCount budget,
                                 ByteCount leases) {
  using tiers::Purpose;
  const Rehearsal with{.shards = shards,
                       .dtype = dtype,
                       .in_place = in_place,
                       .limits = limits,
                       .gathered_in_place = leases,
                       .device = budget};
  const std::uint32_t count = std::min(micro_batches, rehearsed_micro_batches_max);
  Rehearsed rehearsed(with, count);
  FlatResidency& residency = rehearsed.residency;
  NoEffects none(/*may_drop=*/true);
  // What frozen flats keep from the first step is there from the start of the second.
  for (int step = 0; step < 2; ++step) {
    PENSTOCK_TRY(residency.begin_step(unit_order(shards.unit_count(), count), none));
    PENSTOCK_TRY(rehearse_micro_batches(with, count, residency));
    PENSTOCK_TRY(residency.finish_gradients(none));
    PENSTOCK_TRY(residency.drop_for_update("rehearse_peaks", none));
    residency.end_step();
  }
  const auto peak = [&](Purpose purpose) { return rehearsed.ledger.line(tiers::Tier::device, purpose).peak; };
  return FlatPeaks{.gathered = peak(Purpose::gathered_flat), .gradients = peak(Purpose::full_gradient)};
}

}  // namespace penstock::zero
