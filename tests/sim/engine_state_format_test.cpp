#include "kit/cluster.hpp"
#include "kit/fault_runs.hpp"
#include "kit/seeds.hpp"
#include "kit/trainer.hpp"
#include "swap/runtime_internals.hpp"
#include "tiers/store/block_table.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace penstock::zero {
namespace {

using cpu_adam::StateFormat;
using test::initial_value;
using test::narrow_formats;
using test::RunFormat;
using test::RunOptions;
using test::RunResult;
using test::train;

/// A run of a model whose parameter shards do not all fit in the smallest host budget.
RunOptions with(const RunFormat& format) {
  RunOptions options{.model = test::deep_model()};
  format.set(options.config);
  return options;
}

MemoryPlan plan_of(Config config, const ModelLayout& model) {
  config.offload_param.nvme_paths = config.offload_optimizer.nvme_paths = {"."};
  return plan_memory(config, model, 2, 2, tiers::DeviceMemory::host).value();
}

/// The same on disks, with the smallest host budget that its plan allows plus `more`.
RunOptions on_disk(const RunFormat& format, ByteCount more = {}, bool optimizer_too = true) {
  RunOptions options = with(format);
  options.config.offload_param.device = OffloadDevice::nvme;
  options.config.offload_optimizer.device = optimizer_too ? OffloadDevice::nvme : OffloadDevice::cpu;
  options.config.penstock.host_budget = smallest_host_budget(options) + more;
  return options;
}

class EngineStateFormats : public testing::TestWithParam<RunFormat> {};

TEST_P(EngineStateFormats, GiveTheSameBitsInEveryTierAndForEveryTileSize) {
  const RunResult in_memory = train(with(GetParam()));
  ASSERT_FALSE(in_memory.error) << in_memory.error->message();

  for (const ByteCount more : {0_B, 300_KiB}) {
    RunOptions options = on_disk(GetParam(), more);
    options.threads = 2;
    const RunResult result = train(options);
    ASSERT_FALSE(result.error) << result.error->message();
    EXPECT_EQ(result.digest, in_memory.digest);
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
    EXPECT_GT(result.bytes_read, 0_B);
  }
  RunOptions cut = on_disk(GetParam(), 4_MiB);
  cut.config.penstock.tile_elements = ElementCount(32'768);
  EXPECT_EQ(train(cut).digest, in_memory.digest);
  RunOptions unchecked = on_disk(GetParam());
  unchecked.config.penstock.integrity = Integrity::off;
  EXPECT_EQ(train(unchecked).digest, in_memory.digest);
}

TEST_P(EngineStateFormats, GiveTheSameBitsInEverySimulatedOrder) {
  const std::string reference = train(with(GetParam())).digest;
  for (const std::uint64_t seed : penstock::test::seeds(0, 16)) {
    RunOptions options = on_disk(GetParam(), 16_KiB * seed, seed % 2 == 0);
    options.seed = seed;
    const RunResult result = train(options);
    ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    ASSERT_EQ(result.digest, reference) << "seed " << seed;
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{}) << "seed " << seed;
  }
}

TEST_P(EngineStateFormats, ContinueToTheSameBitsAfterEachFault) {
  RunOptions options = on_disk(GetParam());
  options.seed = 7;
  test::expect_to_continue_after_faults(options, 97);
}

TEST_P(EngineStateFormats, DetectALostWrite) {
  RunOptions options = on_disk(GetParam());
  options.seed = 7;
  test::expect_to_detect_lost_writes(options, 61);
}

// Such masters have never existed.
TEST_P(EngineStateFormats, RefuseToJoinHalvesOfDifferentSteps) {
  for (const bool shard : {true, false}) {
    RunOptions options = with(GetParam());
    const std::string half = shard ? "parameter shard" : "optimizer tile 0";
    options.before_step = [&](std::uint32_t step, std::uint32_t rank, swap::Runtime& runtime) {
      if (step != 2 || rank != 1) return;
      for (const tiers::TensorId tensor : runtime.tensors()) {
        if (runtime.name(tensor).find(half) == std::string::npos) continue;
        EXPECT_EQ(swap::RuntimeInternals(runtime).blocks(tensor).step(), 2u);
        return swap::RuntimeInternals(runtime).blocks(tensor).stamp(1);
      }
    };
    const RunResult result = train(options);
    ASSERT_TRUE(result.error) << half;
    EXPECT_EQ(result.error->code(), ErrorCode::corrupted);
    EXPECT_NE(result.error->message().find("different steps"), std::string::npos) << result.error->message();
    EXPECT_NE(result.error->message().find("optimizer tile 0"), std::string::npos) << result.error->message();
  }
}

TEST_P(EngineStateFormats, StayNearWhatFp32Computes) {
  const RunResult exact = train(with({StateFormat::fp32, GetParam().parameters})),
                  mine = train(with(GetParam()));
  ASSERT_FALSE(mine.error) << mine.error->message();
  double moved = 0, apart = 0;
  for (std::size_t unit = 0; unit < exact.parameters.size(); ++unit) {
    for (std::size_t i = 0; i < exact.parameters[unit].size(); ++i) {
      const float wanted = exact.parameters[unit][i];
      apart = std::max(apart, std::abs(double{mine.parameters[unit][i]} - wanted));
      moved = std::max(moved, std::abs(double{wanted}));
    }
  }
  // Three steps of a learning rate of 0.01 move a parameter by 0.03; moments that are a few per cent off,
  // less.
  EXPECT_LT(apart, 0.02);
  EXPECT_GT(moved, 0.02);
  EXPECT_EQ(mine.digest == exact.digest, GetParam().format == StateFormat::split);
}

TEST_P(EngineStateFormats, ArePlannedByTheirOwnBytes) {
  const RunOptions fp32 = on_disk({StateFormat::fp32}), mine = on_disk(GetParam());
  const MemoryPlan wide = plan_of(fp32.config, fp32.model), plan = plan_of(mine.config, mine.model);

  const auto bytes = [](StateFormat format) {
    switch (format) {
      case StateFormat::split: return 10.0;
      case StateFormat::split_bf16: return 6.0;
      case StateFormat::moments: return 8.0;
      case StateFormat::moments_bf16: return 4.0;
      default: return 4.51;
    }
  };
  EXPECT_NEAR(static_cast<double>(plan.disk_tiles.value()) / static_cast<double>(wide.disk_tiles.value()),
              bytes(GetParam().format) / 12,
              0.05);  // tiles are padded to blocks of the file system
  EXPECT_EQ(wide.update_shard_reads_max, 0_B);
  EXPECT_EQ(plan.update_shard_reads_max, plan.disk_shards);
  EXPECT_LT(train(on_disk(GetParam())).bytes_written, train(on_disk({StateFormat::fp32})).bytes_written);
}

TEST_P(EngineStateFormats, AreRefusedWithParametersThatCannotBeHalves) {
  if (GetParam().format == StateFormat::moments) return;  // takes all
  RunOptions options = with(GetParam());
  options.config.dtype = options.config.grad_accum_dtype = DType::fp16;

  const auto plan = plan_memory(options.config, options.model, 2, 2);

  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code(), ErrorCode::invalid_config);
  EXPECT_NE(plan.error().message().find("penstock.state_format"), std::string::npos)
      << plan.error().message();
}

class EngineEpsilon : public testing::TestWithParam<RunFormat> {};

// The padding of a shard has no gradients and therefore no moments.
TEST_P(EngineEpsilon, OfZeroTrains) {
  RunOptions options = with(GetParam());
  options.config.optimizer.epsilon = 0;
  options.steps = 6;
  const RunResult result = train(options);
  ASSERT_FALSE(result.error) << result.error->message();
  ASSERT_EQ(result.outcomes.size(), 6u);
  options.config.optimizer.epsilon = 1e-8f;
  const RunResult usual = train(options);

  double apart = 0, moved = 0;
  for (std::size_t unit = 0; unit < result.parameters.size(); ++unit) {
    for (std::size_t i = 0; i < result.parameters[unit].size(); ++i) {
      const double value = result.parameters[unit][i];
      ASSERT_TRUE(std::isfinite(value));
      apart = std::max(apart, std::abs(value - usual.parameters[unit][i]));
      moved = std::max(moved, std::abs(value));
    }
  }
  EXPECT_LT(apart, 0.01);
  EXPECT_GT(moved, 0.02);
}

INSTANTIATE_TEST_SUITE_P(All, EngineEpsilon,
                         testing::Values(RunFormat{StateFormat::fp32}, RunFormat{StateFormat::split},
                                         RunFormat{StateFormat::split_bf16}, RunFormat{StateFormat::split_q8},
                                         narrow_formats[0], narrow_formats[1], narrow_formats[2]),
                         [](const auto& tested) { return tested.param.name(); });

INSTANTIATE_TEST_SUITE_P(Sharing, EngineStateFormats,
                         testing::Values(RunFormat{StateFormat::split}, RunFormat{StateFormat::split_bf16},
                                         RunFormat{StateFormat::split_q8}, narrow_formats[0],
                                         narrow_formats[1], narrow_formats[2]),
                         [](const auto& tested) { return tested.param.name(); });

using Initial = std::function<float(ParameterId, std::uint64_t)>;

/// Values of fp16 around 1, of which one in eight is a tie: halfway between two bf16 numbers.
float fp16_value(ParameterId parameter, std::uint64_t element) {
  return std::round(0x1p12f * initial_value(parameter, element)) * 0x1p-11f;
}
float tie(ParameterId parameter, std::uint64_t element) {
  const float value = std::round(0x1p7f * initial_value(parameter, element));
  return std::copysign(0x1p-8f * (2 * std::abs(value) + 257), value);
}

// Gradients depend on the parameters, so that one parameter that is rounded differently changes the masters.
TEST(EngineStateFormat, SplitGivesTheBitsOfFp32InAWholeRun) {
  for (const Initial& initial : {Initial(), Initial(fp16_value), Initial(tie)}) {
    RunOptions fp32 = with({StateFormat::fp32}), split = with({StateFormat::split}),
               disk = on_disk({StateFormat::split});
    std::vector<RunResult> results;
    for (RunOptions* options : {&fp32, &split, &disk}) {
      options->initial = initial;
      options->steps = 12;
      results.push_back(train(*options));
      ASSERT_FALSE(results.back().error) << results.back().error->message();
    }
    for (const RunResult& result : results) {
      EXPECT_EQ(result.digest, results[0].digest);
      EXPECT_EQ(result.parameters, results[0].parameters);
    }
  }
}

}  // namespace
}  // namespace penstock::zero
