// What is not offloaded, and is kept in the device's memory.
#include "kit/cluster.hpp"
#include "kit/counting_device.hpp"
#include "kit/deferred_rank.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <latch>
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

const Engine::StateSink ignore_states = [](ParameterId, cpu_adam::StateKind, std::uint64_t,
                                           std::span<const float>) -> Result<void> { return ok(); };

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

  const auto read = rank.engine().read_states(ignore_states);

  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::io) << read.error().message();
  EXPECT_TRUE(partial->has_copied);
}

/// Notes copies between the device and host memory outside of `planned`.
class ObservedCopies final : public CountingDevice {
 public:
  using CountingDevice::CountingDevice;
  Result<void> copy_to_device(StreamHandle stream, ConstHostSpan from, DeviceSpan to) override {
    note(from);
    return CountingDevice::copy_to_device(stream, from, to);
  }
  Result<void> copy_to_host(StreamHandle stream, DeviceSpan from, HostSpan to) override {
    note(to);
    return CountingDevice::copy_to_host(stream, from, to);
  }
  HostSpan planned;
  std::uint64_t inside = 0, outside = 0;

 private:
  void note(ConstHostSpan bytes) {
    const bool is_inside =
        std::less_equal<>()(planned.data(), bytes.data()) &&
        std::less_equal<>()(bytes.data() + bytes.size().value(), planned.data() + planned.size().value());
    ++(is_inside ? inside : outside);
  }
};

// Of three pieces and a rest.
TEST(KeptOnDevice, IsRestoredAndReadInPiecesOfPlannedHostMemory) {
  constexpr std::uint64_t count = 3 * 262'144 + 5000;
  const auto value = [](std::uint64_t kind, std::uint64_t element) {
    return static_cast<float>((element * 3 + kind) % 1021);
  };
  for (const auto format : {cpu_adam::StateFormat::fp32, cpu_adam::StateFormat::split}) {
    ObservedCopies* copies = nullptr;
    DeferredRank::Options options = all_kept_on(/*seed=*/0, &copies);
    options.config.penstock.state_format = format;
    options.config.penstock.tile_elements = {};
    options.model.units[0].parameters[0].count = ElementCount(count);
    DeferredRank rank(options);
    copies->planned = rank.runtime().host_memory();

    rank.engine()
        .restore(7,
                 [&](ParameterId, cpu_adam::StateKind kind, std::uint64_t first,
                     std::span<float> values) -> Result<void> {
                   for (float& one : values) one = value(std::uint64_t(kind), first++);
                   return ok();
                 })
        .value();
    std::uint64_t read = 0, wrong = 0;
    rank.engine()
        .read_states([&](ParameterId, cpu_adam::StateKind kind, std::uint64_t first,
                         std::span<const float> values) -> Result<void> {
          for (const float one : values) wrong += one == value(std::uint64_t(kind), first++) ? 0u : 1u;
          read += values.size();
          return ok();
        })
        .value();

    EXPECT_EQ(read, 3 * count);
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(copies->outside, 0u);
    EXPECT_GE(copies->inside, 3 * 4u);  // states and parameters, and states again
    EXPECT_LE(rank.runtime().host_memory().size(), 4_MiB);
  }
}

/// Copies to host memory wait for the device's end once `stuck` is set.
class StuckCopies final : public CountingDevice {
 public:
  using CountingDevice::CountingDevice;
  ~StuckCopies() override { ends_.count_down(); }
  Result<void> copy_to_host(StreamHandle stream, DeviceSpan from, HostSpan to) override {
    if (stuck) stream.host_queue()->enqueue([this] { ends_.wait(); });
    return CountingDevice::copy_to_host(stream, from, to);
  }
  bool stuck = false;

 private:
  std::latch ends_{1};
};

TEST(KeptOnDevice, GivesUpTheHostMemoryOfACopyThatHasReachedTheDeadline) {
  StuckCopies* device = nullptr;
  std::size_t tensors_left = 0;
  Rank::Options options{.config = RunOptions::default_config(), .model = all_kept(0).model};
  options.make_accelerator = [&](ByteCount memory) -> Result<Accelerator> {
    Accelerator made = make_host_accelerator(memory);
    auto stuck = std::make_unique<StuckCopies>(std::make_unique<tiers::HostDevice>(
        tiers::HostDevice::Options{.memory = memory,
                                   .mode = tiers::HostDevice::Mode::threaded,
                                   .location = tiers::DeviceMemory::separate}));
    device = stuck.get();
    made.device = std::move(stuck);
    return made;
  };
  options.hooks.engine_destroyed = [&](swap::Runtime& runtime) { tensors_left = runtime.tensors().size(); };
  options.device_deadline = std::chrono::milliseconds(100);
  {
    const auto rank = Rank::create(std::move(options)).value();
    rank->engine().initialize(filled_with(1.0f)).value();
    device->stuck = true;

    const auto read = rank->engine().read_states(ignore_states);

    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code(), ErrorCode::deadline_exceeded);
    EXPECT_NE(read.error().message().find("copies of kept states"), std::string::npos)
        << read.error().message();
    EXPECT_EQ(rank->engine().status(), Engine::Status::failed);
  }
  EXPECT_EQ(tensors_left, 1u);  // the one that the copy writes
}

}  // namespace
}  // namespace penstock::zero
