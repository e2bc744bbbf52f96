// Activation checkpoints: on the device, in host memory and on disk.
#include "kit/cluster.hpp"
#include "kit/seeded_random.hpp"
#include "kit/seeds.hpp"

#include <gtest/gtest.h>
#include <cerrno>
#include <optional>
#include <set>
#include <string>

namespace penstock::zero::test {
namespace {

constexpr ByteCount size = 9'998_B, slot = 12_KiB;

/// Eight units, each with a checkpoint.
RunOptions options_with(OffloadDevice tier, std::uint32_t ranks = 2) {
  RunOptions options{.ranks = ranks, .model = deep_model(), .device_memory = tiers::DeviceMemory::separate};
  options.model.checkpoints = {.count = static_cast<std::uint32_t>(options.model.units.size()), .size = size};
  options.config.offload_param.device = options.config.offload_optimizer.device = tier;
  return options;
}

MemoryPlan plan_of(RunOptions options) {
  options.config.offload_param.nvme_paths = options.config.offload_optimizer.nvme_paths = {"anywhere"};
  return plan_memory(options.config, options.model, options.ranks, options.ranks, options.device_memory)
      .value();
}

/// The smallest device budget, and room for `more` checkpoints.
void give_device(RunOptions& options, std::uint32_t more) {
  options.config.penstock.device_budget = plan_of(options).device_minimum + slot * more;
}

std::string digest_without_checkpoints(RunOptions options) {
  options.model.checkpoints = {};
  return train(options).digest;
}

void expect_right(const RunOptions& options, const std::string& digest, const std::string& what) {
  const RunResult result = train(options);
  ASSERT_FALSE(result.error) << what << ": " << result.error->message();
  EXPECT_EQ(result.wrong_checkpoints, 0u) << what;
  EXPECT_EQ(result.digest, digest) << what;
  EXPECT_EQ(result.above_prediction, std::vector<std::string>{}) << what;
}

TEST(EngineCheckpoints, ComeBackAsTheyWereWrittenFromEveryTier) {
  for (const std::uint32_t ranks : {1u, 2u}) {
    for (const auto memory : {tiers::DeviceMemory::separate, tiers::DeviceMemory::host}) {
      for (const OffloadDevice tier : {OffloadDevice::cpu, OffloadDevice::nvme}) {
        RunOptions options = options_with(tier, ranks);
        options.device_memory = memory;
        const std::string digest = digest_without_checkpoints(options);
        const std::string what = std::to_string(ranks) + " ranks, " +
                                 (memory == tiers::DeviceMemory::host ? "host" : "separate") +
                                 (tier == OffloadDevice::cpu ? ", cpu" : ", nvme");
        expect_right(options, digest, what);
        if (tier == OffloadDevice::nvme) options.config.penstock.host_budget = smallest_host_budget(options);
        expect_right(options, digest, what + ", smallest host budget");
        for (const std::uint32_t more : {1u, 3u, 5u}) {
          give_device(options, more);
          expect_right(options, digest, what + ", " + std::to_string(more) + " slots more");
        }
      }
    }
  }
}

TEST(EngineCheckpoints, ComeBackInEverySimulatedOrder) {
  RunOptions options = options_with(OffloadDevice::nvme);
  const std::string digest = digest_without_checkpoints(options);
  for (const std::uint64_t seed : penstock::test::seeds(0, 36)) {
    options = options_with(seed % 3 == 0 ? OffloadDevice::cpu : OffloadDevice::nvme);
    options.seed = seed;
    if (seed % 3 != 0)
      options.config.penstock.host_budget = smallest_host_budget(options) + 8_KiB * (seed % 16);
    give_device(options, seed % 6);
    expect_right(options, digest, "seed " + std::to_string(seed));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(EngineCheckpoints, StayOnTheDeviceAsFarAsItsBudgetReaches) {
  RunOptions options = options_with(OffloadDevice::nvme, 1);
  options.config.penstock.host_budget = smallest_host_budget(options);
  EXPECT_EQ(plan_of(options).checkpoints.device_slots, 3u);
  EXPECT_EQ(plan_of(options).disk_checkpoints, slot * 8);
  give_device(options, 2);
  EXPECT_EQ(plan_of(options).checkpoints.device_slots, 5u);
  give_device(options, 100);
  const MemoryPlan plan = plan_of(options);

  EXPECT_EQ(plan.checkpoints.device_slots, 8u);
  EXPECT_FALSE(plan.checkpoints.leave_device());
  EXPECT_EQ(plan.host_checkpoints + plan.disk_checkpoints, 0_B);
  options.model.checkpoints = {};
  EXPECT_EQ(plan.swap_bytes, plan_of(options).swap_bytes);
}

TEST(EngineCheckpoints, StayInHostMemoryAsFarAsItsBudgetReaches) {
  RunOptions options = options_with(OffloadDevice::nvme, 1);
  const ByteCount smallest = smallest_host_budget(options);
  options.config.penstock.host_budget = smallest;
  EXPECT_EQ(plan_of(options).checkpoints.in_host, 0u);
  const auto more_budget_for = [&](std::uint32_t checkpoints) {
    const ByteCount before = options.config.penstock.host_budget;
    while (plan_of(options).checkpoints.in_host < checkpoints) options.config.penstock.host_budget += 4_KiB;
    return options.config.penstock.host_budget - before;
  };
  more_budget_for(1);
  EXPECT_EQ(more_budget_for(5), slot * 4);
  EXPECT_EQ(more_budget_for(8), 0_B) << "where all stay, none is in flight to the disk";
  EXPECT_EQ(plan_of(options).disk_checkpoints, 0_B);
  expect_right(options, digest_without_checkpoints(options), "with room for all and not more");
  EXPECT_EQ(plan_of(options_with(OffloadDevice::cpu)).checkpoints.in_host, 8u);
}

TEST(EngineCheckpoints, LeaveNoTraceOfAStepThatWasAbandoned) {
  RunOptions options = options_with(OffloadDevice::nvme);
  options.config.penstock.host_budget = smallest_host_budget(options);
  const std::string digest = digest_without_checkpoints(options);
  std::uint64_t seed = 0;
  for (const auto place :
       {RunOptions::ProgramPoint::Place::forward, RunOptions::ProgramPoint::Place::backward}) {
    for (std::uint32_t unit = 0; unit < 8; ++unit) {
      options.seed = ++seed;
      options.trainer_error = [=](const RunOptions::ProgramPoint& point) -> std::optional<ErrorCode> {
        const bool here = point.step == 1 && point.attempt == 0 && point.rank == 0 && point.place == place &&
                          point.micro_batch == 0 && point.unit == unit;
        return here ? std::optional(ErrorCode::interrupted) : std::nullopt;
      };
      expect_right(options, digest, "seed " + std::to_string(seed));
    }
  }
}

TEST(EngineCheckpoints, ComeBackAlsoWhenCallsAreRepeatedAfterAWriteHasFailed) {
  RunOptions options = options_with(OffloadDevice::nvme, 1);
  options.config.penstock.host_budget = smallest_host_budget(options);
  options.attempts = 4;
  const std::string digest = digest_without_checkpoints(options);
  std::uint32_t repeated = 0;
  for (std::uint64_t skipped = 0; skipped < 160; skipped += 3) {
    options.seed = skipped;
    options.faults = {tiers::Fault::fail(tiers::IoOperation::write, skipped, EIO)};
    const RunResult result = train(options);
    ASSERT_FALSE(result.error) << "write " << skipped << ": " << result.error->message();
    EXPECT_EQ(result.wrong_checkpoints, 0u) << "write " << skipped;
    EXPECT_EQ(result.digest, digest) << "write " << skipped;
    repeated += result.repeated;
  }
  EXPECT_GT(repeated, 5u);
}

// Of the first reads of a step, those of checkpoints, shards and gradients.
TEST(EngineCheckpoints, FailTheEngineWithTheirNameWhenTheyCannotBeReadBack) {
  RunOptions options = options_with(OffloadDevice::nvme, 1);
  options.config.penstock.host_budget = smallest_host_budget(options);
  options.steps = 1;
  std::set<std::string> named;
  for (std::uint64_t read = 0; read < 24; ++read) {
    options.seed = read;
    options.faults = {tiers::Fault::fail(tiers::IoOperation::read, read, ENODEV)};

    const RunResult result = train(options);

    ASSERT_TRUE(result.error) << "read " << read;
    EXPECT_TRUE(result.engine_failed);
    EXPECT_EQ(result.wrong_checkpoints, 0u);
    const std::string message = result.error->message();
    const std::size_t name = message.find("tensor  ");
    ASSERT_NE(name, std::string::npos) << message;
    const std::string line = message.substr(name, message.find('\n', name) - name);
    if (line.find("checkpoint") != std::string::npos) named.insert(line);
  }
  // The backward reads the last ones first: they stay in memory in most orders.
  for (const char* const line : {"tensor  checkpoint 0", "tensor  checkpoint 1", "tensor  checkpoint 2"})
    EXPECT_TRUE(named.contains(line)) << line;
}

}  // namespace
}  // namespace penstock::zero::test
