// Limits of a configuration: gradients that are reduced together, gathers ahead, parameters that stay.
#include "kit/cluster.hpp"
#include "kit/counting_device.hpp"
#include "kit/deferred_rank.hpp"
#include "kit/process_ranks.hpp"
#include "kit/seeds.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::ProcessRanks;
using penstock::test::SeededRandom;

ElementCount random_limit(SeededRandom& random, std::uint64_t least) {
  constexpr std::array<std::uint64_t, 5> limits = {0, 1, 20'000, 60'000, 500'000'000};
  return ElementCount(std::max(least, limits[random.below(limits.size())]));
}

RunOptions on_disk(std::uint64_t seed) {
  SeededRandom random(seed + 500);
  RunOptions options{.ranks = static_cast<std::uint32_t>(2 + seed % 3),
                     .micro_batches = static_cast<std::uint32_t>(1 + random.below(3)),
                     .model = random.below(2) == 0 ? deep_model() : random_model(random),
                     .seed = seed};
  options.config.offload_optimizer.device = options.config.offload_param.device = OffloadDevice::nvme;
  return options;
}

/// The same with random limits, and a device that has room for what they allow.
RunOptions with_limits(RunOptions options) {
  SeededRandom random(*options.seed);
  Config& config = options.config;
  config.reduce_bucket_size = random_limit(random, 1);
  config.prefetch_bucket_size = random_limit(random, 0);
  config.max_live_parameters = random_limit(random, 0);
  if (random.below(3) > 0) config.overlap_comm = random.below(2) == 0;
  config.param_persistence_threshold = random_limit(random, 0);
  config.model_persistence_threshold = random_limit(random, 0);
  config.max_reuse_distance = random_limit(random, 0);
  if (random.below(2) == 0) config.penstock.release = Release::reuse_distance;
  if (random.below(2) == 0) config.max_in_cpu = random_limit(random, 0);
  if (random.below(3) > 0) config.penstock.device_budget = 200_KiB + ByteCount(random.below(600'000));
  Config planned = config;
  planned.offload_param.nvme_paths = planned.offload_optimizer.nvme_paths = {"."};
  if (!plan_memory(planned, options.model, options.ranks, options.ranks)) config.penstock.device_budget = {};
  options.config.penstock.host_budget = smallest_host_budget(options) + random.below(3) * 400_KiB;
  return options;
}

/// One gradient in each collective, one unit ahead.
RunOptions without_buckets(RunOptions options) {
  options.config.reduce_bucket_size = options.config.prefetch_bucket_size = ElementCount(1);
  return options;
}

void expect_equal(const RunResult& result, const RunResult& expected, std::uint64_t seed) {
  ASSERT_FALSE(expected.error) << "seed " << seed << ": " << expected.error->message();
  ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
  EXPECT_EQ(result.digest, expected.digest) << "seed " << seed;
  EXPECT_EQ(result.parameters, expected.parameters) << "seed " << seed;
  EXPECT_EQ(result.above_prediction, std::vector<std::string>{}) << "seed " << seed;
}

TEST(EngineLimits, ChangeNoBit) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 12)) {
    const RunOptions options = on_disk(seed);
    const RunResult expected = train(without_buckets(options));
    expect_equal(train(with_limits(options)), expected, seed);
  }
}

TEST(EngineLimits, OfHostMemoryForParametersKeepTheFirstOnesOffTheDisk) {
  RunOptions options = on_disk(3);
  options.model = deep_model();
  options.config.offload_optimizer.device = OffloadDevice::cpu;
  const RunResult expected = train(options);
  const ByteCount all = expected.bytes_written;
  for (const std::uint64_t part : {4u, 8u}) {  // of eight layers, and the rest of a shard's padding
    options.config.max_in_cpu = ElementCount(part * 21'000 / options.ranks);
    const RunResult result = train(options);
    expect_equal(result, expected, part);
    EXPECT_EQ(result.bytes_written, part == 8 ? 0_B : all / 2) << part;
  }
}

TEST(EngineLimits, ChangeNoBitWhereDisksDifferInSpeed) {
  for (std::uint64_t seed = 20; seed < 26; ++seed) {
    RunOptions options = on_disk(seed);
    const RunResult expected = train(without_buckets(options));
    options = with_limits(options);
    options.disk = [seed](std::uint32_t rank) {
      tiers::SimDisk::Options disk;
      if (rank == seed % 2) disk.bytes_per_second /= 10, disk.latency *= 10;
      return disk;
    };
    ProcessRanks processes(options.ranks, seed);
    if (seed % 2 == 0)
      options.membership = [&processes](std::uint32_t rank) { return processes.membership(rank); };
    expect_equal(train(options), expected, seed);
  }
}

TEST(EngineLimits, LeaveNoTraceOfAbandonedSteps) {
  std::size_t abandoned = 0;
  for (const std::uint64_t seed : penstock::test::seeds(40, 52)) {
    RunOptions options = on_disk(seed);
    const RunResult expected = train(without_buckets(options));
    options = with_limits(options);
    options.trainer_error = abandons_anywhere(seed);
    const RunResult result = train(options);
    abandoned += result.interruptions.size();
    ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    EXPECT_EQ(result.digest, expected.digest) << "seed " << seed;
    EXPECT_EQ(result.parameters, expected.parameters) << "seed " << seed;
  }
  EXPECT_GT(abandoned, 20u);
}

/// Records the sizes of what is copied to it.
class RecordingDevice final : public penstock::test::CountingDevice {
 public:
  RecordingDevice(std::unique_ptr<tiers::Device> device, std::vector<ByteCount>& copied)
      : CountingDevice(std::move(device)), copied_(copied) {}
  Result<void> copy_to_device(StreamHandle stream, ConstHostSpan from, DeviceSpan to) override {
    copied_.push_back(from.size());
    return CountingDevice::copy_to_device(stream, from, to);
  }

 private:
  std::vector<ByteCount>& copied_;
};

void take_step(DeferredRank& rank, const std::vector<std::uint32_t>& forward) {
  const auto use = [&rank](std::uint32_t unit) { rank.engine().acquire(unit, rank.stream()).value().end(); };
  rank.engine().begin_step({.micro_batches = 1}).value();
  for (const std::uint32_t unit : forward) use(unit);
  for (auto unit = forward.rbegin(); unit != forward.rend(); ++unit) {
    use(*unit);
    auto gradients = rank.engine().gradients(*unit, rank.stream()).value();
    rank.enqueue([bytes = tiers::HostDevice::bytes(gradients.slots()[0].tensor.bytes)] {
      std::fill_n(bytes.data(), bytes.size().value(), std::byte{0});
    });
    rank.engine().reduce(std::move(gradients), rank.stream()).value();
  }
  rank.engine().step().value();
  rank.engine().finish_update().value();
}

TEST(EngineLimits, ServeADeviatingStepAndGatherAheadInItsOrderFromTheNextOneOn) {
  // Unit u has u + 1 times as many bytes as unit 0, by which its copy is known.
  constexpr ByteCount smallest = 4_KiB;
  std::vector<ByteCount> copied;
  DeferredRank::Options options{.seed = 3};
  options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::cpu;
  options.config.dtype = options.config.grad_accum_dtype = DType::fp32;
  options.config.prefetch_bucket_size = ElementCount(9 * 1024);
  options.config.penstock.device_budget = 1_MiB;
  for (std::uint64_t unit = 0; unit < 8; ++unit) {
    options.model.units.push_back(
        {.name = std::to_string(unit), .parameters = {{"weight", ElementCount(1024 * (unit + 1)), 0}}});
  }
  options.change = [&copied](Accelerator& made) {
    made.device = std::make_unique<RecordingDevice>(std::move(made.device), copied);
  };
  DeferredRank rank(options);
  rank.engine()
      .initialize([](ParameterId, std::uint64_t, std::span<float> values) {
        std::fill(values.begin(), values.end(), 1.0f);
      })
      .value();
  take_step(rank, {0, 1, 2, 3, 4, 5, 6, 7});
  take_step(rank, {0, 4, 1, 7, 5, 2, 6, 3});

  rank.engine().begin_step({.micro_batches = 1}).value();
  copied.clear();
  rank.engine().acquire(0, rank.stream()).value().end();
  for (int turn = 0; turn < 100; ++turn) (void)rank.runtime().poll();

  // 5 and 2 units of 1024 elements are fewer than 9, and with 8 more they are not.
  EXPECT_EQ(copied, (std::vector<ByteCount>{smallest, smallest * 5, smallest * 2, smallest * 8}));
}

}  // namespace
}  // namespace penstock::zero::test
