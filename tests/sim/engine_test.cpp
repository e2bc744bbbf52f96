#include "kit/cluster.hpp"
#include "kit/seeds.hpp"
#include "kit/trainer.hpp"
#include "swap/runtime_internals.hpp"
#include "tiers/store/block_table.hpp"

#include "zero/estimate/estimate.hpp"

#include <gtest/gtest.h>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace penstock::zero {
namespace {

using test::RunOptions;
using test::RunResult;
using test::smallest_host_budget;
using test::train;

Config on_disk() {
  Config config = RunOptions::default_config();
  config.offload_param.device = config.offload_optimizer.device = OffloadDevice::nvme;
  return config;
}
TEST(Engine, TrainsInMemoryAndSaysWhatItDid) {
  const RunResult result = train({});

  ASSERT_FALSE(result.error) << result.error->message();
  ASSERT_EQ(result.outcomes.size(), 3u);
  EXPECT_EQ(result.outcomes[2].step, 3u);
  EXPECT_EQ(result.outcomes[2].kind, StepOutcome::Kind::updated);
  EXPECT_GT(result.outcomes[0].gradient_norm, 1.0);
  EXPECT_LT(result.outcomes[0].clip_factor, 1.0);
  EXPECT_EQ(result.bytes_read, 0_B);
}

// With one thread for everything, no gradient is reduced before step() waits for it.
TEST(Engine, SaysHowLongAStepWaitedForGradients) {
  const RunResult result = train({.steps = 1, .seed = 3});

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_GT(result.outcomes[0].gradient_wait, std::chrono::nanoseconds(0));
}

/// AdamW in double over the whole model, with the same roundings of gradients and parameters to bf16.
TEST(Engine, FollowsAnIndependentAdamW) {
  const RunOptions options{.ranks = 2, .micro_batches = 1, .steps = 1};
  const RunResult result = train(options);
  ASSERT_FALSE(result.error) << result.error->message();

  const ModelLayout model = test::small_model();
  const ParameterId weight{1, 0};
  double worst = 0;
  const double clip = result.outcomes[0].clip_factor;
  for (std::uint64_t e = 0; e < 40'001; ++e) {
    const float w0 = test::initial_value(weight, e);
    double mean = 0;
    for (std::uint32_t rank = 0; rank < 2; ++rank)
      mean += test::fake_gradient(w0, rank, 0, 0, weight, e) / 2.0;
    const double g = mean * clip;
    // The first step of AdamW changes a parameter by the learning rate, for a gradient of any size.
    const double expected = w0 - 0.01 * 0.1 * w0 - 0.01 * g / (std::abs(g) + 1e-8);
    worst = std::max(worst, std::abs(expected - result.parameters[2][e]));
  }
  EXPECT_LT(worst, 0.021);  // a gradient near zero may have the other sign after rounding
  double mean_error = 0;
  for (std::uint64_t e = 0; e < 40'001; ++e) {
    const float w0 = test::initial_value(weight, e);
    double mean = 0;
    for (std::uint32_t rank = 0; rank < 2; ++rank)
      mean += test::fake_gradient(w0, rank, 0, 0, weight, e) / 2.0;
    const double g = mean * clip;
    mean_error +=
        std::abs(w0 - 0.001 * w0 - 0.01 * g / (std::abs(g) + 1e-8) - result.parameters[2][e]) / 40'001;
  }
  EXPECT_LT(mean_error, 0.001);
}

TEST(Engine, GivesTheSameBitsForStatesInEveryTier) {
  const std::string in_memory = train({}).digest;
  ASSERT_FALSE(in_memory.empty());

  Config tight = on_disk();
  tight.penstock.host_budget = smallest_host_budget({.config = tight});
  Config optimizer_only = RunOptions::default_config();
  optimizer_only.offload_optimizer.device = OffloadDevice::nvme;
  for (const Config& config : {on_disk(), tight, optimizer_only}) {
    for (const auto engine :
         {tiers::EngineChoice::automatic, tiers::EngineChoice::libaio, tiers::EngineChoice::threads}) {
      const RunResult result = train({.config = config, .engine = engine});
      ASSERT_FALSE(result.error) << result.error->message();
      EXPECT_EQ(result.digest, in_memory);
      EXPECT_LE(result.host_peak, result.host_budget);
      EXPECT_GT(result.bytes_read, 0_B);
    }
  }
}

TEST(Engine, GivesTheSameBitsForAnyTileDepthRequestThreadCountAndPolicy) {
  const std::string reference = train({}).digest;
  RunOptions options{.config = on_disk()};
  options.config.penstock.host_budget = smallest_host_budget(options) + 256_KiB;

  options.config.penstock.tiles_in_flight = 1;
  options.request_max = 4_KiB;
  EXPECT_EQ(train(options).digest, reference);

  options.config.penstock.tiles_in_flight = 5;
  options.config.penstock.tile_elements = ElementCount(32'768);
  options.config.penstock.host_budget = smallest_host_budget(options);
  options.request_max = 1_MiB;
  options.threads = 2;
  for (const auto eviction : {swap::Eviction::lru, swap::Eviction::reuse_distance}) {
    options.config.penstock.eviction = eviction;
    const RunResult result = train(options);
    EXPECT_EQ(result.digest, reference) << (result.error ? result.error->message() : "");
  }
}

TEST(Engine, ReadsAgainWhatTheReuseDistanceDoesNotKeep) {
  RunOptions options{.config = on_disk(), .model = test::deep_model()};
  options.config.penstock.host_budget = 64_MiB;  // for everything
  const auto read = [&](swap::Eviction eviction, std::uint64_t distance) {
    options.config.penstock.eviction = eviction;
    options.config.max_reuse_distance = ElementCount(distance);
    const RunResult result = train(options);
    EXPECT_FALSE(result.error) << result.error->message();
    return result.bytes_read;
  };
  const ByteCount planned = read(swap::Eviction::planned, 0);
  const ByteCount none = read(swap::Eviction::reuse_distance, 0);
  const ByteCount some = read(swap::Eviction::reuse_distance, 1'000'000'000);
  EXPECT_LT(planned, some) << "optimizer tiles are used once a step";
  EXPECT_LT(some, none);
}

TEST(Engine, GivesTheSameBitsInEverySimulatedOrder) {
  const std::string reference = train({}).digest;
  for (const std::uint64_t seed : penstock::test::seeds(0, 100)) {
    RunOptions options{.config = on_disk(), .seed = seed};
    options.config.penstock.host_budget = smallest_host_budget(options) + seed % 4 * 512_KiB;
    const RunResult result = train(options);
    ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    ASSERT_EQ(result.digest, reference) << "seed " << seed;
  }
}

TEST(Engine, DropsAndGathersFlatsAgainToTheSameBits) {
  const RunOptions in_memory{.model = test::deep_model()};
  RunOptions roomy = in_memory;
  roomy.config.penstock.device_budget = 64_MiB;
  const RunResult reference = train(roomy);
  ASSERT_FALSE(reference.error) << reference.error->message();
  EXPECT_EQ(train(in_memory).digest, reference.digest);

  for (const std::uint64_t seed : penstock::test::seeds(0, 40)) {
    RunOptions options{.config = on_disk(), .model = test::deep_model(), .seed = seed};
    options.config.penstock.host_budget = smallest_host_budget(options) + seed % 3 * 400_KiB;
    const RunResult result = train(options);
    ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    ASSERT_EQ(result.digest, reference.digest) << "seed " << seed;
  }
}

TEST(Engine, GivesTheSameBitsWithTilesInMemoryAndOnDisk) {
  RunOptions options{.config = on_disk(), .model = test::deep_model()};
  const std::string reference = train({.model = test::deep_model()}).digest;
  Config planned = on_disk();
  planned.offload_param.nvme_paths = planned.offload_optimizer.nvme_paths = {"."};
  const MemoryPlan all_on_disk = plan_memory(planned, options.model, 2, 2).value();
  options.config.penstock.host_budget = all_on_disk.host_budget * 2 + 1500_KiB;
  planned.penstock.host_budget = options.config.penstock.host_budget;
  const MemoryPlan mixed = plan_memory(planned, options.model, 2, 2).value();
  ASSERT_GT(mixed.tiles_in_host, 0u);
  ASSERT_LT(mixed.tiles_in_host, mixed.tiles);

  const RunResult result = train(options);

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.digest, reference);
  EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
}

TEST(Engine, SkipsAStepWhileGradientsAreSpilled) {
  RunOptions options{.steps = 2, .config = on_disk(), .model = test::deep_model()};
  options.config.grad_accum_dtype = DType::fp32;
  options.config.penstock.host_budget = smallest_host_budget(options);
  for (const std::uint64_t seed : penstock::test::seeds(0, 20)) {
    options.seed = seed;
    options.gradient_scale = [](std::uint32_t step, std::uint32_t rank) {
      return step == 0 && rank == 0 ? std::numeric_limits<float>::infinity() : 1.0f;
    };
    const RunResult result = train(options);
    ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    EXPECT_EQ(result.outcomes[0].kind, StepOutcome::Kind::skipped);
    EXPECT_EQ(result.outcomes[1].kind, StepOutcome::Kind::updated);
  }
}

TEST(Engine, HoldsAndMovesNoMoreThanWasPredicted) {
  for (const ByteCount extra : {0_KiB, 300_KiB, 2_MiB}) {
    RunOptions options{.config = on_disk()};
    options.config.penstock.host_budget = smallest_host_budget(options) + extra;
    const RunResult result = train(options);
    ASSERT_FALSE(result.error) << result.error->message();
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
  }
}

TEST(Engine, ReadsEachTileOnceOfHundredsOfUnitsWhoseGradientsSpill) {
  RunOptions options{.ranks = 1, .steps = 2, .config = on_disk(), .model = {}, .seed = 7};
  options.config.offload_param.device = OffloadDevice::cpu;
  for (int unit = 0; unit < 300; ++unit) {
    options.model.units.push_back({std::to_string(unit), {{"weight", ElementCount(60'000)}}, {}});
  }
  options.config.penstock.host_budget = smallest_host_budget(options) + 300_KiB;
  const RunResult result = train(options);
  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
}

TEST(Engine, HoldsAndMovesWhatTheEstimateSays) {
  RunOptions options{.config = on_disk()};
  options.model = {};
  for (int unit = 0; unit < 6; ++unit) {
    options.model.units.push_back({std::to_string(unit), {{"weight", ElementCount(98'304)}}, {}});
  }
  options.config.grad_accum_dtype = DType::fp32;
  const Config& config = options.config;
  const RunEstimate estimate = estimate_run({.parameters = options.model.element_count(),
                                             .largest_unit = ElementCount(98'304),
                                             .ranks_per_node = options.ranks,
                                             .grad_accum_dtype = DType::fp32,
                                             .micro_batches = options.micro_batches,
                                             .tile_elements = config.penstock.tile_elements,
                                             .tiles_in_flight = config.penstock.tiles_in_flight})
                                   .value();
  Config planned = config;
  planned.offload_param.nvme_paths = planned.offload_optimizer.nvme_paths = {"."};
  planned.gradient_accumulation_steps = options.micro_batches;
  const MemoryPlan plan = plan_memory(planned, options.model, 2, 2).value();
  // Of rank 0, before the second step and after it.
  std::array<std::array<tiers::Ledger::Traffic, tiers::purpose_count>, 2> moved{};
  ByteCount on_nvme;
  options.before_step = [&](std::uint32_t step, std::uint32_t rank, swap::Runtime& runtime) {
    if (rank != 0 || step == 0) return;
    ASSERT_TRUE(runtime.flush());
    on_nvme = runtime.ledger().peak(tiers::Tier::nvme);
    for (std::size_t p = 0; p < tiers::purpose_count; ++p) {
      moved[step - 1][p] = runtime.ledger().traffic(tiers::Purpose(p));
    }
  };

  const RunResult result = train(options);

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(plan.device_budget, estimate.per_rank(tiers::Tier::device));
  EXPECT_EQ(plan.host_budget, estimate.per_rank(tiers::Tier::host));
  EXPECT_EQ(on_nvme, estimate.per_rank(tiers::Tier::nvme));
  ASSERT_EQ(estimate.traffic.size(), 2u);
  for (const auto& predicted : estimate.traffic) {
    const auto p = static_cast<std::size_t>(predicted.purpose);
    const ByteCount read = moved[1][p].read - moved[0][p].read,
                    written = moved[1][p].written - moved[0][p].written;
    EXPECT_EQ(written, predicted.written) << to_string(predicted.purpose);
    EXPECT_LE(read, predicted.read) << to_string(predicted.purpose);
    if (predicted.purpose == tiers::Purpose::optimizer_tile) {
      EXPECT_EQ(read, predicted.read);
    }
  }
}

TEST(Engine, GivesTheSameBitsWithoutChecksumsAndThenVerifiesNone) {
  RunOptions options{.steps = 2, .config = on_disk()};
  const std::string reference = train(options).digest;
  options.config.penstock.integrity = Integrity::off;
  EXPECT_EQ(train(options).digest, reference);

  // With integrity off, changed bytes on disk are not detected.
  const auto spoil = [](std::uint32_t step, std::uint32_t rank, swap::Runtime& runtime) {
    if (step != 1 || rank != 0) return;
    ASSERT_TRUE(runtime.flush());
    for (const tiers::TensorId tensor : runtime.tensors()) {
      const tiers::TensorDescription description = runtime.describe(tensor);
      if (description.purpose != tiers::Purpose::optimizer_tile || !description.extent) continue;
      // Changes the checksum instead of the bytes, so that both runs compute the same.
      swap::RuntimeInternals(runtime).blocks(tensor) =
          tiers::BlockTable(0, description.size, description.block);
    }
  };
  options.before_step = spoil;
  EXPECT_EQ(train(options).digest, reference);
  options.config.penstock.integrity = Integrity::checksum;
  const RunResult checked = train(options);
  ASSERT_TRUE(checked.error);
  EXPECT_EQ(checked.error->code(), ErrorCode::corrupted);
}

TEST(Engine, RefusesAConfigurationThatCannotBeUsed) {
  RunOptions options{.ranks = 1, .config = on_disk()};
  options.spoil_engine_config = [](Config& config) { config.optimizer.epsilon = -1e-8f; };

  const RunResult result = train(options);

  ASSERT_TRUE(result.error);
  EXPECT_EQ(result.error->code(), ErrorCode::invalid_config);
  EXPECT_NE(result.error->message().find("optimizer.params.eps"), std::string::npos)
      << result.error->message();
}

TEST(Engine, RefusesToTrainBeforeItIsInitialized) {
  RunOptions options{.config = on_disk()};
  options.before_initialize = [](Engine& engine, tiers::Stream& stream) {
    EXPECT_EQ(engine.begin_step({}).error().code(), ErrorCode::failed_state);
    EXPECT_EQ(engine.acquire(0, stream).error().code(), ErrorCode::failed_state);
    EXPECT_EQ(engine.gradients(0, stream).error().code(), ErrorCode::failed_state);
    EXPECT_EQ(engine.step().error().code(), ErrorCode::failed_state);
    EXPECT_EQ(engine.digest().error().code(), ErrorCode::failed_state);
    EXPECT_EQ(engine.status(), Engine::Status::ready);
  };

  const RunResult result = train(options);

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.digest, train({}).digest);
}

TEST(Engine, BeginsNothingElseInTheMiddleOfAStep) {
  RunOptions options{.config = on_disk()};
  options.after_micro_batch = [](Engine& engine) {
    EXPECT_EQ(engine.begin_step({.micro_batches = 1}).error().code(), ErrorCode::failed_state);
    EXPECT_EQ(engine.initialize([](ParameterId, std::uint64_t, std::span<float>) {}).error().code(),
              ErrorCode::failed_state);
    EXPECT_EQ(engine.status(), Engine::Status::ready);
  };

  const RunResult result = train(options);

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.digest, train({}).digest);
}

TEST(Engine, TrainsOnOneRankAndOnThree) {
  for (const std::uint32_t ranks : {1u, 3u}) {
    const std::string in_memory = train({.ranks = ranks}).digest;
    const RunResult result = train({.ranks = ranks, .config = on_disk()});
    ASSERT_FALSE(result.error) << result.error->message();
    EXPECT_EQ(result.digest, in_memory);
  }
}

TEST(Engine, SkipsAStepWhoseGradientIsNotFiniteAndChangesNothing) {
  RunOptions options{.steps = 2, .config = on_disk()};
  const std::string without = train({.steps = 1}).digest;
  options.gradient_scale = [](std::uint32_t step, std::uint32_t rank) {
    return step == 1 && rank == 1 ? std::numeric_limits<float>::infinity() : 1.0f;
  };

  const RunResult result = train(options);

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.outcomes[1].kind, StepOutcome::Kind::skipped);
  EXPECT_EQ(result.outcomes[1].skip_reason, "the gradient norm is not finite");
  EXPECT_EQ(result.outcomes[1].step, 1u);
  EXPECT_EQ(result.digest, without);
}

TEST(Engine, RefusesABudgetThatCannotMakeProgressBeforeItStarts) {
  RunOptions options{.config = on_disk()};
  options.config.penstock.host_budget = smallest_host_budget(options) - 64_KiB;

  const RunResult result = train(options);

  ASSERT_TRUE(result.error);
  EXPECT_EQ(result.error->code(), ErrorCode::budget_too_small);
  EXPECT_NE(result.error->message().find("penstock.host_budget"), std::string::npos)
      << result.error->message();
}

}  // namespace
}  // namespace penstock::zero
