#include "unit/swap/timeline_rows.hpp"
#include "unit/zero/report/reported_rank.hpp"

#include "kit/counting_device.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <csignal>
#include <map>
#include <set>
#include <string>
#include <string_view>
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
  EXPECT_EQ(names_of(rows, "first"), (std::set<std::string>{"gathers", "reductions"}));
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
    EXPECT_EQ(names_of(rows, "stream of collectives"),
              (std::set<std::string>{"gather first", "gather second", "reduce first", "reduce second"}));
    EXPECT_EQ(names_of(rows, "stream of updates").count("update"), 1u);
    EXPECT_EQ(names_of(rows, "stream of the trainer"),
              (std::set<std::string>{"parameters of first", "parameters of second", "gradients of first",
                                     "gradients of second"}));
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

TEST(RankTimeline, LacksTheStreamsOfADeviceWithoutAClockAndSaysSo) {
  class WithoutClock final : public penstock::test::CountingDevice {
   public:
    using CountingDevice::CountingDevice;
    Result<std::unique_ptr<tiers::StreamClock>> create_clock() override {
      return tiers::Device::create_clock();  // what an embedder's device has by itself
    }
  };
  const ScratchDirectory scratch;
  Rank::Options timed = options(scratch);
  timed.config.penstock.timeline_file = scratch.path() / "timeline.json";
  timed.make_accelerator = [](ByteCount memory) -> Result<Accelerator> {
    Accelerator accelerator = make_host_accelerator({.memory = memory});
    accelerator.device = std::make_unique<WithoutClock>(std::move(accelerator.device));
    return accelerator;
  };
  {
    const auto rank = initialized(std::move(timed));
    EXPECT_NE(rank->engine().notes().find("the timeline lacks the streams of the device"), std::string::npos)
        << rank->engine().notes();
    EXPECT_NE(rank->engine().notes().find("the device has no clock"), std::string::npos);
    ASSERT_TRUE(step(*rank));
  }
  const Rows rows = rows_of(scratch.path() / "timeline.json");
  EXPECT_EQ(rows.count("stream of the trainer"), 0u);
  EXPECT_EQ(rows.count("gathers"), 1u);
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
