#include "kit/control_group.hpp"
#include "kit/sanitizer.hpp"
#include "kit/scratch_directory.hpp"
#include "swap/runtime_internals.hpp"

#include <penstock/tiers/device/host_device.hpp>
#include <penstock/tiers/memory/memory_limits.hpp>
#include <penstock/zero/rank.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::zero {
namespace {

using test::ControlGroup;
using test::ScratchDirectory;

/// A rank whose states are on disk, with room in memory for all of them.
class TrainedRank {
 public:
  /// `memory_limit`: what it takes for the machine's; without it, the machine's. `room`: host memory beyond the plan's.
  TrainedRank(ByteCount reserve, std::function<tiers::MemoryLimit()> memory_limit, ByteCount room) {
    Rank::Options options;
    for (const char* name : {"first", "second"})
      options.model.units.push_back({.name = name, .parameters = {{"weight", ElementCount(1'000'000), 0}}});
    options.config.offload_optimizer = {
        .device = OffloadDevice::nvme, .nvme_paths = {scratch_.path()}, .pin_memory = false};
    options.config.penstock.path_weights = {1};
    options.config.penstock.memory_reserve = reserve;
    options.hooks.memory_limit = std::move(memory_limit);
    options.hooks.runtime_options = [room](swap::RuntimeOptions& runtime) { runtime.host_budget += room; };
    rank_ = Rank::create(std::move(options)).value();
    rank_->engine()
        .initialize([](ParameterId, std::uint64_t, std::span<float> values) {
          std::fill(values.begin(), values.end(), 1.0f);
        })
        .value();
    stream_ = rank_->device().create_stream().value();
  }

  [[nodiscard]] swap::Runtime& runtime() { return rank_->runtime(); }
  [[nodiscard]] std::uint32_t steps() const { return steps_; }
  [[nodiscard]] std::string digest() { return rank_->engine().digest().value(); }

  /// With gradients that differ from step to step and from unit to unit.
  void step() {
    Engine& engine = rank_->engine();
    engine.begin_step({}).value();
    for (std::uint32_t unit = 0; unit < 2; ++unit) engine.acquire(unit, *stream_).value().end();
    for (std::uint32_t unit = 2; unit-- > 0;) {
      auto gradients = engine.gradients(unit, *stream_).value();
      stream_->synchronize().value();
      for (const GradientSlot& slot : gradients.slots()) {
        std::ranges::fill(tiers::HostDevice::bytes(slot.tensor.bytes).as<float>(),
                          0.25f * static_cast<float>(unit + 1) / static_cast<float>(steps_ + 1));
      }
      engine.reduce(std::move(gradients), *stream_).value();
    }
    engine.step().value();
    engine.finish_update().value();
    runtime().flush().value();
    ++steps_;
  }
  /// Steps until the rank says something of the machine's memory: what was leased is given back at a later look.
  [[nodiscard]] std::vector<std::string> look_until_told() {
    for (int i = 0; i < 8; ++i) {
      if (auto messages = look(); !messages.empty()) return messages;
    }
    return {""};
  }
  /// Steps until the rank has looked at the machine's memory again.
  [[nodiscard]] std::vector<std::string> look() {
    std::this_thread::sleep_for(std::chrono::milliseconds(1001));
    step();
    return runtime().take_messages();
  }

 private:
  ScratchDirectory scratch_;
  std::unique_ptr<Rank> rank_;
  std::unique_ptr<tiers::Stream> stream_;
  std::uint32_t steps_ = 0;
};

/// The digest of a rank that keeps its memory for so many steps.
std::string digest_after(std::uint32_t steps) {
  TrainedRank rank(ByteCount(), nullptr, 32_MiB);
  while (rank.steps() < steps) rank.step();
  return rank.digest();
}

/// A rank in a machine that is made of files.
class RankWatchesMemory : public testing::Test {
 protected:
  void SetUp() override {
    make_available(48_GiB);
    write("proc/self/cgroup", "0::/job\n");
    write("proc/self/mountinfo", "30 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    allow(1_GiB);
    rank_ = std::make_unique<TrainedRank>(
        100_MiB, [this] { return tiers::memory_limit(machine_.path()); }, 32_MiB);
  }
  void write(const std::string& file, const std::string& text) {
    const auto path = machine_.path() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  /// The group's limit, of which half is used by others.
  void allow(ByteCount bytes) {
    write("sys/fs/cgroup/job/memory.max", std::to_string(bytes.value()) + "\n");
    write("sys/fs/cgroup/job/memory.current", std::to_string(bytes.value() / 2) + "\n");
  }
  /// What other processes leave of the machine's 64 GiB.
  void make_available(ByteCount bytes) {
    write("proc/meminfo",
          "MemTotal:       67108864 kB\nMemAvailable:   " + std::to_string(bytes.value() / 1024) + " kB\n");
  }

  ScratchDirectory machine_;
  std::unique_ptr<TrainedRank> rank_;
};

TEST_F(RankWatchesMemory, AndFollowsTheLimitOfItsControlGroup) {
  rank_->step();
  EXPECT_TRUE(rank_->runtime().take_messages().empty());

  allow(160_MiB);  // 80 MiB are available, 20 MiB too few
  const auto less = rank_->look_until_told();
  ASSERT_EQ(less.size(), 1u);
  const ByteCount budget = rank_->runtime().host_memory().size();
  EXPECT_NE(less[0].find("the rank uses " + to_string(budget - 20_MiB)), std::string::npos) << less[0];
  EXPECT_NE(less[0].find("sys/fs/cgroup/job/memory.max"), std::string::npos) << less[0];

  allow(20_MiB);
  EXPECT_NE(rank_->look_until_told()[0].find("the rank uses "), std::string::npos);  // the least
  const auto least = rank_->look_until_told();
  ASSERT_EQ(least.size(), 1u);
  EXPECT_NE(least[0].find("cannot use less than"), std::string::npos) << least[0];
  EXPECT_TRUE(rank_->look().empty()) << "once";

  allow(1_GiB);
  const auto more = rank_->look_until_told();
  ASSERT_EQ(more.size(), 1u);
  EXPECT_NE(more[0].find("the rank uses " + to_string(budget)), std::string::npos) << more[0];
  EXPECT_EQ(rank_->digest(), digest_after(rank_->steps()));
}

TEST_F(RankWatchesMemory, AndGivesWayToOtherProcesses) {
  rank_->step();
  make_available(88_MiB);
  const auto less = rank_->look_until_told();
  ASSERT_EQ(less.size(), 1u);
  const ByteCount budget = rank_->runtime().host_memory().size();
  EXPECT_NE(less[0].find("the rank uses " + to_string(budget - 12_MiB)), std::string::npos) << less[0];
  EXPECT_NE(less[0].find("/proc/meminfo"), std::string::npos) << less[0];

  make_available(48_GiB);
  const auto more = rank_->look_until_told();
  ASSERT_EQ(more.size(), 1u);
  EXPECT_NE(more[0].find("the rank uses " + to_string(budget)), std::string::npos) << more[0];
  EXPECT_EQ(rank_->digest(), digest_after(rank_->steps()));
}

TEST_F(RankWatchesMemory, AndKeepsTheTrainersLimit) {
  rank_->step();
  swap::Runtime& runtime = rank_->runtime();
  const ByteCount budget = runtime.host_memory().size(), trainers = budget - 8_MiB;
  const auto limit = [&] { return swap::RuntimeInternals(runtime).memory_limit(); };

  EXPECT_TRUE(runtime.limit_memory(trainers));
  EXPECT_TRUE(rank_->look().empty());
  EXPECT_EQ(limit(), trainers);

  make_available(88_MiB);
  const auto less = rank_->look_until_told();
  EXPECT_NE(less[0].find("the rank uses " + to_string(trainers - 12_MiB)), std::string::npos) << less[0];
  EXPECT_TRUE(runtime.limit_memory(budget));
  EXPECT_EQ(limit(), trainers - 12_MiB) << "others still need it";
  EXPECT_TRUE(runtime.limit_memory(trainers));

  make_available(48_GiB);
  const auto more = rank_->look_until_told();
  EXPECT_NE(more[0].find("the rank uses " + to_string(trainers)), std::string::npos) << more[0];
  EXPECT_EQ(limit(), trainers);
  EXPECT_TRUE(runtime.limit_memory(budget));
  EXPECT_EQ(limit(), budget);
  EXPECT_EQ(rank_->digest(), digest_after(rank_->steps()));
}

TEST(RankInAControlGroup, ReturnsItsMemoryToTheKernelWhereTheLimitFallsDuringARun) {
  if (test::any_sanitizer) GTEST_SKIP() << "a sanitizer's own memory grows";
  const ControlGroup group;
  if (!group.skip_reason().empty()) GTEST_SKIP() << group.skip_reason();
  if (!group.enter()) GTEST_SKIP() << "it cannot be entered";
  TrainedRank rank(100_MiB, nullptr, 256_MiB);
  rank.step();
  const ByteCount first = group.used();
  for (const ByteCount limit : {first + 40_MiB, first - 30_MiB, first - 100_MiB}) {
    // The rank leaves 100 MiB of each limit, so that there is room for the next one, which is 70 MiB lower.
    ASSERT_LE(group.used(), limit);
    ASSERT_TRUE(group.limit(limit)) << to_string(limit);
    const std::string told = rank.look_until_told()[0];
    EXPECT_NE(told.find("the rank uses "), std::string::npos) << told;
    EXPECT_NE(told.find(group.limit_file()), std::string::npos) << told;
  }
  EXPECT_LE(group.used(), first - 180_MiB);
  ASSERT_TRUE(group.limit(first + 1_GiB));
  EXPECT_NE(rank.look_until_told()[0].find("the rank uses "), std::string::npos);
  EXPECT_EQ(rank.digest(), digest_after(rank.steps()));
}

}  // namespace
}  // namespace penstock::zero
