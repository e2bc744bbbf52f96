// A rank that is alone, on a device whose memory is host memory, uses its tensors where they are.
#include "kit/cluster.hpp"
#include "kit/seeded_random.hpp"
#include "kit/seeds.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

struct Dtypes {
  DType parameters, accumulators;
};

RunOptions alone(Dtypes dtypes, std::uint32_t micro_batches, std::optional<std::uint64_t> seed) {
  RunOptions options{.ranks = 1, .micro_batches = micro_batches, .seed = seed};
  options.config.dtype = dtypes.parameters;
  options.config.grad_accum_dtype = dtypes.accumulators;
  return options;
}

RunOptions with_copies(RunOptions options) {
  options.device_memory = tiers::DeviceMemory::separate;
  return options;
}

class EngineInPlace : public testing::TestWithParam<Dtypes> {};

TEST_P(EngineInPlace, GivesTheBitsOfARankThatCopies) {
  using enum OffloadDevice;
  struct Offload {
    OffloadDevice parameters, optimizer;
  };
  for (const auto& [parameters, optimizer] :
       {Offload{none, none}, {none, nvme}, {nvme, none}, {nvme, nvme}}) {
    for (const std::uint32_t micro_batches : {1u, 3u}) {
      for (const auto seed : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(micro_batches)}) {
        SCOPED_TRACE(std::to_string(int(parameters)) + std::to_string(int(optimizer)) + ", " +
                     std::to_string(micro_batches) + " micro-batches, " +
                     (seed ? "simulated" : "on threads"));
        RunOptions options = alone(GetParam(), micro_batches, seed);
        options.config.offload_param.device = parameters;
        options.config.offload_optimizer.device = optimizer;

        const RunResult copied = train(with_copies(options)), mine = train(options);

        ASSERT_FALSE(copied.error) << copied.error->message();
        ASSERT_FALSE(mine.error) << mine.error->message();
        EXPECT_EQ(mine.digest, copied.digest);
        EXPECT_EQ(mine.parameters, copied.parameters);
        EXPECT_EQ(mine.above_prediction, std::vector<std::string>{});
        EXPECT_EQ(copied.above_prediction, std::vector<std::string>{});
        EXPECT_LE(mine.device_peak, copied.device_peak);
      }
    }
  }
}

TEST_P(EngineInPlace, StepsAreAbandonedWithoutATrace) {
  using Point = RunOptions::ProgramPoint;
  const RunResult expected = train(alone(GetParam(), 2, 1));
  ASSERT_FALSE(expected.error);
  std::uint64_t seed = 1;
  for (const auto place : {Point::Place::forward, Point::Place::backward, Point::Place::gradients_written}) {
    for (std::uint32_t micro = 0; micro < 2; ++micro) {
      for (std::uint32_t unit = 0; unit < 3; ++unit) {
        RunOptions options = alone(GetParam(), 2, ++seed);
        options.trainer_error = [=](const Point& point) -> std::optional<ErrorCode> {
          const bool here = point.step == 1 && point.attempt == 0 && point.place == place &&
                            point.micro_batch == micro && point.unit == unit;
          return here ? std::optional(ErrorCode::interrupted) : std::nullopt;
        };

        const RunResult result = train(options);

        ASSERT_FALSE(result.error) << result.error->message();
        EXPECT_EQ(result.interruptions.size(), 1u);
        EXPECT_EQ(result.digest, expected.digest);
        EXPECT_EQ(result.parameters, expected.parameters);
      }
    }
  }
}

Result<void> set_all(Engine& engine, float value) {
  return engine.initialize([value](ParameterId, std::uint64_t, std::span<float> values) {
    std::fill(values.begin(), values.end(), value);
  });
}

TEST(EngineInPlaceUse, IsOverBeforeTheParametersChange) {
  RunOptions options = alone({DType::fp32, DType::fp32}, 1, 4);
  float seen = 0;
  options.before_initialize = [&](Engine& engine, tiers::Stream& stream) {
    ASSERT_TRUE(set_all(engine, 1.0f));
    auto lease = engine.acquire(0, stream).value();
    stream.handle().host_queue()->enqueue([&seen, weights = lease.parameters()[0]] {
      seen = tiers::HostDevice::bytes(weights.bytes).as<float>()[0];
    });
    lease.end();
    ASSERT_TRUE(set_all(engine, 2.0f));
    EXPECT_EQ(seen, 1.0f);
  };
  EXPECT_FALSE(train(options).error);
}

TEST(EngineInPlaceUse, EndsWithAnAbandonedStep) {
  RunOptions options = alone({DType::fp32, DType::fp32}, 1, 4);
  options.before_initialize = [](Engine& engine, tiers::Stream& stream) {
    ASSERT_TRUE(set_all(engine, 1.0f));
    ASSERT_TRUE(engine.begin_step({}));
    (void)engine.acquire(0, stream).value();
    (void)engine.gradients(0, stream).value();
    ASSERT_TRUE(engine.abandon_step(stream));
    EXPECT_TRUE(set_all(engine, 2.0f));
  };
  EXPECT_FALSE(train(options).error);
}

RunOptions on_disk(ModelLayout model, std::uint64_t seed) {
  RunOptions options = alone({DType::bf16, DType::fp32}, 2, seed);
  options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::nvme;
  options.model = std::move(model);
  return options;
}

TEST(EngineInPlaceOnDisk, LeasesTheShardsWhereTheyWereRead) {
  RunOptions options = on_disk(test::deep_model(), 6);
  std::uint32_t seen = 0;
  swap::Runtime* runtime = nullptr;
  options.before_step = [&](std::uint32_t, std::uint32_t, swap::Runtime& of_rank) { runtime = &of_rank; };
  tiers::Device* device = nullptr;
  options.change_accelerator = [&](Accelerator& made) { device = made.device.get(); };
  options.after_micro_batch = [&](Engine& engine) {
    const auto stream = device->create_stream().value();
    const auto lease = engine.acquire(3, *stream).value();
    const HostSpan memory = runtime->host_memory();
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    for (const DeviceTensor& parameter : lease.parameters()) {
      const auto address = static_cast<std::uintptr_t>(parameter.bytes.address());
      EXPECT_TRUE(address >= begin && address < begin + memory.size().value());
      ++seen;
    }
  };

  const RunResult result = train(options);

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_GT(seen, 0u);
}

// Of any model: leased shards must not keep a gradient or another shard from its memory.
TEST(EngineInPlaceOnDisk, TrainsRandomModelsInTheSmallestBudget) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 60)) {
    penstock::test::SeededRandom random(seed);
    RunOptions options = on_disk(test::random_model(random), seed);
    options.steps = 2;
    if (random.below(3) == 0) options.config.offload_optimizer.device = OffloadDevice::cpu;
    const RunResult copied = train(with_copies(options));
    options.config.penstock.host_budget = smallest_host_budget(options);

    const RunResult result = train(options);

    ASSERT_FALSE(copied.error) << "seed " << seed << ": " << copied.error->message();
    ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    EXPECT_EQ(result.digest, copied.digest) << "seed " << seed;
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{}) << "seed " << seed;
  }
}

/// How many units of the deep model a trainer can lease at a time.
std::uint32_t units_at_a_time(RunOptions options) {
  std::uint32_t held = 0;
  options.before_initialize = [&held](Engine& engine, tiers::Stream& stream) {
    ASSERT_TRUE(set_all(engine, 1.0f));
    std::vector<UnitLease> leases;
    for (std::uint32_t unit = 0; unit < 8; ++unit) {
      auto lease = engine.acquire(unit, stream);
      if (!lease) {
        EXPECT_EQ(lease.error().code(), ErrorCode::budget_too_small);
        EXPECT_NE(lease.error().message().find("leased  layer0"), std::string::npos)
            << lease.error().message();
        break;
      }
      leases.push_back(std::move(*lease));
      ++held;
    }
    EXPECT_EQ(engine.status(), Engine::Status::ready);
  };
  const RunResult result = train(options);
  EXPECT_FALSE(result.error) << result.error->message();
  return held;
}

TEST(EngineInPlaceOnDisk, LeasesAsManyUnitsAsTheBudgetsAllow) {
  RunOptions options = on_disk(test::deep_model(), 7);
  EXPECT_EQ(units_at_a_time(options), 2u);

  options.config.penstock.device_budget = 64_MiB;
  EXPECT_EQ(units_at_a_time(options), 8u);

  // The host budget has no room for so many: the device budget is not used up, and the run is not refused.
  options.config.penstock.device_budget = {};
  options.config.penstock.host_budget = smallest_host_budget(options);
  options.config.penstock.device_budget = 64_MiB;
  EXPECT_EQ(units_at_a_time(options), 2u);
}

INSTANTIATE_TEST_SUITE_P(Every, EngineInPlace,
                         testing::Values(Dtypes{DType::fp32, DType::fp32}, Dtypes{DType::bf16, DType::bf16},
                                         Dtypes{DType::bf16, DType::fp32}),
                         [](const auto& dtypes) {
                           return std::string(to_string(dtypes.param.parameters)) + "_" +
                                  std::string(to_string(dtypes.param.accumulators));
                         });

TEST(EngineInPlaceMemory, IsSixteenBytesAParameterInFp32) {
  RunOptions options = alone({DType::fp32, DType::fp32}, 1, 5);
  options.model = {};
  std::uint64_t parameters = 0;
  for (int unit = 0; unit < 10; ++unit) {
    options.model.units.push_back({std::to_string(unit), {{"weight", ElementCount(50'000)}}, {}});
    parameters += 50'000;
  }

  const RunResult result = train(options), copied = train(with_copies(options));

  ASSERT_FALSE(result.error) << result.error->message();
  const auto bytes_each = [&](const RunResult& of) {
    return static_cast<double>((of.host_peak + of.device_peak).value()) / static_cast<double>(parameters);
  };
  EXPECT_LT(bytes_each(result), 16.2);
  EXPECT_GT(bytes_each(copied), 17.5);
}

}  // namespace
}  // namespace penstock::zero::test
