// The power fails, or the process is killed, at any operation of a run that commits: it goes on with the bits of a run
// that never stopped.
#include "kit/cluster.hpp"
#include "kit/trainer.hpp"

#include <gtest/gtest.h>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::SeededRandom;

constexpr std::uint32_t steps = 5;

RunOptions random_run(std::uint64_t seed) {
  SeededRandom random(seed + 77'000);
  RunOptions options{
      .ranks = 1 + static_cast<std::uint32_t>(random.below(3)), .micro_batches = 1, .steps = steps};
  Config& config = options.config;
  config.stage = 1 + static_cast<std::uint32_t>(random.below(3));
  constexpr std::array places = {OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme,
                                 OffloadDevice::nvme};
  config.offload_optimizer.device = places[random.below(places.size())];
  if (random.below(2) == 0) options.device_memory = tiers::DeviceMemory::separate;
  config.offload_param.device = OffloadDevice::none;
  if (config.stage == 3)
    config.offload_param.device = std::array{OffloadDevice::cpu, OffloadDevice::nvme}[random.below(2)];
  const auto format = std::array{cpu_adam::StateFormat::fp32, cpu_adam::StateFormat::split,
                                 cpu_adam::StateFormat::split_bf16, cpu_adam::StateFormat::split_q8};
  RunFormat{format[random.below(4)]}.set(config);
  return options;
}

/// The disks of all ranks, and how often their power has failed.
struct Machines {
  explicit Machines(std::uint32_t ranks) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      disks.push_back(std::make_unique<tiers::SimDisk>(tiers::SimDisk::Options()));
      disks.back()->make_directory("/");
    }
  }
  [[nodiscard]] std::vector<tiers::SimDisk*> all() const {
    std::vector<tiers::SimDisk*> pointers;
    for (const auto& disk : disks) pointers.push_back(disk.get());
    return pointers;
  }
  std::vector<std::unique_ptr<tiers::SimDisk>> disks;
};

/// Trains with a commit before each step, on machines whose power may fail. Every third run has two directories, which
/// are named in another order each time.
RunResult train_on(const Machines& machines, RunOptions options, std::uint64_t run, std::uint64_t attempt) {
  options.seed = run * 1000 + attempt;
  options.disks = machines.all();
  std::vector<std::filesystem::path> directories = {"/durable"};
  if (run % 3 == 0) directories.insert(attempt % 2 == 0 ? directories.end() : directories.begin(), "/second");
  make_durable(options, std::move(directories), attempt % 2 == 0 ? Commits::at_once : Commits::behind);
  return train(options);
}

/// Crashes until the run has ended. Returns how often.
std::uint64_t crash_until_done(std::uint64_t seed, const std::string& expected) {
  const RunOptions options = random_run(seed);
  Machines machines(options.ranks);
  SeededRandom random(seed);
  std::uint64_t crashes = 0;
  for (std::uint64_t attempt = 0; attempt < 200; ++attempt) {
    // More and more operations, so that it ends.
    tiers::SimDisk& fails = *machines.disks[random.below(options.ranks)];
    const std::uint64_t after = random.below(30 + attempt * attempt), chosen = random.next();
    random.below(3) == 0 ? fails.kill_after(after, chosen) : fails.power_cut_after(after, chosen);
    const RunResult result = train_on(machines, options, seed, attempt);
    const bool failed = !fails.has_power();
    for (const auto& disk : machines.disks) disk->power_on();
    if (!result.error) {
      EXPECT_EQ(result.digest, expected);
      return crashes;
    }
    EXPECT_TRUE(failed) << result.error->message();
    if (!failed) return crashes;
    ++crashes;
  }
  ADD_FAILURE() << "it does not end";
  return crashes;
}

/// A number that the slow lane sets.
std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(EngineCrash, GoesOnWithTheSameBitsWhereverThePowerFails) {
  const std::uint64_t wanted = number_from("PENSTOCK_CRASH_POINTS", 300);
  std::uint64_t crashes = 0;
  for (std::uint64_t seed = number_from("PENSTOCK_CRASH_SEED", 0);
       crashes < wanted && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunOptions whole = random_run(seed);
    whole.seed = seed;
    const RunResult expected = train(whole);
    ASSERT_FALSE(expected.error) << expected.error->message();
    crashes += crash_until_done(seed, expected.digest);
  }
  std::cout << crashes << " crash points, none lost\n";
}

}  // namespace
}  // namespace penstock::zero::test
