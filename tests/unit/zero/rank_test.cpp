#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/rank.hpp>

#include "kit/scratch_directory.hpp"

#include <penstock/zero/comm/in_process_group.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace penstock::zero {
namespace {

using penstock::test::ScratchDirectory;

ModelLayout two_units() {
  ModelLayout model;
  for (const char* name : {"first", "second"}) {
    model.units.push_back({.name = name, .parameters = {{"weight", ElementCount(20'000), 0}}});
  }
  return model;
}

Rank::Options options() {
  return {.config = {}, .model = two_units()};
}

Rank::Options on_disk(const ScratchDirectory& directory) {
  Rank::Options on_disk = options();
  on_disk.config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {directory.path()}};
  on_disk.config.penstock.tile_elements = ElementCount(16'384);
  on_disk.hooks.runtime_options = [](swap::RuntimeOptions& runtime) {
    for (swap::PathOptions& path : runtime.paths) path.weight = 1;
  };
  return on_disk;
}

void zeros(ParameterId, std::uint64_t, std::span<float> values) {
  std::fill(values.begin(), values.end(), 0.0f);
}

/// One step whose gradients are zero.
Result<StepOutcome> step(Rank& rank) {
  Engine& engine = rank.engine();
  PENSTOCK_TRY_ASSIGN(auto stream, rank.device().create_stream());
  PENSTOCK_TRY(engine.begin_step({}));
  for (std::uint32_t unit = static_cast<std::uint32_t>(rank.model().units.size()); unit-- > 0;) {
    PENSTOCK_TRY_ASSIGN(auto weights, engine.acquire(unit, *stream));
    PENSTOCK_TRY_ASSIGN(auto gradients, engine.gradients(unit, *stream));
    for (const GradientSlot& slot : gradients.slots()) {
      PENSTOCK_TRY(rank.device().fill_zero(stream->handle(), slot.tensor.bytes));
      PENSTOCK_TRY(rank.compute().scale(stream->handle(), slot.tensor, 0.5f));
    }
    weights.end();
    PENSTOCK_TRY(engine.reduce(std::move(gradients), *stream));
  }
  return engine.step();
}

TEST(Rank, TrainsAloneWithNothingButAConfigurationAndALayout) {
  auto rank = Rank::create(options()).value();
  ASSERT_TRUE(rank->engine().initialize(zeros));

  const auto outcome = step(*rank);

  ASSERT_TRUE(outcome) << outcome.error().message();
  EXPECT_EQ(outcome->step, 1u);
  EXPECT_EQ(rank->identity().ranks, 1u);
  EXPECT_TRUE(rank->plan().shares_memory);
  EXPECT_GE(rank->workers().threads(), 1u);
  EXPECT_TRUE(rank->notes().empty());
}

TEST(Rank, TrainsWithSeveralRanksInThreads) {
  constexpr std::uint32_t ranks = 2;
  const ScratchDirectory directory;
  auto group = InProcessGroup::create(ranks).value();
  std::vector<std::string> digests(ranks);
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      Rank::Options mine = on_disk(directory);
      mine.identity = RankIdentity::local(r, ranks);
      mine.group = in_process_membership(group, r);
      auto rank = Rank::create(std::move(mine)).value();
      rank->engine().initialize(zeros).value();
      EXPECT_TRUE(step(*rank));
      digests[r] = rank->engine().digest().value();
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_EQ(directory.entry_count(), 0u);
}

TEST(Rank, KeepsTheTensorsOfItsEngineFromOthers) {
  const ScratchDirectory directory;
  auto rank = Rank::create(on_disk(directory)).value(), other = Rank::create(on_disk(directory)).value();
  swap::Runtime& runtime = rank->runtime();
  const auto own =
      runtime.add({.name = "own", .key = {.owner = 7}, .size = ByteCount(4096)}, /*on_disk=*/true).value();
  const auto misuse = [&] {
    for (const tiers::TensorId tensor : runtime.tensors()) {
      if (tensor == own) continue;
      for (const auto access : {swap::Access::read, swap::Access::modify, swap::Access::overwrite})
        EXPECT_FALSE(runtime.acquire(tensor, access)) << runtime.name(tensor);
      EXPECT_FALSE(runtime.discard(tensor)) << runtime.name(tensor);
      EXPECT_FALSE(runtime.remove(tensor)) << runtime.name(tensor);
    }
  };
  for (const auto& each : {rank.get(), other.get()}) each->engine().initialize(zeros).value();
  misuse();
  for (int i = 0; i < 2; ++i) {
    for (const auto& each : {rank.get(), other.get()}) ASSERT_TRUE(step(*each));
    misuse();
  }

  EXPECT_EQ(rank->engine().digest().value(), other->engine().digest().value());
  EXPECT_TRUE(runtime.acquire(own, swap::Access::overwrite));
  EXPECT_TRUE(runtime.remove(own));
}

/// The digest that every one of `ranks` ranks computes of a model whose values depend on their parameter's name and
/// place alone.
std::string digest_of(const ModelLayout& model, std::uint32_t ranks) {
  auto group = InProcessGroup::create(ranks).value();
  std::vector<std::string> digests(ranks);
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      Rank::Options mine{.config = {}, .model = model};
      mine.config.penstock.tile_elements = ElementCount(16'384);
      mine.identity = RankIdentity::local(r, ranks);
      mine.group = in_process_membership(group, r);
      auto rank = Rank::create(std::move(mine)).value();
      rank->engine()
          .initialize([&](ParameterId id, std::uint64_t first, std::span<float> values) {
            const char name = model.units[id.unit].parameters[id.index].name[0];
            for (float& value : values) value = static_cast<float>(name) + static_cast<float>(first++);
          })
          .value();
      digests[r] = rank->engine().digest().value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::count(digests.begin(), digests.end(), digests[0]), ranks);
  return digests[0];
}

TEST(Rank, ComputesOneDigestForAnyNumberOfRanksAndDivisionIntoUnits) {
  const ParameterLayout a{"a", ElementCount(20'001), 0}, b{"b", ElementCount(130), 0},
      c{"c", ElementCount(17'000), 0};
  const ModelLayout model{
      .units = {{.name = "first", .parameters = {a}}, {.name = "second", .parameters = {b, c}}}};
  const ModelLayout one_unit{.units = {{.name = "all", .parameters = {a, b, c}}}};

  const std::string digest = digest_of(model, 1);

  EXPECT_EQ(digest_of(model, 2), digest);
  EXPECT_EQ(digest_of(model, 4), digest);
  EXPECT_EQ(digest_of(one_unit, 3), digest);
}

TEST(Rank, RefusesAnIdentityThatIsNone) {
  for (const RankIdentity& wrong :
       {RankIdentity{.rank = 1}, RankIdentity{.ranks = 0}, RankIdentity{.local_rank = 2, .local_ranks = 2},
        RankIdentity{.local_ranks = 0}}) {
    Rank::Options refused = options();
    refused.identity = wrong;
    const auto rank = Rank::create(std::move(refused));
    ASSERT_FALSE(rank);
    EXPECT_EQ(rank.error().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(rank.error().message().find("below 0"), std::string::npos) << rank.error().message();
  }
}

TEST(Rank, RefusesSeveralRanksWithoutAGroup) {
  Rank::Options refused = options();
  refused.identity = RankIdentity::local(0, 2);

  const auto rank = Rank::create(std::move(refused));

  ASSERT_FALSE(rank);
  EXPECT_NE(rank.error().message().find("in_process_membership()"), std::string::npos)
      << rank.error().message();
}

/// Rank 0 of a group of two, in which rank 1 fails.
struct Peer {
  /// The message of the error that this rank gets in its next collective.
  std::string failure() {
    const double mine = 0;
    std::vector<double> all(2);
    const auto started =
        communicator->start_exchange(ConstHostSpan(std::span(&mine, 1)), HostSpan(std::span(all)), {});
    if (started) return "no failure";
    EXPECT_EQ(started.error().code(), ErrorCode::peer_failed);
    return started.error().message();
  }
  Rank::Options options_of_rank_1() const {
    Rank::Options failing = options();
    failing.identity = RankIdentity::local(1, 2);
    failing.group = in_process_membership(group, 1);
    return failing;
  }

  std::shared_ptr<InProcessGroup> group = InProcessGroup::create(2).value();
  Accelerator accelerator = make_host_accelerator(1_MiB);
  std::unique_ptr<Communicator> communicator =
      group->join(0, *accelerator.device, *accelerator.compute).value();
};

TEST(Rank, FailsAtTheDeadlineOfTheGroupIfAPeerNeverJoins) {
  Rank::Options alone = options();
  alone.identity = RankIdentity::local(0, 2);
  alone.group = in_process_membership(
      InProcessGroup::create(2, {.deadline = std::chrono::milliseconds(50)}).value(), 0);
  const auto rank = Rank::create(std::move(alone)).value();
  ASSERT_TRUE(rank->engine().initialize(zeros));

  const auto outcome = step(*rank);

  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code(), ErrorCode::deadline_exceeded) << outcome.error().message();
  EXPECT_NE(outcome.error().message().find("rank 1 (has not joined the group)"), std::string::npos)
      << outcome.error().message();
  EXPECT_EQ(rank->engine().status(), Engine::Status::failed);
}

TEST(Rank, GivesThePeersTheCauseWhenItFailsBeforeItHasJoined) {
  Peer peer;
  Rank::Options failing = peer.options_of_rank_1();
  failing.make_accelerator = [](ByteCount) -> Result<Accelerator> {
    return Error(ErrorCode::no_space, "test").reason("no accelerator");
  };

  EXPECT_EQ(Rank::create(std::move(failing)).error().code(), ErrorCode::no_space);

  const std::string failure = peer.failure();
  EXPECT_NE(failure.find("no accelerator"), std::string::npos) << failure;
}

TEST(Rank, GivesThePeersTheCauseWhenAFunctionThrows) {
  Peer peer;
  Rank::Options failing = peer.options_of_rank_1();
  failing.make_accelerator = [](ByteCount) -> Result<Accelerator> { throw std::runtime_error("mine"); };

  EXPECT_THROW((void)Rank::create(std::move(failing)), std::runtime_error);

  const std::string failure = peer.failure();
  EXPECT_NE(failure.find("threw an exception"), std::string::npos) << failure;
}

TEST(Rank, RefusesACommunicatorOfAnotherRankAndGivesThePeersTheCause) {
  Peer peer;
  Rank::Options refused = peer.options_of_rank_1();
  refused.identity = RankIdentity::local(0, 2);

  const auto rank = Rank::create(std::move(refused));

  ASSERT_FALSE(rank);
  EXPECT_NE(rank.error().message().find("rank 1 of 2"), std::string::npos) << rank.error().message();
  const std::string failure = peer.failure();
  EXPECT_NE(failure.find("the communicator belongs to another rank"), std::string::npos) << failure;
}

TEST(Rank, GivesThePeersTheCauseWhenItsEngineIsRefused) {
  Peer peer;
  Rank::Options refused = peer.options_of_rank_1();
  refused.hooks.engine_options = [](Engine::Options& engine) { engine.compute = nullptr; };

  EXPECT_EQ(Rank::create(std::move(refused)).error().code(), ErrorCode::invalid_argument);

  const std::string failure = peer.failure();
  EXPECT_NE(failure.find("a required object is missing"), std::string::npos) << failure;
}

TEST(Rank, RefusesANativeReductionOfATransportThatHasNoneUnlessItIsAlone) {
  Peer peer;
  Rank::Options native = peer.options_of_rank_1();
  native.config.penstock.reduction = Reduction::native;

  const auto refused = Rank::create(native);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::unsupported);
  EXPECT_NE(refused.error().message().find("penstock.reduction"), std::string::npos)
      << refused.error().message();
  EXPECT_NE(peer.failure().find("penstock.reduction"), std::string::npos);
  native.identity = {};
  native.group = {};
  native.config.train_batch_size = 1;
  const auto alone = Rank::create(native);
  EXPECT_TRUE(alone) << alone.error().message();
}

TEST(Rank, RefusesAnAcceleratorWithoutItsParts) {
  Rank::Options refused = options();
  refused.make_accelerator = [](ByteCount) -> Result<Accelerator> { return Accelerator{}; };

  EXPECT_EQ(Rank::create(std::move(refused)).error().code(), ErrorCode::invalid_argument);
}

TEST(Rank, RefusesAConfigurationThatCannotBeUsed) {
  Rank::Options refused = options();
  refused.config.offload_optimizer.device = OffloadDevice::nvme;

  const auto rank = Rank::create(std::move(refused));

  ASSERT_FALSE(rank);
  EXPECT_EQ(rank.error().code(), ErrorCode::invalid_config);
}

TEST(Rank, RefusesAConfigurationThatWasReadForAnotherNumberOfRanks) {
  Rank::Options read = options();
  read.config = Config::from_text(R"({"train_batch_size": 6})", "ds_config.json", /*world_size=*/3).value();

  const auto refused = Rank::create(std::move(read));

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_config);
  for (const std::string words : {"train_batch_size", "wanted 2 =", "got 6", "from_file(path, 1)"}) {
    EXPECT_NE(refused.error().message().find(words), std::string::npos) << refused.error().message();
  }
}

/// The plan of a rank whose device is host memory and that fits exactly.
TEST(Rank, NeedsNoMoreThanThePlanForItsDevice) {
  for (const bool own_accelerator : {false, true}) {
    Rank::Options mine = options();
    const auto plan = plan_memory(mine.config, mine.model, 1, 1, tiers::DeviceMemory::host).value();
    mine.config.penstock.host_budget = plan.host_minimum;
    mine.config.penstock.device_budget = plan.device_minimum;
    if (own_accelerator) {
      mine.make_accelerator = [](ByteCount budget) -> Result<Accelerator> {
        return make_host_accelerator(budget);
      };
    }

    const auto rank = Rank::create(std::move(mine));

    EXPECT_TRUE(rank) << rank.error().message();
  }
}

TEST(Rank, GivesTheEngineWhatThePlanSaysAndTheTrainerTheRestOfTheDevice) {
  Rank::Options mine = options();
  ByteCount budget;
  mine.make_accelerator = [&](ByteCount engine_budget) -> Result<Accelerator> {
    budget = engine_budget;
    return make_host_accelerator(
        {.memory = engine_budget + 1_MiB, .location = tiers::DeviceMemory::separate});
  };

  auto rank = Rank::create(std::move(mine)).value();

  EXPECT_EQ(budget, rank->plan().device_budget);
  EXPECT_EQ(rank->device().free_memory(), 1_MiB);
}

TEST(Rank, NamesTheSmallestBudgetOfADeviceWithMemoryOfItsOwn) {
  Rank::Options mine = options();
  mine.config.penstock.device_budget = 4_KiB;
  mine.make_accelerator = [](ByteCount budget) -> Result<Accelerator> {
    return make_host_accelerator({.memory = budget, .location = tiers::DeviceMemory::separate});
  };
  const ByteCount minimum = [&] {
    const auto refused = Rank::create(mine);
    const std::string message = refused.error().message(), words = "wanted at least ";
    EXPECT_EQ(refused.error().code(), ErrorCode::budget_too_small) << message;
    return ByteCount(std::stoull(message.substr(message.find('(', message.find(words)) + 1)));
  }();
  mine.config.penstock.device_budget = minimum;
  EXPECT_TRUE(Rank::create(mine));
}

TEST(Rank, UsesTheWorkersThatItIsGiven) {
  auto workers = parallel::Workers::create({.threads = 2}).value();
  Rank::Options mine = options();
  mine.workers = &workers;

  auto rank = Rank::create(std::move(mine)).value();

  EXPECT_EQ(&rank->workers(), &workers);
}

TEST(Rank, DestroysTheEngineBeforeItsRuntime) {
  const ScratchDirectory directory;
  Rank::Options mine = on_disk(directory);
  std::size_t left = 1;
  mine.hooks.engine_destroyed = [&](swap::Runtime& runtime) { left = runtime.tensors().size(); };

  auto rank = Rank::create(std::move(mine)).value();
  EXPECT_FALSE(rank->runtime().tensors().empty());
  rank.reset();

  EXPECT_EQ(left, 0u);
}

// A build without CUDA reports that; a build with CUDA returns the same error code if the machine has no such device.
TEST(Accelerator, IsRefusedWhereThereIsNoSuchCudaDevice) {
  const auto accelerator = make_cuda_accelerator(99);
  ASSERT_FALSE(accelerator);
  EXPECT_TRUE(accelerator.error().code() == ErrorCode::unsupported ||
              accelerator.error().code() == ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace penstock::zero
