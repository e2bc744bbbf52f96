// Updates of tiles on a device that fails.
#include "kit/cluster.hpp"
#include "kit/deferred_rank.hpp"
#include "kit/faulty_accelerator.hpp"
#include "kit/seeds.hpp"

#include <penstock/tiers/io/fault_engine.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

namespace penstock::zero {
namespace {

using test::DeferredRank;
using test::DeviceFaults;
using test::RunOptions;
using test::RunResult;
using test::train;

constexpr std::uint64_t tile = 16'384;

/// That after the kernel, and that after everything, which is made after an error. Then no event is after the kernel.
constexpr std::uint32_t records_of_a_failing_hop = 2;

/// An update's kernel that runs late, and after which the next events are not recorded. Outlives the device.
struct LateKernel {
  explicit LateKernel(DeviceFaults& faults, std::uint32_t failing_records = records_of_a_failing_hop) {
    faults.before_update = [this, &faults, failing_records](StreamHandle stream) -> Result<void> {
      for (int operation = 0; operation < 64; ++operation) stream.host_queue()->enqueue([] {});
      stream.host_queue()->enqueue([this] { has_run = true; });
      faults.failing_records = failing_records;
      is_enqueued = true;
      return ok();
    };
  }
  LateKernel(const LateKernel&) = delete;
  LateKernel& operator=(const LateKernel&) = delete;

  bool is_enqueued = false, has_run = false;
};

/// Of one unit of four tiles, on a device with `faults`.
DeferredRank::Options with(DeviceFaults& faults, OffloadDevice tier) {
  DeferredRank::Options options{.config = RunOptions::default_config()};
  options.config.offload_param.device = options.config.offload_optimizer.device = tier;
  options.model.units = {{.name = "unit", .parameters = {{"weight", ElementCount(4 * tile), 0}}}};
  options.change = [&faults](Accelerator& made) { faults.add_to(made); };
  return options;
}

/// Begins a step, and enqueues the gradient's kernel, which sets each byte.
UnitGradients begin_step(DeferredRank& rank, std::byte gradient = std::byte{0}) {
  Engine& engine = rank.engine();
  engine.initialize([](ParameterId, std::uint64_t, std::span<float>) {}).value();
  engine.begin_step({.micro_batches = 1}).value();
  auto gradients = engine.gradients(0, rank.stream()).value();
  rank.enqueue([gradient, bytes = tiers::HostDevice::bytes(gradients.slots()[0].tensor.bytes)] {
    std::fill_n(bytes.data(), bytes.size().value(), gradient);
  });
  return gradients;
}

/// Takes a step, whose update then runs.
void take_step(DeferredRank& rank) {
  rank.engine().reduce(begin_step(rank), rank.stream()).value();
  EXPECT_EQ(rank.engine().step().value().kind, StepOutcome::Kind::updated);
}

/// Takes a step, and returns the error of its update.
Error failed_update(DeferredRank& rank) {
  take_step(rank);
  const auto updated = rank.engine().finish_update();
  EXPECT_FALSE(updated);
  return updated ? Error(ErrorCode::io, "none") : updated.error();
}

TEST(FaultyDevice, KeepsItsMemoryUntilAKernelHasEndedAfterWhichNoEventIsRecorded) {
  bool released_early = false;
  DeviceFaults faults;
  const LateKernel kernel(faults);
  faults.on_release = [&] { released_early = released_early || !kernel.has_run; };
  {
    DeferredRank rank(with(faults, OffloadDevice::none));
    const Error error = failed_update(rank);
    EXPECT_STREQ(error.operation(), "Stream::record") << error.message();
  }

  EXPECT_TRUE(kernel.has_run);
  EXPECT_FALSE(released_early);
}

TEST(FaultyDevice, AbandonsAStepOnceAKernelHasEndedAfterWhichNoEventIsRecorded) {
  DeviceFaults faults;
  const LateKernel kernel(faults);
  DeferredRank rank(with(faults, OffloadDevice::none));
  take_step(rank);
  while (!kernel.is_enqueued) (void)rank.runtime().poll();

  rank.engine().abandon_step(rank.stream()).value();

  EXPECT_TRUE(kernel.has_run);
  EXPECT_STREQ(rank.engine().finish_update().error().operation(), "Stream::record");
  EXPECT_EQ(rank.engine().status(), Engine::Status::failed);
}

// No copy out waits for the kernel, but the end of the hop does.
TEST(FaultyDevice, EndsAnUpdateOnceItsKernelHasEndedWhereOnlyTheEventAfterItIsNotRecorded) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 20)) {
    DeviceFaults faults;
    const LateKernel kernel(faults, /*failing_records=*/1);
    DeferredRank::Options options = with(faults, OffloadDevice::cpu);
    options.config.cpu_update_ratio = 0;
    options.seed = seed;
    DeferredRank rank(options);

    const Error error = failed_update(rank);

    EXPECT_STREQ(error.operation(), "Stream::record") << error.message();
    EXPECT_TRUE(kernel.has_run) << "seed " << seed;
  }
}

// The CPU updates a tile while the device fails with another one.
TEST(FaultyDevice, LeavesTheLeasesOfAFlatToTheLaneThatStillUpdatesAndBeginsNoOtherTile) {
  DeviceFaults faults;
  std::uint32_t begun = 0, updated = 0;
  faults.before_update = [&](StreamHandle) -> Result<void> {
    ++begun;
    faults.failing_records = records_of_a_failing_hop;
    return ok();
  };
  DeferredRank::Options options = with(faults, OffloadDevice::cpu);
  options.config.cpu_update_ratio = 0.5f;
  DeferredRank rank(options);

  const Error error = failed_update(rank);

  EXPECT_STREQ(error.operation(), "Stream::record") << error.message();
  EXPECT_EQ(rank.engine().status(), Engine::Status::failed);
  for (const tiers::TensorId tensor : rank.runtime().tensors()) {
    updated += swap::RuntimeInternals(rank.runtime()).blocks(tensor).step() == 1 ? 1u : 0u;
  }
  EXPECT_EQ(updated, 1u);
  EXPECT_EQ(begun, 1u);
}

// Each event in turn, from that of the last gradient on, is not recorded. One of them is that of the update's start.
TEST(FaultyDevice, ContinuesAnUpdateThatDoesNotStart) {
  for (const bool in_backward : {false, true}) {
    std::set<std::string> digests;
    std::uint32_t continued = 0;
    bool any_failed = true;
    for (std::uint32_t before = 0; any_failed; ++before) {
      SCOPED_TRACE("in the backward " + std::to_string(in_backward) + ", event " + std::to_string(before));
      DeviceFaults faults;
      std::uint32_t kernels = 0;
      faults.before_update = [&](StreamHandle) {
        ++kernels;
        return ok();
      };
      DeferredRank::Options options = with(faults, OffloadDevice::cpu);
      options.config.cpu_update_ratio = 0;
      options.config.gradient_clipping = 0;
      options.config.penstock.update_in_backward = in_backward;
      DeferredRank rank(options);
      Engine& engine = rank.engine();
      auto gradients = begin_step(rank, std::byte{0x3c});
      faults.records_before = before;
      faults.failing_records = 1;

      const bool reduced = engine.reduce(std::move(gradients), rank.stream()).has_value();
      const bool stepped = reduced && engine.step().has_value();
      const bool updated = stepped && engine.finish_update().has_value();

      any_failed = std::exchange(faults.failing_records, 0) == 0;
      EXPECT_TRUE(updated || any_failed);
      if (!stepped || engine.status() == Engine::Status::failed) continue;
      if (!updated) {
        EXPECT_EQ(kernels, 0u);
        ++continued;
        engine.finish_update().value();
      }
      digests.insert(engine.digest().value());
    }
    EXPECT_EQ(continued, 1u);
    EXPECT_EQ(digests.size(), 1u);
  }
}

// An update continues after an error of the disk, but not after one that leaves a tile updated in part. Weight decay
// alone multiplies a master of 4 by 1e38.
TEST(DeviceUpdate, ReturnsThatATileIsNotFiniteAlsoAfterAnErrorOfTheDisk) {
  std::uint64_t injected = 0;
  for (const std::uint64_t seed : penstock::test::seeds(10, 25)) {
    const std::uint64_t unreadable = 4 + seed / 5, bad = unreadable - seed % 5;
    RunOptions options{.ranks = 1, .device_memory = tiers::DeviceMemory::separate};
    options.model.units = {{.name = "unit", .parameters = {{"weight", ElementCount(16 * tile), 0}}}};
    options.initial = [bad](ParameterId, std::uint64_t element) {
      return element == bad * tile + 17 ? 4.0f : 0.5f;
    };
    options.config.optimizer.learning_rate = 1e20f;
    options.config.optimizer.weight_decay = 1e18f;
    options.config.offload_param.device = OffloadDevice::cpu;
    options.config.offload_optimizer.device = OffloadDevice::nvme;
    options.config.cpu_update_ratio = 0.5f;
    options.config.penstock.host_budget = test::smallest_host_budget(options) + 1_MiB;
    options.seed = seed;
    options.faults = {tiers::Fault::fail(tiers::IoOperation::read, unreadable * 3, ENODEV)};
    options.attempts = 3;

    const RunResult result = train(options);

    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), ErrorCode::non_finite)
        << "seed " << seed << ": " << result.error->message();
    injected += result.injected;
  }
  EXPECT_GT(injected, 0u);
}

}  // namespace
}  // namespace penstock::zero
