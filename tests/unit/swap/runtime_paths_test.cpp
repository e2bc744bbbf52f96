#include "swap/runtime_internals.hpp"
#include "unit/swap/runtime_fixture.hpp"

#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <array>
#include <cerrno>
#include <chrono>
#include <numeric>
#include <vector>

namespace penstock::swap {
namespace {

using test::add;
using test::holds;
using test::Simulation;
using test::write;
using Effect = tiers::Fault::Effect;
using tiers::TensorId;

TEST(RuntimePaths, MoveAtTheSumOfTheirSpeedsWhenTheirWeightsAreTheirSpeeds) {
  for (const std::vector<double>& bandwidths :
       {std::vector<double>{2, 1}, std::vector<double>{1, 1, 4}, std::vector<double>{1}}) {
    Simulation simulation(
        {.host_budget = 50_MiB, .bandwidths = bandwidths, .capacity = 64_MiB, .request_max = 4_MiB});
    Runtime& runtime = *simulation.runtime;
    std::vector<TensorId> tensors;
    for (int i = 0; i < 48; ++i) tensors.push_back(add(runtime, 1_MiB));
    const double sum = std::accumulate(bandwidths.begin(), bandwidths.end(), 0.0);

    const TimePoint began = simulation.clock.now();
    for (const TensorId tensor : tensors) write(runtime, tensor, 1);
    ASSERT_TRUE(runtime.flush());

    const std::chrono::duration<double> took = simulation.clock.now() - began;
    EXPECT_GE(48.0 * 1048576 / took.count() / 1e9, 0.95 * sum) << bandwidths.size() << " paths";
  }
}

TEST(RuntimePaths, AllocateExtentsWhereThereIsRoom) {
  penstock::test::ScratchDirectory one, two;
  auto runtime = Runtime::create({.host_budget = 2_MiB,
                                  .paths = {{.directory = one.path(), .capacity = 1_MiB},
                                            {.directory = two.path(), .capacity = 3_MiB}}})
                     .value();
  std::array<int, 2> allocated{};
  for (int i = 0; i < 4; ++i) {
    const TensorId tensor = add(*runtime, 1_MiB);
    ++allocated[runtime->describe(tensor).extent->path];
    write(*runtime, tensor, 1);
    EXPECT_TRUE(holds(*runtime, tensor, 1));
  }

  EXPECT_EQ(allocated[0], 1);
  EXPECT_EQ(allocated[1], 3);
  EXPECT_EQ(runtime->add({.name = "one more", .size = 1_MiB}, true).error().code(), ErrorCode::no_space);
}

TEST(RuntimePaths, KeepTheirTensorsWhenTheDisksOfOtherPathsAreFull) {
  Simulation full({.host_budget = 64_KiB,
                   .bandwidths = {1, 1},
                   .capacity = 8_MiB,
                   .reserved = 80_KiB,
                   .disk_capacity = 80_KiB});
  Runtime& runtime = *full.runtime;
  std::vector<TensorId> tensors;
  for (int i = 0; i < 10; ++i) write(runtime, tensors.emplace_back(add(runtime, 16_KiB)), 1);
  ASSERT_TRUE(runtime.flush());
  for (int i = 0; i < 3; ++i)
    (void)RuntimeInternals(runtime).corrupted(runtime.tensors_on_path(0).front(), 0);  // retires the path
  full.run();
  for (std::uint64_t generation = 1; generation <= 3; ++generation) {
    for (const TensorId tensor : tensors) EXPECT_TRUE(holds(runtime, tensor, generation));
    for (const TensorId tensor : tensors) write(runtime, tensor, generation + 1);
    EXPECT_TRUE(runtime.flush());
  }

  EXPECT_EQ(runtime.tensors_on_path(0).size(), 5u);
  EXPECT_LE(runtime.take_messages().size(), 3u);
}

TEST(RuntimePaths, AreReadWhenHangingWritesFillTheWholeQueue) {
  Simulation simulation({.host_budget = 192_KiB, .bandwidths = {1, 1}, .in_flight_max = 64_KiB});
  Runtime& runtime = *simulation.runtime;
  const TensorId kept = add(runtime, 16_KiB), other = add(runtime, 16_KiB);
  write(runtime, kept, 1);
  write(runtime, other, 1);
  ASSERT_TRUE(runtime.flush());
  ASSERT_EQ(runtime.describe(kept).extent->path, 0u);
  runtime.remove(add(runtime, 192_KiB, /*on_disk=*/false)).value();  // evicts it
  const TensorId large = add(runtime, 128_KiB);
  ASSERT_EQ(runtime.describe(large).extent->path, 0u);
  simulation.faults(0).add({.operation = tiers::IoOperation::write,
                            .occurrence = simulation.faults(0).accepted(tiers::IoOperation::write),
                            .count = 1000,
                            .effect = Effect::hang});
  write(runtime, large, 1);
  EXPECT_TRUE(runtime.flush());
  simulation.run();

  EXPECT_TRUE(holds(runtime, kept, 1));
  EXPECT_TRUE(holds(runtime, large, 1));
  EXPECT_EQ(runtime.tensors_on_path(0).size(), 0u);
}

TEST(RuntimePaths, KeepTheirTensorsWhereNoOtherPathHasRoom) {
  Simulation full({.host_budget = 64_KiB, .bandwidths = {1, 1}, .capacity = 64_KiB});
  Runtime& runtime = *full.runtime;
  std::vector<TensorId> tensors;
  for (int i = 0; i < 8; ++i) write(runtime, tensors.emplace_back(add(runtime, 16_KiB)), 1);
  ASSERT_TRUE(runtime.flush());
  const TensorId first = runtime.tensors_on_path(0).front();
  for (std::uint64_t generation = 2; generation <= 6; ++generation) {
    full.fail_requests(1);
    write(runtime, first, generation);
    EXPECT_EQ(runtime.flush().error().code(), ErrorCode::io);
    EXPECT_TRUE(runtime.flush());
  }
  full.run();

  EXPECT_EQ(runtime.take_messages().size(), 1u);  // out of use, and nothing more
  EXPECT_EQ(runtime.tensors_on_path(0).size(), 4u);
  EXPECT_TRUE(holds(runtime, first, 6));
  for (const TensorId tensor : tensors) EXPECT_TRUE(tensor == first || holds(runtime, tensor, 1));
}

}  // namespace
}  // namespace penstock::swap
