// Tiles that the device updates, all or some of them, beside those that the CPU updates.
#include "kit/cluster.hpp"
#include "kit/fault_runs.hpp"
#include "kit/same_runs.hpp"
#include "kit/seeds.hpp"

#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero {
namespace {

using cpu_adam::StateFormat;
using test::narrow_formats;
using test::RunFormat;
using test::RunOptions;
using test::RunResult;
using test::smallest_host_budget;
using test::train;

/// Which tiles the device updates.
enum class Share : std::uint8_t { none, all, half, automatic };
constexpr Share shares[] = {Share::all, Share::half, Share::automatic};

void set(RunOptions& options, Share share) {
  options.config.penstock.update_split =
      share == Share::automatic ? UpdateSplit::automatic : UpdateSplit::ratio;
  options.config.cpu_update_ratio = share == Share::all ? 0.0f : share == Share::half ? 0.5f : 1.0f;
}

RunOptions with(const RunFormat& format, Share share) {
  RunOptions options{.model = test::model_of_long_units(), .device_memory = tiers::DeviceMemory::separate};
  options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::cpu;
  format.set(options.config);
  set(options, share);
  return options;
}

/// With the smallest host budget that the plan allows, plus `more`.
RunOptions on_disk(const RunFormat& format, Share share, ByteCount more = {}, bool parameters_too = true) {
  RunOptions options = with(format, share);
  options.config.offload_optimizer.device = OffloadDevice::nvme;
  if (parameters_too) options.config.offload_param.device = OffloadDevice::nvme;
  options.config.penstock.host_budget = smallest_host_budget(options) + more;
  return options;
}

class DeviceUpdates : public testing::TestWithParam<RunFormat> {};

TEST_P(DeviceUpdates, GiveTheBitsOfTheCpu) {
  for (const std::uint32_t ranks : {1u, 2u, 3u}) {
    RunOptions options = with(GetParam(), Share::none);
    options.ranks = ranks;
    const RunResult by_cpu = train(options);
    ASSERT_FALSE(by_cpu.error) << by_cpu.error->message();
    for (const Share share : shares) {
      set(options, share);
      const RunResult result = train(options);
      ASSERT_FALSE(result.error) << result.error->message();
      EXPECT_EQ(result.digest, by_cpu.digest) << ranks << " ranks, share " << int(share);
      EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
    }
  }
}

TEST_P(DeviceUpdates, GiveTheBitsOfTheCpuFromDisk) {
  const std::string reference = train(with(GetParam(), Share::none)).digest;
  for (const Share share : shares) {
    for (const ByteCount more : {0_B, 500_KiB, 4_MiB}) {
      const RunResult result = train(on_disk(GetParam(), share, more));
      ASSERT_FALSE(result.error) << result.error->message();
      EXPECT_EQ(result.digest, reference) << "share " << int(share) << " with " << to_string(more);
      EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
    }
  }
}

TEST_P(DeviceUpdates, GiveTheSameBitsInEverySimulatedOrder) {
  const std::string reference = train(with(GetParam(), Share::none)).digest;
  for (const std::uint64_t seed : penstock::test::seeds(0, 18)) {
    RunOptions options =
        on_disk(GetParam(), shares[seed % 3], 16_KiB * seed, /*parameters_too=*/seed % 2 == 0);
    options.seed = seed;
    const RunResult result = train(options);
    ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    ASSERT_EQ(result.digest, reference) << "seed " << seed;
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{}) << "seed " << seed;
  }
}

TEST_P(DeviceUpdates, ContinueToTheSameBitsAfterEachFault) {
  RunOptions options = on_disk(GetParam(), Share::automatic, 300_KiB);
  options.seed = 7;
  test::expect_to_continue_after_faults(options, 61);
}

TEST_P(DeviceUpdates, DetectALostWrite) {
  RunOptions options = on_disk(GetParam(), Share::all);
  options.seed = 7;
  test::expect_to_detect_lost_writes(options, 61);
}

/// A run whose tiles and gradients are kept on the device.
RunOptions kept_on_device(const RunFormat& format, OffloadDevice parameters) {
  RunOptions options = with(format, Share::none);
  options.config.offload_param.device = parameters;
  options.config.offload_optimizer.device = OffloadDevice::none;
  return options;
}
constexpr OffloadDevice parameter_tiers[] = {OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme};

// With one micro-batch the device sums the squares of gradients that are accumulated in host memory too.
TEST_P(DeviceUpdates, GiveTheBitsAndTheNormOfTheCpuWhereTilesAreKept) {
  for (const std::uint32_t ranks : {1u, 3u}) {
    for (const std::uint32_t micro_batches : {1u, 2u}) {
      for (const DType accumulated : {DType::fp32, DType::bf16}) {
        const bool is_master =
            GetParam().format == StateFormat::moments || GetParam().format == StateFormat::moments_bf16;
        if (is_master && accumulated != GetParam().parameters) continue;
        const auto run = [&](RunOptions options) {
          options.ranks = ranks;
          options.micro_batches = micro_batches;
          options.config.grad_accum_dtype = accumulated;
          return train(options);
        };
        SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(micro_batches) + " micro-batches");
        RunOptions cpu = with(GetParam(), Share::none);
        cpu.device_memory = tiers::DeviceMemory::host;
        const RunResult expected = run(cpu);
        ASSERT_FALSE(expected.error) << expected.error->message();
        expect_same(run(with(GetParam(), Share::none)), expected);
        if (GetParam().must_be_offloaded()) continue;
        for (const OffloadDevice tier : parameter_tiers) {
          expect_same(run(kept_on_device(GetParam(), tier)), expected);
        }
      }
    }
  }
}

TEST_P(DeviceUpdates, GiveTheSameBitsInEverySimulatedOrderWhereTilesAreKept) {
  if (GetParam().must_be_offloaded()) return;
  const std::string reference = train(with(GetParam(), Share::none)).digest;
  for (const std::uint64_t seed : penstock::test::seeds(0, 12)) {
    RunOptions options = kept_on_device(GetParam(), parameter_tiers[seed % 3]);
    options.config.penstock.host_budget = smallest_host_budget(options) + 16_KiB * seed;
    options.seed = seed;
    const RunResult result = train(options);
    ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    ASSERT_EQ(result.digest, reference) << "seed " << seed;
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{}) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeviceUpdates,
                         testing::Values(RunFormat{StateFormat::fp32},
                                         RunFormat{StateFormat::moments, DType::fp32},
                                         RunFormat{StateFormat::split}, RunFormat{StateFormat::split_bf16},
                                         RunFormat{StateFormat::split_q8}, narrow_formats[0],
                                         narrow_formats[1], narrow_formats[2]),
                         [](const auto& one) { return one.param.name(); });

TEST(DeviceUpdate, ReportsHowMuchEachProcessorHasUpdated) {
  std::uint64_t elements = 0;
  for (const Share share : {Share::none, Share::all, Share::half, Share::automatic}) {
    RunOptions options = with({StateFormat::fp32}, share);
    options.seed = 1;

    const RunResult result = train(options);

    ASSERT_FALSE(result.error) << result.error->message();
    EXPECT_EQ((result.outcomes[0].updated_by_cpu + result.outcomes[0].updated_on_device).value(), 0u);
    for (std::size_t step = 1; step < result.outcomes.size(); ++step) {
      const std::uint64_t cpu = result.outcomes[step].updated_by_cpu.value(),
                          device = result.outcomes[step].updated_on_device.value();
      if (elements == 0) elements = cpu;
      EXPECT_EQ(cpu + device, elements) << "share " << int(share);
      EXPECT_EQ(device > 0, share != Share::none);
      EXPECT_EQ(cpu > 0, share != Share::all);
      if (share == Share::half) {
        EXPECT_NEAR(double(device) / double(elements), 0.5, 0.1);
      }
    }
  }
  EXPECT_GE(elements * 2, 4u * 70'200u);
}

// Weight decay alone takes a master of 4 to -400,000, and the others to -50,000.
TEST(DeviceUpdate, FailsWhereAnFp16MasterOverflows) {
  for (const Share share : {Share::none, Share::all}) {
    RunOptions options = with({StateFormat::moments, DType::fp16}, share);
    options.initial = [](ParameterId, std::uint64_t element) { return element == 17 ? 4.0f : 0.5f; };
    options.config.optimizer.learning_rate = 1e3f;
    options.config.optimizer.weight_decay = 100;

    const RunResult result = train(options);

    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), ErrorCode::non_finite) << result.error->message();
    EXPECT_NE(result.error->message().find("optimizer tile 0, block 0"), std::string::npos)
        << result.error->message();
  }
}

// Weight decay alone multiplies masters of 4 by 1e38.
TEST(DeviceUpdate, FailsWhereAMasterBecomesNonFinite) {
  for (const Share share : {Share::none, Share::all}) {
    RunOptions options = with({StateFormat::fp32}, share);
    options.initial = [](ParameterId, std::uint64_t element) { return element == 17 ? 4.0f : 0.5f; };
    options.config.optimizer.learning_rate = 1e20f;
    options.config.optimizer.weight_decay = 1e18f;

    const RunResult result = train(options);

    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), ErrorCode::non_finite) << result.error->message();
    EXPECT_NE(result.error->message().find("optimizer tile 0, block 0"), std::string::npos)
        << result.error->message();
  }
}

/// The smallest host budget with which the plan updates two flats at a time, if there is one with gradients on disk.
std::optional<ByteCount> smallest_budget_of_two_flats(const RunOptions& options) {
  Config config = options.config;
  for (config.penstock.host_budget = smallest_host_budget(options);; config.penstock.host_budget += 16_KiB) {
    const auto plan =
        plan_memory(config, options.model, options.ranks, options.ranks, options.device_memory).value();
    if (!plan.gradients_on_disk) return std::nullopt;
    if (plan.update.flats == 2) return config.penstock.host_budget;
  }
}

// The gradient of a second flat waits beside the leases of the first one.
TEST(DeviceUpdate, UpdatesTwoFlatsInTheSmallestBudgetForThemWhereGradientsAreOnDisk) {
  std::uint32_t trained = 0;
  for (std::uint64_t seed = 24; seed < 34; ++seed) {
    penstock::test::SeededRandom random(seed);
    RunOptions options = with({StateFormat::split_q8}, seed % 2 == 0 ? Share::all : Share::half);
    options.ranks = 1;
    options.micro_batches = 1 + seed % 2;
    options.steps = 2;
    options.seed = seed;
    options.model = {};
    options.model.groups = {{}};
    for (int i = 0; i < 6; ++i) {
      const ElementCount weight(random.below(2) == 0 ? 100'000 + random.below(700'000)
                                                     : 600'000 + random.below(400'000));
      options.model.units.push_back({.name = std::to_string(i), .parameters = {{"weight", weight, 0}}});
    }
    options.config.grad_accum_dtype = seed % 6 == 0 ? DType::bf16 : DType::fp32;
    options.config.offload_optimizer.device = OffloadDevice::nvme;
    options.config.offload_param.nvme_paths = options.config.offload_optimizer.nvme_paths = {"."};
    const auto budget = smallest_budget_of_two_flats(options);
    if (!budget) continue;
    options.config.penstock.host_budget = *budget;
    ++trained;

    const RunResult result = train(options);

    EXPECT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{}) << "seed " << seed;
  }
  EXPECT_GT(trained, 0u);
}

// Lanes of the device and the CPU read and record the steps of tiles that workers update. ThreadSanitizer sees it.
TEST(DeviceUpdate, GivesTheBitsOfTheCpuWithThreads) {
  RunOptions options = with({StateFormat::fp32}, Share::none);
  options.ranks = 1;
  const std::string reference = train(options).digest;
  options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::nvme;
  set(options, Share::automatic);

  const RunResult result = train(options);

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.digest, reference);
}

}  // namespace
}  // namespace penstock::zero
