#include "zero/memory_watch.hpp"

#include "kit/scratch_directory.hpp"

#include <penstock/tiers/memory/memory_limits.hpp>
#include <penstock/zero/rank.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::zero {
namespace {

using penstock::test::ScratchDirectory;

TEST(MemoryWatch, UsesLessWhereTheReserveIsNotAvailable) {
  const MemoryWatch watch{.reserve = 100_MiB, .least = 64_MiB, .budget = 512_MiB};
  EXPECT_EQ(watch.next(512_MiB, 100_MiB), 512_MiB);
  EXPECT_EQ(watch.next(512_MiB, 90_MiB), 502_MiB);
  EXPECT_EQ(watch.next(512_MiB, 90_MiB + 1_B), 502_MiB);  // whole pages
  EXPECT_EQ(watch.next(512_MiB, 0_B), 412_MiB);
  EXPECT_EQ(watch.next(100_MiB, 0_B), 64_MiB);
  EXPECT_EQ(watch.next(64_MiB, 0_B), 64_MiB);
}

TEST(MemoryWatch, DividesWhatIsMissingBetweenTheRanks) {
  const MemoryWatch watch{.reserve = 100_MiB, .least = 64_MiB, .budget = 512_MiB, .ranks = 5};
  EXPECT_EQ(watch.next(512_MiB, 0_B), 492_MiB);
  EXPECT_EQ(watch.next(300_MiB, 100_MiB + 132_MiB), 320_MiB);  // a fifth of 100 MiB
}

TEST(MemoryWatch, UsesMoreAgainOnceThereIsAnEighthOfTheBudgetBeyondTheReserve) {
  const MemoryWatch watch{.reserve = 100_MiB, .least = 64_MiB, .budget = 512_MiB};
  EXPECT_EQ(watch.next(256_MiB, 164_MiB), 256_MiB);
  EXPECT_EQ(watch.next(256_MiB, 166_MiB), 290_MiB);  // 66 MiB but 32
  EXPECT_EQ(watch.next(256_MiB, 10'000_MiB), 512_MiB);
  EXPECT_EQ(watch.next(512_MiB, 10'000_MiB), 512_MiB);
}

/// A rank whose states are on disk, with room in memory for all of them, in a control group.
class RankWatchesMemory : public testing::Test {
 protected:
  void SetUp() override {
    write("proc/meminfo", "MemTotal:       67108864 kB\nMemAvailable:   50331648 kB\n");
    write("proc/self/cgroup", "0::/job\n");
    write("proc/self/mountinfo", "30 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    allow(1_GiB);
    std::filesystem::create_directory(scratch_.path() / "swap");
    Rank::Options options;
    for (const char* name : {"first", "second"})
      options.model.units.push_back({.name = name, .parameters = {{"weight", ElementCount(1'000'000), 0}}});
    options.config.offload_optimizer = {
        .device = OffloadDevice::nvme, .nvme_paths = {scratch_.path() / "swap"}, .pin_memory = false};
    options.config.penstock.path_weights = {1};
    options.config.penstock.memory_reserve = 100_MiB;
    options.hooks.memory_limit = [this] { return tiers::memory_limit(scratch_.path()); };
    // Room for copies of all tiles, which plan_memory() would make their home.
    options.hooks.runtime_options = [](swap::RuntimeOptions& runtime) { runtime.host_budget += 32_MiB; };
    rank_ = Rank::create(std::move(options)).value();
    rank_->engine()
        .initialize([](ParameterId, std::uint64_t, std::span<float> values) {
          std::fill(values.begin(), values.end(), 1.0f);
        })
        .value();
    stream_ = rank_->device().create_stream().value();
  }
  void write(const std::string& file, const std::string& text) {
    const auto path = scratch_.path() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  /// The group's limit, of which half is used by others.
  void allow(ByteCount bytes) {
    write("sys/fs/cgroup/job/memory.max", std::to_string(bytes.value()) + "\n");
    write("sys/fs/cgroup/job/memory.current", std::to_string(bytes.value() / 2) + "\n");
  }
  void step() {
    Engine& engine = rank_->engine();
    engine.begin_step({}).value();
    for (std::uint32_t unit = 0; unit < 2; ++unit) engine.acquire(unit, *stream_).value().end();
    for (std::uint32_t unit = 2; unit-- > 0;) {
      auto gradients = engine.gradients(unit, *stream_).value();
      for (const GradientSlot& slot : gradients.slots())
        rank_->device().fill_zero(stream_->handle(), slot.tensor.bytes).value();
      engine.reduce(std::move(gradients), *stream_).value();
    }
    engine.step().value();
    engine.finish_update().value();
    rank_->runtime().flush().value();
  }
  /// Steps until the rank says something of the machine's memory: what was leased is given back at a later look.
  std::vector<std::string> look_until_told() {
    for (int i = 0; i < 8; ++i) {
      if (auto messages = look(); !messages.empty()) return messages;
    }
    return {""};
  }
  /// Steps until the rank has looked at the machine's memory again.
  std::vector<std::string> look() {
    std::this_thread::sleep_for(std::chrono::milliseconds(1001));
    step();
    return rank_->runtime().take_messages();
  }

  ScratchDirectory scratch_;
  std::unique_ptr<Rank> rank_;
  std::unique_ptr<tiers::Stream> stream_;
};

TEST_F(RankWatchesMemory, AndFollowsTheLimitOfItsControlGroup) {
  step();
  EXPECT_TRUE(rank_->runtime().take_messages().empty());
  const std::string digest = rank_->engine().digest().value();

  allow(160_MiB);  // 80 MiB are available, 20 MiB too few
  const auto less = look_until_told();
  ASSERT_EQ(less.size(), 1u);
  const ByteCount budget = rank_->runtime().host_memory().size();
  EXPECT_NE(less[0].find("the rank uses " + to_string(budget - 20_MiB)), std::string::npos) << less[0];
  EXPECT_NE(less[0].find("sys/fs/cgroup/job/memory.max"), std::string::npos) << less[0];

  allow(20_MiB);
  EXPECT_NE(look_until_told()[0].find("the rank uses "), std::string::npos);  // the least
  const auto least = look_until_told();
  ASSERT_EQ(least.size(), 1u);
  EXPECT_NE(least[0].find("cannot use less than"), std::string::npos) << least[0];
  EXPECT_TRUE(look().empty()) << "once";

  allow(1_GiB);
  const auto more = look_until_told();
  ASSERT_EQ(more.size(), 1u);
  EXPECT_NE(more[0].find("the rank uses " + to_string(budget)), std::string::npos) << more[0];
  EXPECT_EQ(rank_->engine().digest().value(), digest);  // gradients of zero
}

}  // namespace
}  // namespace penstock::zero
