#include "unit/swap/timeline_rows.hpp"
#include "unit/zero/report/reported_rank.hpp"

#include "kit/counting_device.hpp"

#include <penstock/zero/comm/in_process_group.hpp>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <csignal>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::zero {
namespace {

using penstock::test::rows_of;
using penstock::test::ScratchDirectory;
using penstock::test::TimelineEvent;
using test::initialized;
using test::options;
using test::step;

using Rows = std::map<std::string, std::vector<TimelineEvent>>;

/// What a row, and those for what overlaps it, have.
std::set<std::string> names_of(const Rows& rows, const std::string& row) {
  std::set<std::string> names;
  for (int number = 1;; ++number) {
    const auto found = rows.find(number == 1 ? row : row + ' ' + std::to_string(number));
    if (found == rows.end()) return names;
    for (const TimelineEvent& event : found->second) names.insert(event.name);
  }
}

TEST(RankTimeline, HasWhatThePartsOfARankDo) {
  const ScratchDirectory scratch;
  const auto file = scratch.path() / "timeline.json";
  Rank::Options timed = options(scratch);
  timed.config.penstock.timeline_file = file;
  {
    const auto rank = initialized(std::move(timed));
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(step(*rank));
  }

  const auto rows = rows_of(file);

  for (const char* track : {"gathers", "reductions", "updates by the CPU", "reads of path 0",
                            "writes of path 0", "waits for tiles", "trainer"})
    EXPECT_EQ(rows.count(track), 1u) << track;
  EXPECT_EQ(rows.count("trainer 2"), 0u) << "its parts follow each other";
  EXPECT_EQ(names_of(rows, "first parameter shard"), std::set<std::string>{"gathers"});
  EXPECT_EQ(names_of(rows, "first gradient shard"), std::set<std::string>{"reductions"});
  EXPECT_EQ(names_of(rows, "second optimizer tile 1"),
            (std::set<std::string>{"reads of path 0", "waits for tiles", "updates by the CPU",
                                   "writes of path 0"}));
}

/// A rank whose device has memory of its own, and updates tiles.
Rank::Options with_device(const ScratchDirectory& scratch, tiers::HostDevice::Mode mode) {
  Rank::Options timed = options(scratch);
  timed.config.stage = 3;
  timed.config.offload_param = {.device = OffloadDevice::cpu};
  timed.config.model_persistence_threshold = ElementCount(0);
  timed.config.penstock.device_states = 1_MiB;
  timed.config.penstock.timeline_file = scratch.path() / "timeline.json";
  timed.make_accelerator = [mode](ByteCount memory) -> Result<Accelerator> {
    return make_host_accelerator({.memory = memory, .mode = mode, .location = tiers::DeviceMemory::separate});
  };
  return timed;
}

TEST(RankTimeline, HasWhatTheStreamsOfADeviceDo) {
  for (const auto mode : {tiers::HostDevice::Mode::eager, tiers::HostDevice::Mode::threaded}) {
    const ScratchDirectory scratch;
    const TimePoint began = Clock::steady().now();
    {
      const auto rank = initialized(with_device(scratch, mode));
      EXPECT_TRUE(rank->engine().notes().empty()) << rank->engine().notes();
      for (int i = 0; i < 2; ++i) ASSERT_TRUE(step(*rank));
    }
    const TimePoint ended = Clock::steady().now();

    const Rows rows = rows_of(scratch.path() / "timeline.json");

    EXPECT_EQ(names_of(rows, "stream of copies to the device").count("copy to device"), 1u);
    EXPECT_EQ(names_of(rows, "stream of copies to host memory").count("copy to host"), 1u);
    EXPECT_EQ(rows.count("stream of collectives"), 0u) << "the rank is alone";
    EXPECT_EQ(names_of(rows, "stream of updates").count("update"), 1u);
    EXPECT_EQ(names_of(rows, "stream of the trainer"),
              (std::set<std::string>{"fill", "parameters of first", "parameters of second",
                                     "gradients of first", "gradients of second"}));
    const auto microseconds = [](TimePoint time) {
      return std::chrono::duration<double, std::micro>(time).count();
    };
    for (const auto& [row, events] : rows) {
      for (const TimelineEvent& event : events) {
        EXPECT_GE(event.begin, microseconds(began)) << row;
        EXPECT_GE(event.end, event.begin) << row;
        EXPECT_LE(event.end, microseconds(ended)) << row;
      }
    }
  }
}

TEST(RankTimeline, HasTheCollectivesOfSeveralRanks) {
  constexpr std::uint32_t ranks = 2;
  const ScratchDirectory scratch;
  const Rank::Options given = with_device(scratch, tiers::HostDevice::Mode::threaded);
  auto group = InProcessGroup::create(ranks).value();
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      Rank::Options mine = given;
      mine.identity = RankIdentity::local(r, ranks);
      mine.group = in_process_membership(group, r);
      EXPECT_TRUE(step(*initialized(std::move(mine))));
    });
  }
  for (std::thread& thread : threads) thread.join();

  for (const char* file : {"timeline.rank0.json", "timeline.rank1.json"})
    EXPECT_EQ(names_of(rows_of(scratch.path() / file), "stream of collectives"),
              (std::set<std::string>{"gather first", "gather second", "reduce first", "reduce second"}))
        << file;
}

/// A device of an embedder.
class OwnDevice final : public penstock::test::CountingDevice {
 public:
  enum class Clock : std::uint8_t { unsupported, null };
  OwnDevice(std::unique_ptr<tiers::Device> device, Clock clock)
      : CountingDevice(std::move(device)), clock_(clock) {}
  Result<std::unique_ptr<tiers::StreamClock>> create_clock() override {
    if (clock_ == Clock::null) return std::unique_ptr<tiers::StreamClock>();
    return tiers::Device::create_clock();  // what such a device has by itself
  }

 private:
  const Clock clock_;
};

TEST(RankTimeline, LacksTheStreamsOfADeviceWithoutAClockAndSaysSo) {
  const std::pair<OwnDevice::Clock, const char*> cases[] = {
      {OwnDevice::Clock::unsupported, "the device has no clock"},
      {OwnDevice::Clock::null, "it returned no clock"}};
  for (const auto& [clock, reason] : cases) {
    const ScratchDirectory scratch;
    Rank::Options timed = options(scratch);
    timed.config.penstock.timeline_file = scratch.path() / "timeline.json";
    timed.make_accelerator = [clock = clock](ByteCount memory) -> Result<Accelerator> {
      Accelerator accelerator = make_host_accelerator({.memory = memory});
      accelerator.device = std::make_unique<OwnDevice>(std::move(accelerator.device), clock);
      return accelerator;
    };
    {
      const auto rank = initialized(std::move(timed));
      const std::string& notes = rank->engine().notes();
      EXPECT_NE(notes.find("the timeline lacks the streams of the device"), std::string::npos) << notes;
      EXPECT_NE(notes.find(reason), std::string::npos) << notes;
      ASSERT_TRUE(step(*rank));
    }
    const Rows rows = rows_of(scratch.path() / "timeline.json");
    EXPECT_EQ(rows.count("stream of the trainer"), 0u);
    EXPECT_EQ(rows.count("gathers"), 1u);
  }
}

TEST(RankTimeline, SaysInTheLogThatItsEndCouldNotBeWritten) {
  const ScratchDirectory scratch;
  const auto file = scratch.path() / "timeline.json";
  Rank::Options timed = options(scratch);
  timed.config.penstock.timeline_file = file;
  std::vector<std::string> log;
  timed.log = [&](std::string_view line) { log.emplace_back(line); };
  auto rank = initialized(std::move(timed));
  ASSERT_TRUE(step(*rank));
  ASSERT_TRUE(rank->engine().finish_update());
  rank->runtime().wait_for_stores(0);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit none_left{.rlim_cur = std::filesystem::file_size(file), .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none_left), 0);

  rank.reset();

  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  (void)std::signal(SIGXFSZ, ignored);
  ASSERT_EQ(log.size(), 1u);
  EXPECT_NE(log[0].find("timeline.json: the timeline has ended, because it cannot be written"),
            std::string::npos)
      << log[0];
}

}  // namespace
}  // namespace penstock::zero
