#include "zero/layout/flat_residency.hpp"

#include "kit/cluster.hpp"
#include "kit/seeded_random.hpp"
#include "zero/layout/device_plan.hpp"
#include "zero/layout/padded.hpp"
#include "zero/layout/rehearse_steps.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <string>
#include <vector>

namespace penstock::zero {
namespace {

/// Records the decisions, and fails once, at effect number `fail_at`.
class Recorder final : public FlatResidency::Effects {
 public:
  explicit Recorder(std::uint64_t fail_at) : fail_at_(fail_at) {}
  std::vector<std::string> decisions;
  std::uint64_t asked = 0;

 private:
  Result<void> note(std::string what) {
    // An effect's lack of memory, such as host memory for the update that it waits for, is none of the device's.
    if (asked++ == fail_at_)
      return Error(fail_at_ % 2 == 0 ? ErrorCode::io : ErrorCode::budget_too_small, "Recorder");
    decisions.push_back(std::move(what));
    return ok();
  }
  Result<void> note(const char* what, std::uint32_t flat) { return note(what + std::to_string(flat)); }
  Result<void> gather(std::uint32_t flat) override { return note("gather ", flat); }
  Result<void> drop(std::uint32_t flat) override { return note("drop ", flat); }
  Result<void> open_gradient(std::uint32_t flat) override { return note("open ", flat); }
  Result<void> reduce(std::span<const std::uint32_t> flats) override {
    std::string what = "reduce";
    for (const std::uint32_t flat : flats) what.append(" ").append(std::to_string(flat));
    return note(std::move(what));
  }
  Result<void> finish_gradient(std::uint32_t flat) override { return note("finish ", flat); }

  std::uint64_t fail_at_;
};

struct Use {
  std::uint32_t unit = 0;
  bool backward = false;
};

/// The forward; and the backward, before which the forward of so many units is computed again. 0: of none.
std::vector<Use> micro_batch(std::uint32_t units, std::uint32_t recomputed) {
  std::vector<Use> uses;
  for (std::uint32_t unit = 0; unit < units; ++unit) uses.push_back({unit});
  for (std::uint32_t unit = units; unit-- > 0;) {
    const bool ends_segment = recomputed > 0 && ((unit + 1) % recomputed == 0 || unit + 1 == units);
    for (std::uint32_t first = ends_segment ? unit / recomputed * recomputed : unit + 1; first <= unit;
         ++first)
      uses.push_back({first});
    uses.push_back({unit, true});
  }
  return uses;
}

struct RunShape {
  ResidencyLimits limits = {};
  std::uint32_t recomputed = 0;
  int steps = 2;
  bool repeats = false;  // calls that succeed too
};

/// Steps in the given memory; calls that fail are made again.
Recorder run(const ModelLayout& model, ByteCount budget, const RunShape& shape,
             std::uint64_t fail_at = ~std::uint64_t{}) {
  const ShardLayout shards(model, 2);
  tiers::Ledger ledger;
  tiers::MemoryBudget memory(tiers::Tier::device, budget, ledger);
  const auto order = unit_order(model.units.size(), 2);
  FlatResidency residency(shards, DType::bf16, {}, shape.limits, {.gathered = memory, .gradients = memory},
                          order);
  Recorder recorder(fail_at);
  const auto persist = [&](const auto& call) {
    EXPECT_TRUE(call() || call());
    EXPECT_TRUE(!shape.repeats || call());
  };
  std::vector<Use> uses = micro_batch(static_cast<std::uint32_t>(model.units.size()), shape.recomputed);
  const std::vector<Use> second = uses;
  uses.insert(uses.end(), second.begin(), second.end());
  for (int step = 0; step < shape.steps; ++step) {
    persist([&] { return residency.begin_step(order, recorder); });
    for (const auto& [unit, backward] : uses) {
      persist([&] { return residency.acquire(unit, recorder); });
      residency.lease(unit);
      if (backward) persist([&] { return residency.open_gradients(unit, recorder); });
      residency.release(unit);
      if (!backward) continue;
      for (const std::uint32_t flat : shards.needed_by(unit)) (void)residency.close_gradient(flat);
      persist([&] { return residency.reduce_buckets(recorder); });
    }
    persist([&] { return residency.finish_gradients(recorder); });
    persist([&] { return residency.drop_all("test", recorder); });
    residency.end_step();
  }
  EXPECT_EQ(memory.free(), memory.size());
  return recorder;
}

void expect_same(const Recorder& wanted, const Recorder& got) {
  const auto differs = std::mismatch(wanted.decisions.begin(), wanted.decisions.end(), got.decisions.begin(),
                                     got.decisions.end());
  EXPECT_EQ(differs.first, wanted.decisions.end()) << "decision " << differs.first - wanted.decisions.begin();
  EXPECT_EQ(got.decisions.size(), wanted.decisions.size());
}

/// Compares a run with those in which one call fails and is made again, and with one that makes each call twice.
void expect_same_when_repeated(const ModelLayout& model, ByteCount budget, RunShape shape) {
  const Recorder clean = run(model, budget, shape);
  for (std::uint64_t fail_at = 0; fail_at < clean.asked; ++fail_at) {
    SCOPED_TRACE("failed at " + std::to_string(fail_at));
    expect_same(clean, run(model, budget, shape, fail_at));
  }
  shape.repeats = true;
  expect_same(clean, run(model, budget, shape));
}

TEST(FlatResidency, MakesTheSameDecisionsWhenACallIsRepeated) {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    penstock::test::SeededRandom random(seed);
    const ModelLayout model = seed == 0 ? test::deep_model() : test::random_model(random);
    for (const bool overlap : {true, false}) {
      const ResidencyLimits limits{.reduce_bucket = ElementCount(45'000), .overlap = overlap};
      ByteCount budget = 4_KiB + 16_KiB * seed;
      while (!rehearse_steps(ShardLayout(model, 2), DType::bf16, {}, limits, 2, budget)) budget += 4_KiB;
      for (const std::uint32_t recomputed : {0u, 1u, 2u}) {
        SCOPED_TRACE("seed " + std::to_string(seed) + ", overlap " + std::to_string(overlap) +
                     ", recomputed " + std::to_string(recomputed));
        // Of three steps the last one follows the order of the first two.
        expect_same_when_repeated(
            model, budget, {.limits = limits, .recomputed = recomputed, .steps = recomputed == 0 ? 2 : 3});
      }
    }
  }
}

TEST(FlatResidency, DropsTheFlatNeededLastAndNeverTheOneNeededNext) {
  ModelLayout model;
  for (int i = 0; i < 4; ++i) model.units.push_back({"unit", {{"weight", ElementCount(2048)}}, {}});
  const ShardLayout shards(model, 2);
  tiers::Ledger ledger;
  tiers::MemoryBudget memory(tiers::Tier::device, 12_KiB, ledger);  // three of the four flats
  FlatResidency residency(shards, DType::bf16, {}, {}, {.gathered = memory, .gradients = memory},
                          {0, 1, 2, 3, 3, 2, 1, 0});
  Recorder recorder(~std::uint64_t{});
  for (const std::uint32_t unit : {0u, 1u, 2u, 3u}) {
    ASSERT_TRUE(residency.acquire(unit, recorder));
    residency.lease(unit);
    residency.release(unit);
  }

  EXPECT_EQ(recorder.decisions,
            (std::vector<std::string>{"gather 0", "gather 1", "gather 2", "drop 0", "gather 3"}));
}

TEST(FlatResidency, DropsNothingWhileAUnitIsLeased) {
  ModelLayout model;
  model.units.push_back({"unit", {{"weight", ElementCount(2048)}}, {}});
  const ShardLayout shards(model, 2);
  tiers::Ledger ledger;
  tiers::MemoryBudget memory(tiers::Tier::device, 8_KiB, ledger);
  FlatResidency residency(shards, DType::bf16, {}, {}, {.gathered = memory, .gradients = memory}, {0, 0});
  Recorder recorder(~std::uint64_t{});
  ASSERT_TRUE(residency.acquire(0, recorder));
  residency.lease(0);

  EXPECT_EQ(residency.drop_all("test", recorder).error().code(), ErrorCode::failed_state);
  EXPECT_TRUE(residency.is_gathered(0));
  residency.release(0);
  EXPECT_TRUE(residency.drop_all("test", recorder));
  EXPECT_FALSE(residency.is_gathered(0));
}

TEST(FlatResidency, ReportsABudgetThatIsTooSmall) {
  ModelLayout model;
  model.units.push_back({"unit", {{"weight", ElementCount(2048)}}, {}});
  const ShardLayout shards(model, 2);

  EXPECT_EQ(rehearse_steps(shards, DType::bf16, {}, {}, 1, 4_KiB).error().code(),
            ErrorCode::budget_too_small);
  EXPECT_TRUE(rehearse_steps(shards, DType::bf16, {}, {}, 1, 8_KiB));
}

// The units that follow each other in the layout fit side by side, the ones that follow each other in use do not.
TEST(FlatResidency, DropsTheUnitThatIsNeededNextRatherThanRefuseTheOneThatIsNeededNow) {
  ModelLayout model;
  for (const std::uint64_t elements : {16384u, 128u, 16384u}) {
    model.units.push_back({"unit", {{"weight", ElementCount(elements)}}, {}});
  }
  const ShardLayout shards(model, 1);
  tiers::Ledger ledger;
  tiers::MemoryBudget memory(tiers::Tier::device, 40_KiB, ledger);
  FlatResidency residency(shards, DType::bf16, {}, {}, {.gathered = memory, .gradients = memory},
                          {0, 2, 0, 2, 0, 2});
  for (std::uint64_t fail_at = 0; fail_at < 3; ++fail_at) {
    Recorder recorder(fail_at);
    for (const std::uint32_t unit : {0u, 2u}) {
      ASSERT_TRUE(residency.acquire(unit, recorder) || residency.acquire(unit, recorder)) << fail_at;
      residency.lease(unit);
      residency.release(unit);
    }
    EXPECT_TRUE(residency.is_gathered(2));
    EXPECT_FALSE(residency.is_gathered(0));
  }
}

/// One lease at a time: forward, backward, then units in any order, as an evaluation acquires them. In some steps the
/// forward's order is another one, and the lease ends before the gradients are opened.
Result<void> train_and_evaluate(const ShardLayout& shards, std::uint32_t micro_batches,
                                std::uint32_t recomputed, InPlace in_place, const ResidencyLimits& limits,
                                FlatResidency::Budgets budgets, penstock::test::SeededRandom& random) {
  const auto units = static_cast<std::uint32_t>(shards.unit_count());
  const auto order = unit_order(units, micro_batches);
  FlatResidency residency(shards, DType::bf16, in_place, limits, budgets, order);
  Recorder recorder(~std::uint64_t{});
  const auto use = [&](std::uint32_t unit, bool backward, bool leased = true) -> Result<void> {
    PENSTOCK_TRY(residency.acquire(unit, recorder));
    residency.lease(unit);
    if (!leased) residency.release(unit);
    if (backward) PENSTOCK_TRY(residency.open_gradients(unit, recorder));
    if (leased) residency.release(unit);
    if (!backward) return ok();
    for (const std::uint32_t flat : shards.needed_by(unit)) (void)residency.close_gradient(flat);
    return residency.reduce_buckets(recorder);
  };
  for (int step = 0; step < 12; ++step) {
    const bool shuffled = step % 6 == 5;
    PENSTOCK_TRY(residency.begin_step(order, recorder));
    for (std::uint32_t i = 0; i < micro_batches; ++i) {
      std::vector<Use> uses = micro_batch(units, recomputed);
      for (std::uint32_t u = units; shuffled && u > 1; --u) std::swap(uses[u - 1], uses[random.below(u)]);
      for (const auto& [unit, backward] : uses) PENSTOCK_TRY(use(unit, backward, !(backward && shuffled)));
    }
    PENSTOCK_TRY(residency.finish_gradients(recorder));
    PENSTOCK_TRY(residency.drop_all("test", recorder));
    residency.end_step();
    for (std::uint64_t i = 0; i < units; ++i) {
      PENSTOCK_TRY(use(static_cast<std::uint32_t>(step % 2 == 0 ? i : random.below(units)), false));
    }
  }
  return ok();
}

bool shares_parameters(const ModelLayout& model) {
  return std::any_of(model.units.begin(), model.units.end(),
                     [](const UnitLayout& unit) { return !unit.shared.empty(); });
}

TEST(FlatResidency, GathersAnyUnitWhileNoneIsLeasedInTheSmallestBudget) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    penstock::test::SeededRandom random(seed);
    Config config = test::RunOptions::default_config();
    config.offload_param = {.device = OffloadDevice::nvme, .nvme_paths = {"."}};
    const ModelLayout model = test::random_model(random);
    config.overlap_comm = seed % 2 == 0;
    config.gradient_accumulation_steps = 1 + static_cast<std::uint32_t>(seed / 8 % 2 * 2);
    const auto recomputed = static_cast<std::uint32_t>(seed / 2 % 4);
    const ShardLayout shards(model, 1);
    for (const auto memory : {tiers::DeviceMemory::host, tiers::DeviceMemory::separate}) {
      const MemoryPlan plan = plan_memory(config, model, 1, 1, memory).value();
      tiers::Ledger ledger;
      // If units share a gradient, the least may be too small for another order than the expected one.
      const bool more = memory == tiers::DeviceMemory::separate && shares_parameters(model);
      tiers::MemoryBudget device(tiers::Tier::device, plan.device_flats() * (more ? 2u : 1u), ledger);
      tiers::MemoryBudget leases(tiers::Tier::host, plan.host_leases, ledger, extent_alignment,
                                 tiers::MemoryBudget::Ranges::counted);
      const auto trained =
          train_and_evaluate(shards, config.gradient_accumulation_steps, recomputed,
                             in_place_of(plan, config), limits_of(plan, config, shards),
                             {.gathered = plan.shares_memory ? leases : device, .gradients = device}, random);
      ASSERT_TRUE(trained) << "seed " << seed << ", recomputed " << recomputed << ": "
                           << trained.error().message();
    }
  }
}

TEST(UnitOrder, IsThatOfEachMicroBatchUpToALimit) {
  EXPECT_EQ(unit_order(3, 2), (std::vector<std::uint32_t>{0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0}));
  EXPECT_TRUE(unit_order(3, 0).empty());
  EXPECT_TRUE(unit_order(0, 3).empty());
  EXPECT_EQ(unit_order(3, 4'000'000'000).size(), std::size_t{1} << 20);
  EXPECT_EQ(unit_order(600'000, 2).size(), 1'200'000u);
}

TEST(RehearseSteps, GoesOnWhereTheOrderIsNoLongerPredicted) {
  // Two micro-batches acquire a little more than the 2^20 units that are predicted.
  ModelLayout model;
  for (int unit = 0; unit < 264'000; ++unit) {
    model.units.push_back({.name = "", .parameters = {{"", ElementCount(128), 0}}});
  }
  const auto rehearsed = rehearse_peaks(ShardLayout(model, 1), DType::bf16, {}, {}, 2, 16_KiB, {});

  EXPECT_TRUE(rehearsed) << rehearsed.error().message();
}

}  // namespace
}  // namespace penstock::zero
