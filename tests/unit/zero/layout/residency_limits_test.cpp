// What the limits of a configuration make FlatResidency decide: buckets, gathers ahead, parameters that stay.
#include "zero/layout/residency_limits.hpp"

#include "zero/layout/device_plan.hpp"
#include "zero/layout/flat_residency.hpp"
#include "zero/layout/unit_needs.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::zero {
namespace {

using Decisions = std::vector<std::string>;

constexpr ElementCount unit_elements{2048};

/// Units of 2048 elements, 4 KiB in bf16, each with one flat.
struct Device final : FlatResidency::Effects {
  Device(std::uint32_t units, ByteCount size, const ResidencyLimits& limits, std::vector<std::uint32_t> order)
      : Device(layout(units), size, limits, std::move(order)) {}
  Device(const ModelLayout& model, ByteCount size, const ResidencyLimits& limits,
         std::vector<std::uint32_t> order)
      : shards(model, 2),
        memory(tiers::Tier::device, size, ledger),
        residency(shards, DType::bf16, {}, limits, {.gathered = memory, .gradients = memory},
                  std::move(order)) {}

  static ModelLayout layout(std::uint32_t units) {
    ModelLayout model;
    for (std::uint32_t i = 0; i < units; ++i)
      model.units.push_back({"unit" + std::to_string(model.units.size()), {{"weight", unit_elements}}, {}});
    return model;
  }

  void use(std::uint32_t unit) {
    ASSERT_TRUE(residency.acquire(unit, *this));
    residency.lease(unit);
    residency.release(unit);
  }
  void reduce(std::uint32_t unit) {
    ASSERT_TRUE(residency.open_gradients(unit, *this));
    ASSERT_TRUE(residency.close_gradient(unit));
    ASSERT_TRUE(residency.reduce_buckets(*this));
  }
  void use_and_reduce(std::uint32_t unit) {
    use(unit);
    reduce(unit);
  }
  void end_step() {
    ASSERT_TRUE(residency.finish_gradients(*this));
    ASSERT_TRUE(residency.drop_all("test", *this));
    residency.end_step();
  }
  /// Since the last call, those that begin with `what`.
  Decisions take(const std::string& what) {
    Decisions found;
    for (std::string& one : std::exchange(decisions, {})) {
      if (one.starts_with(what)) found.push_back(std::move(one));
    }
    return found;
  }

  ShardLayout shards;
  tiers::Ledger ledger;
  tiers::MemoryBudget memory;
  FlatResidency residency;
  Decisions decisions;

 private:
  Result<void> note(std::string what) {
    decisions.push_back(std::move(what));
    return ok();
  }
  Result<void> gather(std::uint32_t flat) override { return note("gather " + std::to_string(flat)); }
  Result<void> drop(std::uint32_t flat) override { return note("drop " + std::to_string(flat)); }
  Result<void> open_gradient(std::uint32_t flat) override { return note("open " + std::to_string(flat)); }
  Result<void> reduce(std::span<const std::uint32_t> flats) override {
    std::string what = "reduce";
    for (const std::uint32_t flat : flats) what.append(" ").append(std::to_string(flat));
    return note(std::move(what));
  }
  Result<void> finish_gradient(std::uint32_t flat) override { return note("finish " + std::to_string(flat)); }
};

constexpr ByteCount roomy = 1_MiB;

TEST(Buckets, ReduceGradientsTogetherUpToTheLimitAndTheEndOfAMicroBatch) {
  Device device(5, roomy, {.reduce_bucket = unit_elements * 2}, unit_order(5, 2));
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    for (const std::uint32_t unit : {0u, 1u, 2u, 3u, 4u}) device.use(unit);
    for (const std::uint32_t unit : {4u, 3u, 2u, 1u}) device.use_and_reduce(unit);
    EXPECT_EQ(device.take("reduce"), (Decisions{"reduce 4 3", "reduce 2 1"}));
    device.use_and_reduce(0);
    EXPECT_EQ(device.take("reduce"), (Decisions{"reduce 0"}));
  }
}

TEST(Buckets, AreClosedAsSoonAsTheNextGradientsHaveNoRoomInThem) {
  Device device(3, roomy, {.reduce_bucket = unit_elements * 2}, {2, 1, 0});
  device.use_and_reduce(2);
  EXPECT_EQ(device.take("reduce"), Decisions{});
  device.use_and_reduce(1);
  EXPECT_EQ(device.take("reduce"), (Decisions{"reduce 2 1"}));
}

TEST(Buckets, AreOfOneGradientWhereALimitIsSmallerThanIt) {
  Device device(3, roomy, {.reduce_bucket = ElementCount(1)}, {});
  for (const std::uint32_t unit : {2u, 1u, 0u}) device.use_and_reduce(unit);
  EXPECT_EQ(device.take("reduce"), (Decisions{"reduce 2", "reduce 1", "reduce 0"}));
}

TEST(Buckets, ExpectNoGradientOfUnitsThatGetNone) {
  Device device(3, roomy, {}, unit_order(3, 1));
  device.residency.expect_no_gradients(std::array<std::uint32_t, 1>{1});
  for (const std::uint32_t unit : {2u, 0u}) device.use_and_reduce(unit);
  EXPECT_EQ(device.take("reduce"), (Decisions{"reduce 2 0"}));
}

TEST(Buckets, AreClosedWhenAGradientIsOpenedAgain) {
  Device device(3, roomy, {}, {});
  device.use_and_reduce(2);
  EXPECT_EQ(device.take("reduce"), Decisions{});
  device.use_and_reduce(2);
  EXPECT_EQ(device.take("reduce"), (Decisions{"reduce 2"}));
}

TEST(Buckets, AreClosedWhenTheirMemoryIsNeeded) {
  // Two gathered units and two gradients. The order is not predicted, so that nothing says in advance what comes.
  Device device(4, 16_KiB, {}, {});
  device.use_and_reduce(3);
  EXPECT_EQ(device.take("reduce"), Decisions{});
  device.use_and_reduce(2);
  device.reduce(1);
  ASSERT_EQ(device.take("reduce").front(), "reduce 3");
}

TEST(Buckets, AreClosedAtTheEndOfAStep) {
  Device device(3, roomy, {}, unit_order(3, 1));
  device.use_and_reduce(2);
  device.use_and_reduce(1);
  device.end_step();
  EXPECT_EQ(device.take("reduce"), (Decisions{"reduce 2 1"}));
  EXPECT_EQ(device.memory.free(), device.memory.size());
}

TEST(Buckets, AreForgottenWithAnAbandonedStep) {
  Device device(3, roomy, {}, unit_order(3, 1));
  device.use_and_reduce(2);
  device.residency.abandon_step(unit_order(3, 1));
  EXPECT_EQ(device.memory.free(), device.memory.size());
  device.decisions.clear();

  for (const std::uint32_t unit : {0u, 1u, 2u}) device.use(unit);
  for (const std::uint32_t unit : {2u, 1u, 0u}) device.use_and_reduce(unit);
  EXPECT_EQ(device.take("reduce"), (Decisions{"reduce 2 1 0"}));
}

TEST(Buckets, HoldTheirMemoryOneAtATimeWithoutOverlap) {
  for (const bool overlap : {true, false}) {
    Device device(4, roomy, {.reduce_bucket = ElementCount(1), .overlap = overlap}, {});
    device.use_and_reduce(3);
    EXPECT_EQ(device.take("finish"), Decisions{});
    device.use(2);
    EXPECT_EQ(device.take("finish"), overlap ? Decisions{} : Decisions{"finish 3"});
  }
}

TEST(Buckets, TakeTheMemoryOfOneUnitLessWithoutOverlap) {
  Config config{.stage = 3};
  config.param_persistence_threshold = {};
  config.dtype = config.grad_accum_dtype = DType::bf16;
  const auto plan = [&] { return plan_memory(config, Device::layout(6), 2, 2).value(); };
  const MemoryPlan overlapping = plan();
  config.overlap_comm = false;
  const MemoryPlan waiting = plan();

  EXPECT_EQ(overlapping.device_flats(), 16_KiB);  // beside two units
  EXPECT_EQ(overlapping.device_minimum - waiting.device_minimum, 4_KiB);
}

TEST(Prefetch, GathersUnitsAheadWhileFewerElementsAreThanTheLimit) {
  const std::vector<std::uint32_t> order = {0, 1, 2, 3, 4, 5};
  Device device(6, roomy, {.prefetch = unit_elements * 2 + ElementCount(1)}, order);
  device.use(0);
  EXPECT_EQ(device.take("gather"), (Decisions{"gather 0", "gather 1", "gather 2", "gather 3"}));
  device.use(1);
  EXPECT_EQ(device.take("gather"), (Decisions{"gather 4"}));

  Device none(6, roomy, {.prefetch = ElementCount()}, order);
  for (const std::uint32_t unit : order) none.use(unit);
  EXPECT_EQ(none.take("gather").size(), 6u);
  EXPECT_EQ(none.take("drop"), Decisions{});

  Device first(6, roomy, {.prefetch = ElementCount(1)}, order);
  first.use(0);
  EXPECT_EQ(first.take("gather"), (Decisions{"gather 0", "gather 1"}));
}

TEST(Prefetch, CountsWhatAFailedCallHasGatheredOnce) {
  Device device(6, roomy, {.prefetch = unit_elements * 2}, {0, 1, 2, 3, 4, 5});
  for (int call = 0; call < 3; ++call) ASSERT_TRUE(device.residency.acquire(0, device));
  EXPECT_EQ(device.take("gather"), (Decisions{"gather 0", "gather 1", "gather 2"}));
}

TEST(Prefetch, TakesOnlyTheRoomOfFlatsNeededLater) {
  // Four units beside two gradients.
  Device device(6, 24_KiB, {.reduce_bucket = ElementCount(1)}, {0, 1, 2, 3, 4, 5, 0, 1});
  device.use(0);
  EXPECT_EQ(device.decisions, (Decisions{"gather 0", "gather 1", "gather 2", "gather 3"}));
  device.use(1);
  device.decisions.clear();

  device.use(2);

  EXPECT_EQ(device.decisions, (Decisions{"drop 1", "gather 5"})) << "3 and 4 are needed before 0";
}

TEST(Prefetch, LeavesRoomForGradients) {
  Device device(8, 32_KiB, {.reduce_bucket = ElementCount(1)}, {0, 1, 2, 3, 4, 5, 6, 7});
  device.use(0);
  EXPECT_EQ(device.take("gather").size(), 6u);

  for (const std::uint32_t unit : {7u, 6u, 5u, 4u}) device.reduce(unit);

  EXPECT_EQ(device.take("drop"), Decisions{});
}

TEST(Prefetch, FollowsANewOrderFromTheNextStepOn) {
  Device device(6, roomy, {.prefetch = unit_elements * 3}, {0, 1, 2, 3, 4, 5});
  const std::vector<std::uint32_t> other = {0, 3, 5, 1, 4, 2};
  for (const std::uint32_t unit : other) device.use(unit);
  EXPECT_EQ(device.take("gather").size(), 6u);
  device.end_step();
  device.decisions.clear();

  device.use(0);
  EXPECT_EQ(device.take("gather"), (Decisions{"gather 0", "gather 3", "gather 5", "gather 1"}));
}

TEST(LiveParameters, LimitWhatIsGatheredBesideTheUnitInUse) {
  Device device(6, roomy, {.live_parameters = unit_elements * 2}, {0, 1, 2, 3, 4, 5, 4, 3});
  device.use(0);
  EXPECT_EQ(device.take("gather"), (Decisions{"gather 0", "gather 1", "gather 2"}));
  device.use(1);
  EXPECT_EQ(device.decisions, (Decisions{"drop 0", "gather 3"}));
}

TEST(LiveParameters, NeverKeepAUnitFromBeingGathered) {
  Device device(4, roomy, {.live_parameters = ElementCount()}, {0, 1, 2, 3});
  ASSERT_TRUE(device.residency.acquire(0, device));
  device.residency.lease(0);
  ASSERT_TRUE(device.residency.acquire(1, device));
  device.residency.lease(1);
  EXPECT_EQ(device.decisions, (Decisions{"gather 0", "gather 1"}));
  device.residency.release(0);
  device.residency.release(1);
  ASSERT_TRUE(device.residency.acquire(2, device));
  EXPECT_EQ(device.decisions, (Decisions{"gather 0", "gather 1", "drop 0", "drop 1", "gather 2"}));
}

/// The plan of six units on two ranks, and what it lets FlatResidency do.
struct SixUnits {
  explicit SixUnits(const Config& config)
      : plan(plan_memory(config, Device::layout(6), 2, 2).value()),
        limits(limits_of(plan, config, ShardLayout(Device::layout(6), 2))) {}

  MemoryPlan plan;
  ResidencyLimits limits;
};

/// Units with a matrix and a vector, in flats of their own: 0 and 1 of the first unit, 2 and 3 of the second …
ModelLayout with_vectors(std::uint32_t units) {
  ModelLayout model = Device::layout(units);
  model.groups = {{}, {.weight_decay = 0}};
  for (UnitLayout& unit : model.units) unit.parameters.push_back({"bias", ElementCount(100), 1});
  return model;
}

/// The gathers of the second of two steps, in a memory.
Decisions gathers_of_a_step(const ModelLayout& model, ByteCount memory, const ResidencyLimits& limits) {
  const auto units = static_cast<std::uint32_t>(model.units.size());
  Device device(model, memory, limits, unit_order(units, 1));
  for (int step = 0; step < 2; ++step) {
    (void)device.take("");
    for (std::uint32_t unit = 0; unit < units; ++unit) device.use(unit);
    for (std::uint32_t unit = units; unit-- > 0;) {
      device.use(unit);
      EXPECT_TRUE(device.residency.open_gradients(unit, device));
      for (const std::uint32_t flat : device.shards.trained_by(unit))
        (void)device.residency.close_gradient(flat);
      EXPECT_TRUE(device.residency.reduce_buckets(device));
    }
    if (step == 0) device.end_step();
  }
  return device.take("gather");
}

std::size_t count_vectors(const Decisions& gathers) {
  return static_cast<std::size_t>(std::count_if(gathers.begin(), gathers.end(), [](const std::string& one) {
    return std::stoi(one.substr(one.find(' '))) % 2 == 1;
  }));
}

TEST(Persistence, KeepsSmallFlatsGatheredWhileThereIsRoom) {
  Config config{.stage = 3};
  config.dtype = config.grad_accum_dtype = DType::bf16;
  const ModelLayout model = with_vectors(6);
  const auto plan_of = [&](std::uint64_t threshold) {
    config.param_persistence_threshold = ElementCount(threshold);
    return plan_memory(config, model, 2, 2).value();
  };
  const MemoryPlan dropping = plan_of(99), keeping = plan_of(100);
  EXPECT_EQ(dropping.device_budget, dropping.device_minimum);
  EXPECT_EQ(keeping.device_minimum, dropping.device_minimum);
  EXPECT_EQ(keeping.device_budget, keeping.device_minimum + 6 * 4_KiB);

  const ShardLayout shards(model, 2);
  const auto gathers = [&](const MemoryPlan& plan) {
    return gathers_of_a_step(model, plan.device_flats(), limits_of(plan, config, shards));
  };
  config.param_persistence_threshold = ElementCount(100);
  EXPECT_EQ(count_vectors(gathers(keeping)), 6u);
  EXPECT_GT(gathers(keeping).size(), 12u);  // matrices are gathered again
  config.param_persistence_threshold = {};
  EXPECT_GT(count_vectors(gathers(dropping)), 6u);
}

TEST(Persistence, EndsWithTheElementsOfTheWholeModel) {
  ModelLayout model = with_vectors(4);
  model.units[1].parameters.push_back({"gain", ElementCount(300), 1});
  const ShardLayout shards(model, 2);
  const auto persistent = [&](std::uint64_t of_parameter, std::uint64_t of_model) {
    return persistent_flats(shards, {.param_persistence = ElementCount(of_parameter),
                                     .model_persistence = ElementCount(of_model)});
  };
  using Flats = std::vector<bool>;
  EXPECT_EQ(persistent(0, 10'000), Flats(8));
  // A flat with a larger parameter does not persist.
  EXPECT_EQ(persistent(100, 10'000), (Flats{false, true, false, false, false, true, false, true}));
  EXPECT_EQ(persistent(300, 10'000), (Flats{false, true, false, true, false, true, false, true}));
  EXPECT_EQ(persistent(300, 300), (Flats{false, true, false, false, false, true, false, true}));
  EXPECT_EQ(persistent(300, 299), (Flats{false, true, false, false, false, true, false, false}));
  EXPECT_EQ(persistent(2048, 1'000'000), Flats(8, true));
}

TEST(Persistence, IsNoneBelowStageThree) {
  Config config{.stage = 2};
  const ShardLayout shards(Device::layout(2), 2);
  EXPECT_EQ(persistent_flats(shards, limits_of({}, config, shards)), std::vector<bool>(2));
}

TEST(ReuseDistance, DropsWhatTheNextUnitsDoNotNeed) {
  const auto drops = [](std::optional<ElementCount> distance, ElementCount persistence) {
    Device device(4, roomy,
                  {.prefetch = {},
                   .param_persistence = persistence,
                   .model_persistence = ElementCount(1'000'000),
                   .reuse_distance = distance},
                  unit_order(4, 1));
    for (std::uint32_t unit = 0; unit < 4; ++unit) device.use(unit);
    for (std::uint32_t unit = 4; unit-- > 0;) device.use(unit);
    return device.take("drop");
  };
  EXPECT_EQ(drops(std::nullopt, {}), Decisions{});
  EXPECT_EQ(drops(unit_elements * 100, {}),
            (Decisions{"drop 3", "drop 2", "drop 1"}));  // not needed any more
  // The unit in use and the next one: 3 is used twice in a row.
  EXPECT_EQ(drops(unit_elements * 2, {}),
            (Decisions{"drop 0", "drop 1", "drop 2", "drop 3", "drop 2", "drop 1"}));
  EXPECT_EQ(drops(unit_elements * 3, {}), (Decisions{"drop 0", "drop 1", "drop 3", "drop 2", "drop 1"}));
  EXPECT_EQ(drops(unit_elements * 2, unit_elements), Decisions{});
}

TEST(ReuseDistance, KeepsWhatWasGatheredAhead) {
  Device device(4, roomy, {.prefetch = unit_elements * 2, .reuse_distance = ElementCount(1)},
                unit_order(4, 1));
  device.use(0);
  EXPECT_EQ(device.take("gather"), (Decisions{"gather 0", "gather 1", "gather 2"}));
  device.use(1);
  EXPECT_EQ(device.take("drop"), Decisions{"drop 0"});
}

TEST(ReuseDistance, IsThatOfTheConfigurationWhereItIsAskedFor) {
  Config config{.stage = 3};
  config.max_reuse_distance = ElementCount(7);
  const ShardLayout shards(Device::layout(2), 2);
  EXPECT_EQ(limits_of({}, config, shards).reuse_distance, std::nullopt);
  config.penstock.release = Release::reuse_distance;
  EXPECT_EQ(limits_of({}, config, shards).reuse_distance, ElementCount(7));
  config.stage = 2;
  EXPECT_EQ(limits_of({}, config, shards).reuse_distance, std::nullopt);
}

TEST(Stages, BelowThreeGatherEachFlatOnceAStepAndDropNone) {
  Config config;
  config.dtype = config.grad_accum_dtype = DType::bf16;
  config.max_live_parameters = ElementCount(1);  // of stage 3
  for (const std::uint32_t stage : {0u, 1u, 2u}) {
    config.stage = stage;
    const SixUnits six(config);
    Device device(6, six.plan.device_flats(), six.limits, unit_order(6, 2));
    for (int step = 0; step < 2; ++step) {
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        for (std::uint32_t unit = 0; unit < 6; ++unit) device.use(unit);
        for (std::uint32_t unit = 6; unit-- > 0;) device.use_and_reduce(unit);
      }
      Decisions gathers = device.decisions;
      std::erase_if(gathers, [](const std::string& one) { return !one.starts_with("gather"); });
      EXPECT_EQ(gathers.size(), 6u) << "stage " << stage;
      EXPECT_EQ(device.take("drop"), Decisions{}) << "stage " << stage;
      device.end_step();
      (void)device.take("");
    }
  }
}

TEST(Stages, BelowThreeKeepFrozenFlatsWhenTheParametersChange) {
  for (const bool whole : {true, false}) {
    ModelLayout model = Device::layout(4);
    model.groups = {{}, {.frozen = true}};
    for (const std::uint32_t unit : {1u, 2u}) model.units[unit].parameters[0].group = 1;
    Device device(std::move(model), roomy, {.whole = whole}, unit_order(4, 1));
    for (std::uint32_t unit = 0; unit < 4; ++unit) device.use(unit);
    (void)device.take("");

    ASSERT_TRUE(device.residency.drop_for_update("test", device));

    EXPECT_EQ(device.take("drop"),
              whole ? (Decisions{"drop 0", "drop 3"}) : (Decisions{"drop 0", "drop 1", "drop 2", "drop 3"}));
    // Those that were dropped come back to their ranges, in any order.
    const auto places = [&device] {
      auto all = device.residency.places();
      return std::vector<std::uint64_t>{all[0], all[9]};
    };
    const auto before = places();
    device.use(3);
    device.use(0);
    if (whole) {
      EXPECT_EQ(places(), before);
    }
  }
}

TEST(Stages, BelowThreeKeepWhatAnEvaluationGathered) {
  Config config;
  const SixUnits six(config);
  Device device(6, six.plan.device_flats(), six.limits, unit_order(6, 1));
  for (const std::uint32_t unit : {3u, 5u, 0u, 1u, 4u, 2u}) device.use(unit);
  (void)device.take("");
  ASSERT_TRUE(device.residency.begin_step(unit_order(6, 1), device));
  for (std::uint32_t unit = 0; unit < 6; ++unit) device.use(unit);
  for (std::uint32_t unit = 6; unit-- > 0;) device.use_and_reduce(unit);

  std::erase_if(device.decisions, [](const std::string& one) {
    return !one.starts_with("gather") && !one.starts_with("drop");
  });
  EXPECT_EQ(device.decisions, Decisions{});
}

TEST(Stages, BelowThreeNeedRoomForAllParameters) {
  Config config;
  config.dtype = config.grad_accum_dtype = DType::bf16;
  config.offload_optimizer.device = OffloadDevice::cpu;
  const auto minimum = [&](std::uint32_t stage) {
    config.stage = stage;
    return plan_memory(config, Device::layout(40), 2, 2).value().device_minimum;
  };
  EXPECT_EQ(minimum(0), minimum(2));
  EXPECT_GE(minimum(2), 40 * 4_KiB);
  EXPECT_LT(minimum(3), minimum(2) / 4);

  config.stage = 2;
  config.penstock.device_budget = minimum(2) - 4_KiB;
  const auto refused = plan_memory(config, Device::layout(40), 2, 2);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("set zero_optimization.stage to 3"), std::string::npos)
      << refused.error().message();
}

}  // namespace
}  // namespace penstock::zero
