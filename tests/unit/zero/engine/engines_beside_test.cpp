// Engines that share a rank's runtime: what is refused, and what they share.
#include "kit/counting_device.hpp"
#include "kit/scratch_directory.hpp"
#include "zero/layout/runtime_use.hpp"

#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/comm/in_process_group.hpp>
#include <penstock/zero/rank.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

namespace penstock::zero {
namespace {

using penstock::test::ScratchDirectory;
using tiers::Purpose;
using tiers::Tier;

ModelLayout model_of(std::uint64_t elements, bool frozen) {
  return {.units = {{.name = "first", .parameters = {{"weight", ElementCount(elements), 0}}},
                    {.name = "second", .parameters = {{"weight", ElementCount(elements), 0}}}},
          .groups = {{.frozen = frozen}}};
}

Config on_disk(const ScratchDirectory& directory) {
  Config config;
  config.stage = 3;
  config.offload_param =
      config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {directory.path()}};
  config.penstock.tile_elements = ElementCount(16'384);
  return config;
}

void weigh_paths(swap::RuntimeOptions& runtime) {
  for (swap::PathOptions& path : runtime.paths) path.weight = 1;
}

Rank::Options actor_and_reference(const ScratchDirectory& directory) {
  Config frozen = on_disk(directory);
  frozen.offload_optimizer = {};
  return {.config = on_disk(directory),
          .model = model_of(40'000, /*frozen=*/false),
          .hooks = {.runtime_options = weigh_paths},
          .beside = {{frozen, model_of(30'000, /*frozen=*/true)}}};
}

void ones(ParameterId, std::uint64_t, std::span<float> values) {
  std::fill(values.begin(), values.end(), 1.0f);
}

/// An engine on the rank's runtime that the rank has not planned.
struct OneMore {
  explicit OneMore(Rank& of) : rank(of) {}
  Result<std::unique_ptr<Engine>> create(std::uint32_t number, const Config& config,
                                         const ModelLayout& model) {
    communicator = InProcessGroup::create(1).value()->join(0, rank.device(), rank.compute()).value();
    return Engine::create({.runtime = &rank.runtime(),
                           .device = &rank.device(),
                           .compute = &rank.compute(),
                           .communicator = communicator.get(),
                           .workers = &rank.workers(),
                           .config = config,
                           .model = model,
                           .plan = plan_memory(config, model, 1, 1, tiers::DeviceMemory::host).value(),
                           .engine_number = number});
  }
  Rank& rank;
  std::unique_ptr<Communicator> communicator;
};

/// What a refusal must not change.
struct State {
  std::size_t tensors;
  ByteCount host_free, device_free;
  explicit State(Rank& rank)
      : tensors(rank.runtime().tensors().size()),
        host_free(rank.runtime().host_free()),
        device_free(rank.device().free_memory()) {}
  bool operator==(const State&) const = default;
};

TEST(EnginesBeside, ShareMemoryThatTheLedgerPredictsAsTheSumOfTheirPlans) {
  const ScratchDirectory directory;
  const auto rank = Rank::create(actor_and_reference(directory)).value();

  const tiers::Ledger& ledger = rank->runtime().ledger();
  const MemoryPlan &actor = *rank->plans()[0], &reference = *rank->plans()[1];
  ASSERT_TRUE(rank->engine().initialize(ones));
  ASSERT_TRUE(rank->engines()[1]->initialize(ones));

  EXPECT_EQ(ledger.line(Tier::nvme, Purpose::parameter_shard).held,
            actor.disk_shards + reference.disk_shards);
  EXPECT_EQ(ledger.line(Tier::nvme, Purpose::parameter_shard).predicted,
            actor.disk_shards + reference.disk_shards);
  EXPECT_EQ(ledger.line(Tier::nvme, Purpose::optimizer_tile).held, actor.disk_tiles);
  EXPECT_GE(ledger.line(Tier::host, Purpose::staging).predicted,
            actor.host_staging() + reference.host_staging());
  EXPECT_EQ(rank->runtime().paths().size(), 1u);
}

TEST(EnginesBeside, TakeARuntimeThatWasCreatedForAllOfThem) {
  const ScratchDirectory directory;
  Rank::Options options = actor_and_reference(directory);
  const Config first = options.config, second = options.beside[0].config;
  const ModelLayout model = options.beside[0].model;
  const MemoryPlan plan = plan_memory(first, options.model, 1, 1, tiers::DeviceMemory::host).value();
  const MemoryPlan other = plan_memory(second, model, 1, 1, tiers::DeviceMemory::host).value();
  options.beside.clear();
  options.hooks.runtime_options = [&](swap::RuntimeOptions& runtime) {
    const std::array engines = {PlannedEngine{&first, &plan}, PlannedEngine{&second, &other}};
    runtime = shared_runtime_options(engines, 0).value();
    weigh_paths(runtime);
  };
  const auto rank = Rank::create(std::move(options)).value();
  OneMore more(*rank);

  const auto reference = more.create(1, second, model);

  ASSERT_TRUE(reference) << reference.error().message();
  EXPECT_TRUE((*reference)->initialize(ones));
  EXPECT_TRUE(rank->engine().initialize(ones));
}

TEST(EnginesBeside, HaveNoStagingInWhatRoundingToPagesAdds) {
  const ScratchDirectory directory;
  Config config = on_disk(directory);
  const ModelLayout model = model_of(40'000, /*frozen=*/false);
  const auto plan = [&] { return plan_memory(config, model, 1, 1, tiers::DeviceMemory::host).value(); };
  config.penstock.host_budget = plan().host_minimum;
  const MemoryPlan least = plan();

  const ByteCount kept = least.host_shards + least.host_gradients + least.host_tiles + least.host_results;
  EXPECT_EQ(runtime_use(least, 0).staging, least.host_budget - kept);
  EXPECT_LT(least.host_budget, least.host_allocated());
}

TEST(EnginesBeside, RefuseTheNumberOfAnotherEngine) {
  const ScratchDirectory directory;
  const auto rank = Rank::create(actor_and_reference(directory)).value();
  const State before(*rank);
  OneMore more(*rank);

  const auto refused = more.create(1, Config{}, model_of(10, /*frozen=*/true));

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::already_exists);
  EXPECT_NE(refused.error().message().find("engine number 1"), std::string::npos)
      << refused.error().message();
  EXPECT_EQ(State(*rank), before);
}

TEST(EnginesBeside, RefuseOneMoreThanTheRuntimeHasRoomForAndChangeNothing) {
  const ScratchDirectory directory;
  const auto rank = Rank::create(actor_and_reference(directory)).value();
  const State before(*rank);
  OneMore more(*rank);

  const auto refused = more.create(2, Config{}, model_of(10, /*frozen=*/true));

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::budget_too_small);
  const std::string message = refused.error().message();
  EXPECT_NE(message.find("engine number 2"), std::string::npos) << message;
  EXPECT_NE(message.find("2 other engines"), std::string::npos) << message;
  EXPECT_EQ(State(*rank), before);
  // The engines that are there go on, and the number is free.
  EXPECT_TRUE(rank->engines()[1]->initialize(ones));
  EXPECT_EQ(more.create(2, Config{}, model_of(10, true)).error().code(), ErrorCode::budget_too_small);
}

TEST(EnginesBeside, RefuseSwapFilesThatAreTooSmallForAll) {
  const ScratchDirectory directory;
  Rank::Options options = actor_and_reference(directory);
  options.beside.clear();
  options.hooks.runtime_options = [](swap::RuntimeOptions& runtime) {
    weigh_paths(runtime);
    runtime.host_budget = 64_MiB;
  };
  const auto rank = Rank::create(std::move(options)).value();
  const State before(*rank);
  OneMore more(*rank);

  const auto refused = more.create(1, on_disk(directory), model_of(30'000, /*frozen=*/false));

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::no_space);
  EXPECT_NE(refused.error().message().find("engine number 1"), std::string::npos)
      << refused.error().message();
  EXPECT_EQ(State(*rank), before);
}

TEST(EnginesBeside, RefuseConfigurationsWithDifferentDirectories) {
  const ScratchDirectory directory, another;
  Rank::Options options = actor_and_reference(directory);
  options.beside[0].config.offload_param.nvme_paths = {another.path()};

  const auto rank = Rank::create(std::move(options));

  ASSERT_FALSE(rank);
  EXPECT_EQ(rank.error().code(), ErrorCode::invalid_config);
  EXPECT_NE(rank.error().message().find(another.path().string()), std::string::npos)
      << rank.error().message();
  EXPECT_EQ(directory.entry_count() + another.entry_count(), 0u);
}

/// Counts how often host memory is pinned.
class PinningDevice final : public penstock::test::CountingDevice {
 public:
  PinningDevice(std::unique_ptr<tiers::Device> device, int& pins)
      : CountingDevice(std::move(device)), pins_(pins) {}
  Result<void> pin(HostSpan) override {
    EXPECT_EQ(pins_, 0) << "CUDA refuses to pin memory twice";
    ++pins_;
    return ok();
  }
  void unpin(HostSpan) noexcept override { --pins_; }

 private:
  int& pins_;
};

TEST(EnginesBeside, PinTheMemoryOnceUntilTheLastOneIsDestroyed) {
  int pins = 0, pins_after_engines = -1;
  Config config;
  config.offload_optimizer = {.device = OffloadDevice::cpu, .pin_memory = true};
  Rank::Options options{.config = config, .model = model_of(1000, false)};
  options.beside = {{config, model_of(1000, false)}};
  options.make_accelerator = [&](ByteCount memory) -> Result<Accelerator> {
    Accelerator made = make_host_accelerator(memory);
    made.device = std::make_unique<PinningDevice>(std::move(made.device), pins);
    return made;
  };
  options.hooks.engine_destroyed = [&](swap::Runtime&) { pins_after_engines = pins; };

  auto rank = Rank::create(std::move(options)).value();
  EXPECT_EQ(pins, 1);
  EXPECT_TRUE(rank->notes().empty());
  rank.reset();

  EXPECT_EQ(pins_after_engines, 0);
}

}  // namespace
}  // namespace penstock::zero
