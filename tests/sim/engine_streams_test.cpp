// Eager, deferred and threaded streams, on a device with memory of its own: the same configurations give the same bits.
#include "kit/cluster.hpp"
#include "kit/seeded_random.hpp"
#include "kit/seeds.hpp"

#include <gtest/gtest.h>
#include <array>
#include <string>

namespace penstock::zero::test {
namespace {

using penstock::test::SeededRandom;

/// Streams of which each may be fast, slow, or take no time.
tiers::HostDevice::Speeds random_speeds(SeededRandom& random) {
  const auto speed = [&random] { return std::array{0.0, 0.3e9, 1e9, 5e9}[random.below(4)]; };
  return {.copy_to_device = speed(), .copy_to_host = speed(), .compute = speed()};
}

/// Eager.
RunOptions random_run(std::uint32_t ranks, SeededRandom& random) {
  using enum OffloadDevice;
  RunOptions options{.ranks = ranks, .steps = 2, .device_memory = tiers::DeviceMemory::separate};
  if (random.below(4) == 0) options.model = deep_model();
  options.config.offload_param.device = std::array{none, cpu, nvme}[random.below(3)];
  options.config.offload_optimizer.device = std::array{none, cpu, nvme, nvme}[random.below(4)];
  options.config.cpu_update_ratio = std::array{1.0f, 1.0f, 0.5f, 0.0f}[random.below(4)];
  if (options.config.cpu_update_ratio == 1 && random.below(2) == 0)
    options.config.penstock.update_split = UpdateSplit::automatic;
  keep_random_states(options, random.below(1000));
  options.threads = static_cast<std::uint32_t>(1 + random.below(2));
  if (random.below(3) == 0) {
    const auto count = static_cast<std::uint32_t>(options.model.units.size());
    options.model.checkpoints = {.count = count, .size = ByteCount(1 + random.below(20'000))};
  }
  update_in_backward_at_random(options, random.below(1000));
  if (random.below(2) == 0)
    options.config.penstock.host_budget = smallest_host_budget(options) + ByteCount(random.below(600'000));
  return options;
}

struct Streams : testing::TestWithParam<std::uint32_t> {};

TEST_P(Streams, OfEveryKindGiveTheSameBits) {
  constexpr std::uint64_t configurations = 70;
  const std::uint64_t first = GetParam() * configurations;
  for (const std::uint64_t seed : penstock::test::seeds(first, first + configurations)) {
    SeededRandom random(seed);
    const RunOptions eager = random_run(GetParam(), random);
    RunOptions threaded = eager, deferred = eager;
    threaded.streams = random_speeds(random);
    deferred.seed = seed;
    deferred.threads = 1;  // workers too run on the one thread of all ranks

    const RunResult expected = train(eager);

    ASSERT_FALSE(expected.error) << "seed " << seed << ": " << expected.error->message();
    for (const RunOptions* const options : {&threaded, &deferred}) {
      SCOPED_TRACE((options == &threaded ? "threads, seed " : "deferred, seed ") + std::to_string(seed));
      const RunResult result = train(*options);
      ASSERT_FALSE(result.error) << result.error->message();
      ASSERT_EQ(result.digest, expected.digest);
      ASSERT_EQ(result.parameters, expected.parameters);
      ASSERT_EQ(result.wrong_checkpoints, 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Streams, testing::Values(1u, 2u, 3u));

}  // namespace
}  // namespace penstock::zero::test
