// What is not offloaded, and is kept in the device's memory.
#include "kit/cluster.hpp"
#include "kit/counting_device.hpp"
#include "kit/deferred_rank.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

namespace penstock::zero {
namespace {

using penstock::test::CountingDevice;
using test::DeferredRank;
using test::RunOptions;
using test::RunResult;
using test::train;

constexpr std::uint64_t elements = 16'384;

/// Of one unit. All states are kept on the device.
DeferredRank::Options all_kept(std::uint64_t seed) {
  DeferredRank::Options options{.config = RunOptions::default_config(), .seed = seed};
  options.model.units = {{.name = "unit", .parameters = {{"weight", ElementCount(elements), 0}}}};
  return options;
}

Engine::Fill filled_with(float value) {
  return [value](ParameterId, std::uint64_t, std::span<float> values) {
    std::fill(values.begin(), values.end(), value);
  };
}

constexpr std::uint16_t one_in_bf16 = 0x3f80;

/// Enqueues that the first parameter is copied to `*to`.
void evaluate(DeferredRank& rank, std::uint16_t* to) {
  const auto lease = rank.engine().acquire(0, rank.stream()).value();
  rank.enqueue([to, bytes = tiers::HostDevice::bytes(lease.parameters()[0].bytes)] {
    std::memcpy(to, bytes.data(), sizeof(*to));
  });
}

TEST(KeptOnDevice, TakesADeviceBudgetThatIsAMultipleOfNothing) {
  for (const std::uint64_t more : {1u, 2u, 4u, 6u, 4095u}) {
    RunOptions options{.device_memory = tiers::DeviceMemory::separate};
    const auto plan = plan_memory(options.config, options.model, options.ranks, options.ranks,
                                  tiers::DeviceMemory::separate);
    options.config.penstock.device_budget = plan->device_minimum + ByteCount(4096 + more);

    const RunResult result = train(options);

    EXPECT_FALSE(result.error) << more << ": " << result.error->message();
  }
}

/// Copies on the device run long after what other streams begin with them.
class LateCopies final : public CountingDevice {
 public:
  using CountingDevice::CountingDevice;
  Result<void> copy_on_device(StreamHandle stream, DeviceSpan from, DeviceSpan to) override {
    for (int operation = 0; operation < 64; ++operation) stream.host_queue()->enqueue([] {});
    return CountingDevice::copy_on_device(stream, from, to);
  }
};

/// On a device of type `Changed`.
template <class Changed>
DeferredRank::Options all_kept_on(std::uint64_t seed, Changed** device = nullptr) {
  DeferredRank::Options options = all_kept(seed);
  options.change = [device](Accelerator& made) {
    auto changed = std::make_unique<Changed>(std::move(made.device));
    if (device != nullptr) *device = changed.get();
    made.device = std::move(changed);
  };
  return options;
}

TEST(KeptOnDevice, UpdatesAParameterAfterItIsCopiedForAnEvaluation) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    DeferredRank rank(all_kept_on<LateCopies>(seed));
    Engine& engine = rank.engine();
    engine.initialize(filled_with(1.0f)).value();
    engine.begin_step({.micro_batches = 1}).value();
    auto gradients = engine.gradients(0, rank.stream()).value();
    rank.enqueue([bytes = tiers::HostDevice::bytes(gradients.slots()[0].tensor.bytes)] {
      std::fill_n(reinterpret_cast<std::uint16_t*>(bytes.data()), elements, one_in_bf16);
    });
    engine.reduce(std::move(gradients), rank.stream()).value();
    std::uint16_t evaluated = 0, updated = 0;
    evaluate(rank, &evaluated);

    EXPECT_EQ(engine.step().value().kind, StepOutcome::Kind::updated);
    engine.finish_update().value();

    evaluate(rank, &updated);
    rank.finish();
    EXPECT_EQ(evaluated, one_in_bf16) << "seed " << seed;
    EXPECT_NE(updated, one_in_bf16);
  }
}

TEST(KeptOnDevice, RestoresAParameterAfterItIsCopiedForAnEvaluation) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    DeferredRank rank(all_kept_on<LateCopies>(seed));
    rank.engine().initialize(filled_with(1.0f)).value();
    std::uint16_t evaluated = 0;
    evaluate(rank, &evaluated);

    rank.engine().initialize(filled_with(2.0f)).value();

    rank.finish();
    EXPECT_EQ(evaluated, one_in_bf16) << "seed " << seed;
  }
}

/// Copies to host memory fail once they are enqueued in part, as those of CudaStaging may.
class PartialCopies final : public CountingDevice {
 public:
  using CountingDevice::CountingDevice;
  Result<void> copy_to_host(StreamHandle stream, DeviceSpan from, HostSpan to) override {
    if (!fails) return CountingDevice::copy_to_host(stream, from, to);
    stream.host_queue()->enqueue([this] { has_copied = true; });
    return Error(ErrorCode::io, "copy_to_host").reason("a later part");
  }
  bool fails = false, has_copied = false;
};

TEST(KeptOnDevice, IsReadWithAnErrorOnceTheRestOfTheCopyHasEnded) {
  PartialCopies* partial = nullptr;
  DeferredRank rank(all_kept_on(/*seed=*/0, &partial));
  rank.engine().initialize(filled_with(1.0f)).value();
  partial->fails = true;

  const auto read = rank.engine().read_states([](ParameterId, cpu_adam::StateKind, std::uint64_t,
                                                 std::span<const float>) -> Result<void> { return ok(); });

  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::io) << read.error().message();
  EXPECT_TRUE(partial->has_copied);
}

}  // namespace
}  // namespace penstock::zero
