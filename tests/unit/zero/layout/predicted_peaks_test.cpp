// What a plan predicts of the device by purpose bounds every order of use: the layout does not say in which order, how
// often, and how many at a time a trainer uses its units.
#include "kit/cluster.hpp"
#include "kit/seeded_random.hpp"
#include "zero/layout/device_plan.hpp"
#include "zero/layout/flat_residency.hpp"
#include "zero/layout/padded.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace penstock::zero {
namespace {

using penstock::test::SeededRandom;
using tiers::Purpose;
using tiers::Tier;

class NoEffects final : public FlatResidency::Effects {
  Result<void> gather(std::uint32_t) override { return ok(); }
  Result<void> drop(std::uint32_t) override { return ok(); }
  Result<void> open_gradient(std::uint32_t) override { return ok(); }
  Result<void> reduce(std::span<const std::uint32_t>) override { return ok(); }
  Result<void> finish_gradient(std::uint32_t) override { return ok(); }
};

struct Training {
  ModelLayout model;
  Config config = test::RunOptions::default_config();
  std::uint32_t ranks = 1;
  tiers::DeviceMemory memory{};

  [[nodiscard]] MemoryPlan plan() const { return plan_memory(config, model, ranks, ranks, memory).value(); }
};

/// Zero, less than a unit, a few units, or as good as unlimited.
ElementCount random_limit(SeededRandom& random) {
  const std::uint64_t most = std::array<std::uint64_t, 4>{1, 5'000, 100'000, 1'000'000'000}[random.below(4)];
  return ElementCount(random.below(most));
}

Training random_training(SeededRandom& random) {
  Training training{
      .model = test::random_model(random),
      .ranks = static_cast<std::uint32_t>(1 + random.below(2)),
      .memory = random.below(2) == 0 ? tiers::DeviceMemory::host : tiers::DeviceMemory::separate};
  Config& config = training.config;
  if (random.below(2) == 0) config.grad_accum_dtype = DType::fp32;
  config.gradient_accumulation_steps = static_cast<std::uint32_t>(1 + random.below(3));
  config.train_batch_size = config.gradient_accumulation_steps * training.ranks;
  config.reduce_bucket_size = random_limit(random) + ElementCount(1);
  config.prefetch_bucket_size = random_limit(random);
  config.max_live_parameters = random_limit(random);
  if (random.below(2) == 0) config.overlap_comm = random.below(2) == 0;
  if (random.below(3) == 0) config.offload_param = {.device = OffloadDevice::nvme, .nvme_paths = {"."}};
  if (random.below(4) == 0) return training;
  config.penstock.device_budget = training.plan().device_minimum + ByteCount(random.below(500'000));
  return training;
}

/// A trainer of steps in orders that no plan knows: units that are used twice or in another order, leases that are held
/// beside others, gradients of several units at a time, evaluations, and steps that are abandoned.
class AnyTrainer {
 public:
  AnyTrainer(const Training& training, const MemoryPlan& plan, SeededRandom& random)
      : training_(training),
        random_(random),
        units_(static_cast<std::uint32_t>(training.model.units.size())),
        shards_(training.model, training.ranks),
        device_(Tier::device, plan.device_flats(), ledger),
        leases_(Tier::host, plan.host_leases, unused_, extent_alignment,
                tiers::MemoryBudget::Ranges::counted),
        residency_(shards_, training.config.dtype, in_place_of(plan, training.config),
                   limits_of(plan, training.config, shards_),
                   {.gathered = plan.shares_memory ? leases_ : device_, .gradients = device_}, order()) {}

  void train(int steps) {
    for (int step = 0; step < steps; ++step) {
      ASSERT_TRUE(residency_.begin_step(order(), none_));
      if (try_step()) {
        ++completed;
      } else {
        abandon();
      }
      for (std::uint64_t uses = random_.below(4); uses > 0; --uses) (void)use(random_unit());
      release_leases();
    }
  }

  tiers::Ledger ledger;
  int completed =
      0;  ///< steps; the others were abandoned, because what was held at a time exceeds the budget

 private:
  [[nodiscard]] std::vector<std::uint32_t> order() const {
    return unit_order(units_, training_.config.gradient_accumulation_steps);
  }
  [[nodiscard]] std::uint32_t random_unit() { return static_cast<std::uint32_t>(random_.below(units_)); }

  Result<void> try_step() {
    std::vector<std::uint32_t> forward(units_);
    std::iota(forward.begin(), forward.end(), 0u);
    if (random_.below(2) == 0) shuffle(forward);
    for (std::uint64_t again = random_.below(3); again > 0; --again) {
      forward.insert(forward.begin() + static_cast<std::ptrdiff_t>(random_.below(forward.size() + 1)),
                     random_unit());
    }
    const bool piles_up = random_.below(3) == 0;
    for (std::uint32_t m = 0; m < training_.config.gradient_accumulation_steps; ++m) {
      for (const std::uint32_t unit : forward) PENSTOCK_TRY(use(unit));
      PENSTOCK_TRY(backward(forward, piles_up));
    }
    release_leases();
    PENSTOCK_TRY(residency_.finish_gradients(none_));
    PENSTOCK_TRY(residency_.drop_all("test", none_));
    residency_.end_step();
    return ok();
  }

  void shuffle(std::vector<std::uint32_t>& units) {
    for (std::size_t i = units.size(); i > 1; --i) std::swap(units[i - 1], units[random_.below(i)]);
  }

  /// A unit reduces its gradient with its last use. If it `piles_up`, that of several units at a time.
  Result<void> backward(const std::vector<std::uint32_t>& forward, bool piles_up) {
    std::vector<std::uint32_t> open;
    for (auto unit = forward.rbegin(); unit != forward.rend(); ++unit) {
      PENSTOCK_TRY(use(*unit));
      if (std::find(unit + 1, forward.rend(), *unit) != forward.rend()) continue;
      PENSTOCK_TRY(residency_.open_gradients(*unit, none_));
      open.push_back(*unit);
      if (!piles_up || random_.below(3) == 0) PENSTOCK_TRY(reduce(std::exchange(open, {})));
    }
    return reduce(open);
  }

  Result<void> reduce(const std::vector<std::uint32_t>& units) {
    for (const std::uint32_t unit : units) {
      for (const std::uint32_t flat : shards_.needed_by(unit)) (void)residency_.close_gradient(flat);
      PENSTOCK_TRY(residency_.reduce_buckets(none_));
    }
    return ok();
  }

  /// Most leases end before the next unit is acquired.
  Result<void> use(std::uint32_t unit) {
    if (random_.below(5) != 0) release_leases();
    PENSTOCK_TRY(residency_.acquire(unit, none_));
    residency_.lease(unit);
    leased_.push_back(unit);
    return ok();
  }
  void release_leases() {
    for (const std::uint32_t unit : std::exchange(leased_, {})) residency_.release(unit);
  }
  void abandon() {
    release_leases();
    residency_.abandon_step(order());
  }

  const Training& training_;
  SeededRandom& random_;
  const std::uint32_t units_;
  NoEffects none_;
  const ShardLayout shards_;
  tiers::Ledger unused_;
  tiers::MemoryBudget device_, leases_;
  FlatResidency residency_;
  std::vector<std::uint32_t> leased_;
};

TEST(PredictedPeaks, BoundEveryOrderOfUseAndAreReachedBySome) {
  int completed = 0, reached = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SeededRandom random(seed);
    const Training training = random_training(random);
    const MemoryPlan plan = training.plan();
    AnyTrainer trainer(training, plan, random);

    trainer.train(6);

    const ByteCount gathered = trainer.ledger.line(Tier::device, Purpose::gathered_flat).peak;
    const ByteCount gradients = trainer.ledger.line(Tier::device, Purpose::full_gradient).peak;
    EXPECT_LE(gathered.value(), plan.device_gathered_max.value()) << "seed " << seed;
    EXPECT_LE(gradients.value(), plan.device_gradients_max.value()) << "seed " << seed;
    EXPECT_LE(trainer.ledger.peak(Tier::device), plan.device_flats()) << "seed " << seed;
    if (gathered == plan.device_gathered_max && gradients == plan.device_gradients_max) ++reached;
    completed += trainer.completed;
  }
  EXPECT_GT(completed, 2000);
  EXPECT_GT(reached, 100);
}

}  // namespace
}  // namespace penstock::zero
