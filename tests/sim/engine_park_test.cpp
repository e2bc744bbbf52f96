// What has left the device comes back with the same bits.
#include "kit/cluster.hpp"
#include "kit/deferred_rank.hpp"
#include "kit/failing_copies.hpp"
#include "kit/scratch_directory.hpp"
#include "kit/seeds.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::FailingCopies;
using penstock::test::SeededRandom;
using tiers::Tier;
using enum ParkKinds;

ParkKinds random_kinds(SeededRandom& random) {
  return static_cast<ParkKinds>(1 + random.below(7));
}

OffloadDevice random_tier(SeededRandom& random) {
  return std::array{OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme}[random.below(3)];
}

RunOptions random_run(std::uint64_t seed) {
  SeededRandom random(seed + 21'000);
  RunOptions options{.ranks = 1 + static_cast<std::uint32_t>(random.below(3)),
                     .micro_batches = 1 + static_cast<std::uint32_t>(random.below(3)),
                     .steps = 2,
                     .seed = seed};
  options.model = random.below(2) == 0 ? deep_model() : random_model(random);
  Config& config = options.config;
  config.stage = static_cast<std::uint32_t>(random.below(4));
  config.offload_optimizer.device = random_tier(random);
  config.offload_param.device = config.stage == 3 ? random_tier(random) : OffloadDevice::none;
  if (random.below(3) != 0) options.device_memory = tiers::DeviceMemory::separate;
  const auto format =
      std::array{RunFormat{cpu_adam::StateFormat::fp32}, RunFormat{cpu_adam::StateFormat::split},
                 RunFormat{cpu_adam::StateFormat::fp32, DType::fp32}}[random.below(3)];
  format.set(config);
  if (config.stage == 3 && options.device_memory == tiers::DeviceMemory::separate &&
      config.offload_optimizer.device != OffloadDevice::none)
    config.cpu_update_ratio = std::array{1.0f, 0.5f, 0.0f}[random.below(3)];
  if (random.below(4) == 0) options.model.groups[1].frozen = true;
  if (random.below(3) == 0) {
    options.model.checkpoints = {.count = static_cast<std::uint32_t>(options.model.units.size()),
                                 .size = ByteCount(5000 + random.below(20'000)),
                                 .leased_max = 2};
  }
  if (random.below(4) == 0) {
    options.gradient_scale = [](std::uint32_t step, std::uint32_t) {
      return step == 0 ? std::numeric_limits<float>::infinity() : 1.0f;
    };
  }
  test::keep_random_states(options, seed);
  if (!options.gradient_scale)
    test::update_in_backward_at_random(options, seed);  // no step can be skipped then
  return options;
}

/// Where a run may park, beside host memory.
struct Places {
  bool disk = false;
  std::vector<std::filesystem::path> directories = {};  ///< none: those of the runtime
};
/// Whether the engine of a run has swap directories.
bool uses_disk(const RunOptions& options) {
  Config config = options.config;
  config.offload_param.nvme_paths = config.offload_optimizer.nvme_paths = {"."};
  return !plan_memory(config, options.model, options.ranks, options.ranks, options.device_memory)
              .value()
              .swap_bytes.is_zero();
}

/// Parks at places that a seed chooses, on all ranks, and compares what the reports say.
std::function<Result<void>(Engine&, const RunOptions::ProgramPoint&)> parks_anywhere(
    std::uint64_t seed, std::uint64_t* parked, const Places& places = {}) {
  return [=](Engine& engine, const RunOptions::ProgramPoint& point) -> Result<void> {
    const std::uint64_t key =
        ((((seed * 31 + point.step) * 31 + point.attempt) * 31 + point.micro_batch) * 31 + point.unit) * 5 +
        static_cast<std::uint64_t>(point.place);
    SeededRandom random(key);
    if (random.below(6) != 0) return ok();
    const ParkKinds kinds = random_kinds(random);
    const Tier to = places.disk && random.below(3) != 0 ? Tier::nvme : Tier::host;
    const auto out =
        engine.park(to, kinds, to == Tier::nvme ? places.directories : std::vector<std::filesystem::path>());
    // Another unit has still to write a gradient that it shares.
    if (!out && out.error().message().starts_with("a gradient is being written")) return ok();
    PENSTOCK_TRY(out);
    EXPECT_EQ(engine.parked(), kinds);
    EXPECT_EQ(engine.step().error().code(), ErrorCode::failed_state);
    // Takes what was freed, so that it comes back at other addresses.
    const std::vector<std::vector<std::byte>> taken(64, std::vector<std::byte>(65'536));
    PENSTOCK_TRY_ASSIGN(const ParkReport back, engine.unpark());
    EXPECT_EQ((*out)[Tier::device].given_back, back[Tier::device].taken);
    for (const Tier tier : {Tier::host, Tier::nvme}) {
      EXPECT_EQ((*out)[tier].taken, back[tier].given_back);
      EXPECT_EQ((*out)[tier].given_back, back[tier].taken);
    }
    if (point.rank == 0) ++*parked;
    return ok();
  };
}

void expect_same_bits(const RunOptions& options, std::uint64_t seed,
                      const std::vector<std::filesystem::path>& directories = {}) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  const RunResult expected = train(options);
  ASSERT_FALSE(expected.error) << expected.error->message();
  RunOptions parking = options;
  std::uint64_t parked = 0;
  parking.without_leases =
      parks_anywhere(seed, &parked, {uses_disk(options) || !directories.empty(), directories});

  const RunResult result = train(parking);

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.digest, expected.digest);
  EXPECT_EQ(result.parameters, expected.parameters);
  EXPECT_EQ(result.wrong_checkpoints, 0u);
  EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
}

TEST(EnginePark, ComesBackWithTheSameBitsFromAnyPlaceOfAStep) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 120)) expect_same_bits(random_run(seed), seed);
}

TEST(EnginePark, ComesBackWhereStepsAreAbandoned) {
  for (const std::uint64_t seed : penstock::test::seeds(200, 230)) {
    RunOptions options = random_run(seed);
    options.config.penstock.update_in_backward = false;  // nor abandoned
    options.trainer_error = abandons_anywhere(seed);
    expect_same_bits(options, seed);
  }
}

TEST(EnginePark, ComesBackOnThreadsWhoseStreamsTakeTime) {
  for (const std::uint64_t seed : penstock::test::seeds(300, 312)) {
    RunOptions options = random_run(seed);
    options.seed.reset();
    options.streams.emplace();
    const penstock::test::ScratchDirectory directory;
    expect_same_bits(options, seed, {directory.path()});
  }
}

TEST(EnginePark, LetsTheOtherEngineTrain) {
  for (const std::uint64_t seed : penstock::test::seeds(400, 420)) {
    RunOptions options = random_run(seed), critic = random_run(seed + 1000);
    options.gradient_scale = critic.gradient_scale = {};
    critic.ranks = options.ranks;
    critic.device_memory = options.device_memory;
    if (critic.device_memory == tiers::DeviceMemory::host) critic.config.cpu_update_ratio = 1;
    const std::string alone = train(critic).digest;
    options.beside = {critic};
    std::uint64_t parked = 0;
    options.beside[0].without_leases = parks_anywhere(seed, &parked, {uses_disk(critic)});
    SCOPED_TRACE("seed " + std::to_string(seed));

    const RunResult result = train(options);

    ASSERT_FALSE(result.error) << result.error->message();
    ASSERT_FALSE(result.beside[0].error) << result.beside[0].error->message();
    EXPECT_EQ(result.beside[0].digest, alone);
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
  }
}

/// One rank, all of whose states are kept on a device of its own.
DeferredRank::Options all_kept() {
  DeferredRank::Options options{.config = RunOptions::default_config()};
  options.model.units = {{.name = "unit", .parameters = {{"weight", ElementCount(50'000), 0}}}};
  return options;
}
void initialize(Engine& engine) {
  engine
      .initialize(
          [](ParameterId, std::uint64_t, std::span<float> values) { std::ranges::fill(values, 1.0f); })
      .value();
}

TEST(EnginePark, GivesTheDeviceItsMemoryBack) {
  DeferredRank rank(all_kept());
  initialize(rank.engine());
  const tiers::Ledger& ledger = rank.runtime().ledger();
  const auto tiles = ledger.line(Tier::device, tiers::Purpose::optimizer_tile).held;

  const ParkReport report = rank.engine().park(Tier::host).value();

  EXPECT_EQ(report[Tier::device].given_back, rank.plan().device_budget);
  EXPECT_EQ(rank.device().free_memory(), rank.plan().device_budget);
  EXPECT_TRUE(report.stays.empty());
  for (std::size_t purpose = 0; purpose < tiers::purpose_count; ++purpose)
    EXPECT_EQ(ledger.line(Tier::device, tiers::Purpose(purpose)).held, ByteCount()) << purpose;
  EXPECT_EQ(ledger.line(Tier::host, tiers::Purpose::parked).held, report[Tier::host].taken);
  (void)rank.engine().unpark().value();
  EXPECT_EQ(rank.device().free_memory(), ByteCount());
  EXPECT_EQ(ledger.line(Tier::device, tiers::Purpose::optimizer_tile).held, tiles);
  EXPECT_EQ(ledger.line(Tier::host, tiers::Purpose::parked).held, ByteCount());
}

TEST(EnginePark, GivesBackTheMemoryOfEachKindAlone) {
  DeferredRank rank(all_kept());
  initialize(rank.engine());
  const MemoryPlan& plan = rank.plan();
  for (const auto& [kinds, bytes] : {std::pair{parameters, plan.device_flats() + plan.device_of_parameters()},
                                     {gradients, plan.device_of_gradients()},
                                     {optimizer, plan.device_of_optimizer()}}) {
    const ParkReport report = rank.engine().park(Tier::host, kinds).value();

    EXPECT_EQ(report[Tier::device].given_back, bytes) << to_string(kinds);
    EXPECT_EQ(rank.device().free_memory(), bytes);
    EXPECT_EQ(report.stays.size(), kinds == gradients ? 1u : 0u);
    (void)rank.engine().unpark().value();
  }
}

DeferredRank::Options all_kept_on(FailingCopies*& device) {
  DeferredRank::Options options = all_kept();
  options.change = [&device](Accelerator& made) {
    auto changed = std::make_unique<FailingCopies>(std::move(made.device));
    device = changed.get();
    made.device = std::move(changed);
  };
  return options;
}

TEST(EnginePark, NamesATensorWhoseBytesHaveChanged) {
  FailingCopies* device = nullptr;
  DeferredRank rank(all_kept_on(device));
  initialize(rank.engine());
  (void)rank.engine().park(Tier::host).value();
  device->last_in_host.data()[100] ^= std::byte{4};

  const auto back = rank.engine().unpark();

  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code(), ErrorCode::corrupted);
  EXPECT_NE(back.error().message().find("optimizer tile"), std::string::npos) << back.error().message();
  EXPECT_EQ(rank.engine().status(), Engine::Status::failed);
  EXPECT_EQ(rank.device().free_memory(), rank.plan().device_budget);
}

TEST(EnginePark, GoesOnAfterACopyThatFails) {
  FailingCopies* device = nullptr;
  DeferredRank rank(all_kept_on(device));
  initialize(rank.engine());
  const std::string digest = rank.engine().digest().value();
  device->fails = true;
  EXPECT_EQ(rank.engine().park(Tier::host).error().code(), ErrorCode::io);
  EXPECT_EQ(rank.engine().parked(), none);
  device->fails = false;
  EXPECT_EQ(rank.engine().digest().value(), digest);
  (void)rank.engine().park(Tier::host).value();
  device->fails = true;
  EXPECT_EQ(rank.engine().unpark().error().code(), ErrorCode::io);
  EXPECT_EQ(rank.device().free_memory(), rank.plan().device_budget);
  device->fails = false;

  (void)rank.engine().unpark().value();

  EXPECT_EQ(rank.engine().digest().value(), digest);
}

TEST(EnginePark, WaitsForTheMemoryThatAnotherProgramHasTaken) {
  DeferredRank rank(all_kept());
  initialize(rank.engine());
  const std::string digest = rank.engine().digest().value();
  (void)rank.engine().park(Tier::host).value();
  const DeviceSpan taken = rank.device().allocate(4_KiB).value();

  const auto refused = rank.engine().unpark();

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::budget_too_small) << refused.error().message();
  EXPECT_EQ(rank.engine().parked(), all);
  rank.device().release(taken);
  (void)rank.engine().unpark().value();
  EXPECT_EQ(rank.engine().digest().value(), digest);
}

TEST(EnginePark, EvaluatesWhileTheOptimizerIsParked) {
  DeferredRank rank(all_kept());
  initialize(rank.engine());
  (void)rank.engine().park(Tier::host, optimizer | gradients).value();

  EXPECT_TRUE(rank.engine().acquire(0, rank.stream()));

  EXPECT_EQ(rank.engine().gradients(0, rank.stream()).error().code(), ErrorCode::failed_state);
  EXPECT_EQ(rank.engine().digest().error().code(), ErrorCode::failed_state);
}

TEST(EnginePark, NamesWhatIsWrong) {
  DeferredRank rank(all_kept());
  Engine& engine = rank.engine();
  const auto expect = [](const auto& result, ErrorCode code, const char* text) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), code) << result.error().message();
    EXPECT_NE(result.error().message().find(text), std::string::npos) << result.error().message();
  };
  expect(engine.park(Tier::host), ErrorCode::failed_state, "initialize()");
  initialize(engine);
  expect(engine.unpark(), ErrorCode::failed_state, "nothing is parked");
  expect(engine.park(Tier::host, none), ErrorCode::invalid_argument, "parameters, gradients, optimizer");
  expect(engine.park(Tier::host, ParkKinds(9)), ErrorCode::invalid_argument, "kinds");
  expect(engine.park(Tier::device), ErrorCode::invalid_argument, "host or nvme");
  expect(engine.park(Tier::nvme), ErrorCode::invalid_argument, "pass the directories");
  expect(engine.park(Tier::nvme, all, {"/tmp", ""}), ErrorCode::invalid_argument, "directories[1]");
  expect(engine.park(Tier::host, all, {"/tmp"}), ErrorCode::invalid_argument, "none");
  {
    const auto lease = engine.acquire(0, rank.stream()).value();
    expect(engine.park(Tier::host), ErrorCode::failed_state, "UnitLease");
  }
  auto gradients = engine.gradients(0, rank.stream()).value();
  expect(engine.park(Tier::host), ErrorCode::failed_state, "reduce()");
  engine.abandon_step(rank.stream()).value();
  (void)engine.park(Tier::host).value();
  expect(engine.park(Tier::host), ErrorCode::failed_state, "unpark()");
  expect(engine.acquire(0, rank.stream()), ErrorCode::failed_state, "unpark()");
  expect(engine.begin_step({}), ErrorCode::failed_state, "unpark()");
  expect(engine.abandon_step(rank.stream()), ErrorCode::failed_state, "unpark()");
  expect(engine.digest(), ErrorCode::failed_state, "parameters and optimizer");
  EXPECT_EQ(engine.status(), Engine::Status::ready);
  EXPECT_TRUE(engine.finish_update());
}

TEST(EnginePark, ParksNothingWhereRanksDisagree) {
  RunOptions options{.ranks = 2, .steps = 1, .seed = 1, .device_memory = tiers::DeviceMemory::separate};
  const std::string expected = train(options).digest;
  options.without_leases = [](Engine& engine, const RunOptions::ProgramPoint& point) -> Result<void> {
    if (point.unit != 1 || point.place != RunOptions::ProgramPoint::Place::forward) return ok();
    const auto parked = engine.park(Tier::host, point.rank == 0 ? parameters : optimizer);
    EXPECT_EQ(parked ? ErrorCode::io : parked.error().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(engine.parked(), none);
    return ok();
  };

  const RunResult result = train(options);

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.digest, expected);
}

TEST(EnginePark, ParksNothingWhereRanksNameDifferentTiers) {
  RunOptions options{.ranks = 2, .steps = 1, .seed = 1, .device_memory = tiers::DeviceMemory::separate};
  options.config.offload_optimizer.device = OffloadDevice::nvme;
  const std::string expected = train(options).digest;
  options.without_leases = [](Engine& engine, const RunOptions::ProgramPoint& point) -> Result<void> {
    if (point.unit != 1 || point.place != RunOptions::ProgramPoint::Place::forward) return ok();
    const auto parked = engine.park(point.rank == 0 ? Tier::nvme : Tier::host);
    EXPECT_EQ(parked ? ErrorCode::io : parked.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(parked.error().message().find(point.rank == 0 ? "nvme on all" : "nvme on rank 0"),
              std::string::npos)
        << parked.error().message();
    EXPECT_EQ(engine.parked(), none);
    return ok();
  };

  const RunResult result = train(options);

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.digest, expected);
}

TEST(EnginePark, ParksNothingWhereOneRankMayNot) {
  RunOptions options{.ranks = 2, .steps = 1, .seed = 1, .device_memory = tiers::DeviceMemory::separate};
  const std::string expected = train(options).digest;
  options.without_leases = [](Engine& engine, const RunOptions::ProgramPoint& point) -> Result<void> {
    if (point.unit != 1 || point.place != RunOptions::ProgramPoint::Place::forward) return ok();
    std::vector<std::filesystem::path> directories;
    if (point.rank == 0) directories.emplace_back("/tmp");
    const auto parked = engine.park(Tier::host, all, directories);
    EXPECT_EQ(parked ? ErrorCode::io : parked.error().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(parked.error().message().find("rank 0") != std::string::npos, point.rank == 1);
    EXPECT_EQ(engine.parked(), none);
    return ok();
  };

  const RunResult result = train(options);

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.digest, expected);
}

// The caller's gradients may be where the optimizer's memory was.
TEST(EnginePark, TrainsWhileTheOptimizerIsParked) {
  for (const auto gradients : {RunOptions::Gradients::of_engine, RunOptions::Gradients::on_device}) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      RunOptions options{.ranks = 1 + static_cast<std::uint32_t>(seed % 3), .seed = seed};
      options.device_memory = tiers::DeviceMemory::separate;
      options.device_memory_of_trainer = 4_MiB;
      options.gradients = gradients;
      const RunResult expected = train(options);
      ASSERT_FALSE(expected.error) << expected.error->message();
      options.without_leases = [](Engine& engine, const RunOptions::ProgramPoint& point) -> Result<void> {
        if (point.place == RunOptions::ProgramPoint::Place::before_step) {
          PENSTOCK_TRY(engine.unpark());
        } else if (point.micro_batch == 0 && point.unit == 0 &&
                   point.place == RunOptions::ProgramPoint::Place::forward) {
          PENSTOCK_TRY(engine.park(Tier::host, optimizer));
        }
        return ok();
      };
      const RunResult result = train(options);
      ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
      EXPECT_EQ(result.digest, expected.digest) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace penstock::zero::test
