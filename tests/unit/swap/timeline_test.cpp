#include "swap/timeline.hpp"

#include "kit/scratch_directory.hpp"
#include "unit/swap/timeline_rows.hpp"

#include <penstock/swap/runtime.hpp>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <json/json.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::swap {
namespace {

using penstock::test::contents;
using penstock::test::parse;
using penstock::test::rows_of;
using penstock::test::ScratchDirectory;
using std::chrono::microseconds;
using namespace std::chrono_literals;

TEST(Timeline, HasARowForEachOfATrackThatOverlap) {
  const ScratchDirectory scratch;
  const auto file = scratch.path() / "timeline.json";
  {
    const auto timeline = Timeline::create(file, /*process=*/3).value();
    const TimePoint first = Clock::steady().now();
    timeline->add("reads of path 0", "block 1", first, 3_MiB);
    timeline->add("reads of path 0", "block 2", first);
    timeline->add("waits", "loads", first);
    timeline->add("reads of path 0", "block 3", Clock::steady().now());
  }

  const Json::Value events = parse(contents(file));
  const auto rows = rows_of(events);

  ASSERT_EQ(rows.size(), 3u);
  ASSERT_EQ(rows.at("reads of path 0").size(), 2u);
  EXPECT_EQ(rows.at("reads of path 0")[0].name, "block 1");
  EXPECT_EQ(rows.at("reads of path 0")[1].name, "block 3");
  EXPECT_EQ(rows.at("reads of path 0 2")[0].name, "block 2");
  EXPECT_EQ(rows.at("waits")[0].name, "loads");
  EXPECT_EQ(events[2]["args"]["bytes"].asUInt64(), 3u << 20);
  EXPECT_EQ(events[0]["name"], "process_name");
  EXPECT_EQ(events[0]["args"]["name"], "rank 3");
  for (const Json::Value& event : events) EXPECT_EQ(event["pid"], 3);
}

TEST(Timeline, HasARowForEachTensorInAProcessOfItsOwn) {
  const ScratchDirectory scratch;
  const auto file = scratch.path() / "timeline.json";
  {
    const auto timeline = Timeline::create(file, /*process=*/3).value();
    const TimePoint first = Clock::steady().now();
    timeline->add("waits", "loads", first);
    timeline->add_of_tensor("reads of path 0", "block 1 tile 0", first, 3_MiB);
    timeline->add_of_tensor("writes of path 1", "block 1 tile 0", Clock::steady().now());
    timeline->add_of_tensor("reads of path 0", "block 1 tile 1", first);
  }

  const Json::Value events = parse(contents(file));
  const auto rows = rows_of(events);

  EXPECT_EQ(rows.size(), 6u);  // of path 0 two, because it reads both tiles at a time
  const auto& tile = rows.at("block 1 tile 0");
  ASSERT_EQ(tile.size(), 2u);
  EXPECT_EQ(tile[0].name, "reads of path 0");
  EXPECT_EQ(tile[1].name, "writes of path 1");
  EXPECT_EQ(rows.at("block 1 tile 1").size(), 1u);
  EXPECT_EQ(rows.at("reads of path 0 2")[0].name, "block 1 tile 1");
  std::map<std::string, int> processes;
  std::vector<std::uint64_t> bytes;
  for (const Json::Value& event : events) {
    if (event["name"] == "process_name") processes[event["args"]["name"].asString()] = event["pid"].asInt();
    if (event["ph"] != "X") continue;
    EXPECT_EQ(event["pid"], event["cat"] == "tensor" ? 1'000'003 : 3) << event;
    if (event["args"].isMember("bytes")) bytes.push_back(event["args"]["bytes"].asUInt64());
  }
  EXPECT_EQ(processes, (std::map<std::string, int>{{"rank 3", 3}, {"tensors of rank 3", 1'000'003}}));
  EXPECT_EQ(bytes, (std::vector<std::uint64_t>{3u << 20, 3u << 20}));  // in both processes
}

TEST(Timeline, IsJsonWhateverTheNamesAre) {
  const ScratchDirectory scratch;
  const auto file = scratch.path() / "timeline.json";
  Timeline::create(file).value()->add("a\"b", std::string("\\ \n \xff \xc3\xa4 \0", 10), {});

  const auto rows = rows_of(parse(contents(file)));

  EXPECT_EQ(rows.at("a\"b").at(0).name, std::string("\\ \n \xEF\xBF\xBD \xc3\xa4 \0", 12));
}

TEST(Timeline, IsReadableUntilWhereTheProcessWasKilled) {
  const ScratchDirectory scratch;
  const auto file = scratch.path() / "timeline.json";
  const auto timeline = Timeline::create(file).value();
  for (int i = 0; i < 2000; ++i) timeline->add("waits", "loads", Clock::steady().now());

  timeline->flush();

  EXPECT_EQ(rows_of(parse(contents(file) + "]")).at("waits").size(), 2000u);
}

TEST(Timeline, EndsWhenItIsFull) {
  const ScratchDirectory scratch;
  const auto file = scratch.path() / "timeline.json";
  const auto timeline = Timeline::create(file, 0, 1_MiB).value();
  const std::string name(128 << 10, 'x');

  for (int i = 0; i < 20; ++i) {
    timeline->add("waits", name, Clock::steady().now());
    timeline->flush();
  }

  EXPECT_NE(timeline->take_message().find("has 1.0 MiB"), std::string::npos);
  EXPECT_EQ(timeline->take_message(), "");
  const std::uintmax_t size = std::filesystem::file_size(file);
  EXPECT_GE(size, 1u << 20);
  EXPECT_LT(size, (1u << 20) + 2 * name.size());
  EXPECT_EQ(rows_of(parse(contents(file))).at("waits").size(), 8u);
}

TEST(Timeline, IsWrittenByOneAtATime) {
  const ScratchDirectory scratch;
  const auto file = scratch.path() / "timeline.json";
  auto first = Timeline::create(file).value();
  first->add("track", "event", {});
  const auto second = Timeline::create(file);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::in_use);
  EXPECT_NE(second.error().message().find(file.string()), std::string::npos) << second.error().message();
  first.reset();
  EXPECT_GT(std::filesystem::file_size(file), 0u);
  EXPECT_TRUE(Timeline::create(file));  // begins it anew
}

TEST(Timeline, ReplacesNoOtherFile) {
  const ScratchDirectory scratch;
  const auto file = scratch.path() / "file";
  for (const char* const other : {"[\n{\"train_batch_size\": 8}]", "x", "{}"}) {
    std::ofstream(file) << other;
    const auto timeline = Timeline::create(file);
    ASSERT_FALSE(timeline);
    EXPECT_EQ(timeline.error().code(), ErrorCode::already_exists);
    EXPECT_NE(timeline.error().message().find("timeline_file"), std::string::npos);
    EXPECT_EQ(Timeline::check(file).error().code(), ErrorCode::already_exists);
    EXPECT_EQ(contents(file), other);
  }
  for (const char* const begun : {"", "[", "[\n{\"name\": \"process_na"}) {
    std::ofstream(file) << begun;
    EXPECT_TRUE(Timeline::check(file));
    EXPECT_EQ(contents(file), begun);
    EXPECT_TRUE(Timeline::create(file)) << begun;
  }
  EXPECT_TRUE(Timeline::check(scratch.path() / "none"));
}

TEST(Timeline, IsRefusedWhereItCannotBeWritten) {
  const auto timeline = Timeline::create("/penstock-none/timeline.json");
  ASSERT_FALSE(timeline);
  EXPECT_EQ(timeline.error().code(), ErrorCode::not_found);
  EXPECT_NE(timeline.error().message().find("timeline_file"), std::string::npos);
}

// Its reader could stop the run, or end it.
TEST(Timeline, IsAFile) {
  const ScratchDirectory scratch;
  const auto pipe = scratch.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  for (const auto& other : {pipe, std::filesystem::path("/dev/null"), scratch.path()}) {
    const auto timeline = Timeline::create(other);
    ASSERT_FALSE(timeline) << other;
    EXPECT_EQ(timeline.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(timeline.error().message().find("wanted a regular file"), std::string::npos)
        << timeline.error().message();
  }
  ::close(reader);
}

TEST(Timeline, HasWholeEventsAndItsEndWhereTheDiskIsFull) {
  for (const bool at_the_end : {false, true}) {
    const ScratchDirectory scratch;
    const auto file = scratch.path() / "timeline.json";
    const auto timeline = Timeline::create(file).value();
    std::string said;
    const auto add_some = [&](bool end) {
      for (int i = 0; i < 2000; ++i) timeline->add("waits", "loads", Clock::steady().now());
      if (end) {
        said = timeline->end();
      } else {
        timeline->flush();
        said = timeline->take_message();
      }
    };
    add_some(false);
    EXPECT_EQ(said, "");
    const std::uintmax_t size = std::filesystem::file_size(file);
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit some_more{.rlim_cur = size + 5000, .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &some_more), 0);

    add_some(at_the_end);

    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)std::signal(SIGXFSZ, ignored);
    EXPECT_NE(said.find(file.string()), std::string::npos) << said;
    EXPECT_NE(said.find("cannot be written (File too large)"), std::string::npos) << said;
    timeline->add("waits", "loads", {});
    timeline->flush();
    EXPECT_EQ(timeline->take_message(), "") << "it is said once";
    EXPECT_EQ(timeline->end(), "");
    EXPECT_EQ(rows_of(parse(contents(file))).at("waits").size(), 2000u);
    EXPECT_EQ(std::filesystem::file_size(file), size + 3);
  }
}

TEST(Timeline, SaysThatItsFileWasRemovedOrReplaced) {
  for (const bool replaced : {false, true}) {
    for (const bool at_the_end : {false, true}) {
      const ScratchDirectory scratch;
      const auto file = scratch.path() / "timeline.json";
      const auto timeline = Timeline::create(file).value();
      timeline->add("waits", "loads", {});
      timeline->flush(0s);
      EXPECT_EQ(timeline->take_message(), "");
      std::filesystem::remove(file);
      if (replaced) std::ofstream(file) << "another's";

      timeline->add("waits", "loads", {});
      timeline->flush(at_the_end ? 1h : 0s);
      const std::string said = at_the_end ? timeline->end() : timeline->take_message();

      EXPECT_NE(said.find(file.string() + ": the timeline has ended, because its file was removed"),
                said.npos)
          << said;
      EXPECT_EQ(timeline->end(), "") << "it is said once";
      EXPECT_EQ(std::filesystem::exists(file) ? contents(file) : "", replaced ? "another's" : "");
    }
  }
}

TEST(Timeline, MayEndWhileOtherThreadsAddAndFlush) {
  const ScratchDirectory scratch;
  const auto file = scratch.path() / "timeline.json";
  const auto timeline = Timeline::create(file).value();
  std::atomic<bool> ended = false;
  std::atomic<int> added = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!ended) {
        timeline->add("waits", "loads", Clock::steady().now());
        timeline->flush();
        ++added;
      }
    });
  }
  while (added < 100) std::this_thread::yield();

  EXPECT_EQ(timeline->end(), "");

  ended = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(parse(contents(file)).empty());
  EXPECT_EQ(timeline->take_message(), "");
}

TEST(Timeline, OfARuntimeHasItsReadsWritesAndWaits) {
  const ScratchDirectory scratch;
  const auto file = scratch.path() / "timeline.json";
  {
    const auto runtime = Runtime::create({.host_budget = 64_KiB,
                                          .paths = {{.directory = scratch.path(), .capacity = 1_MiB}},
                                          .timeline_file = file})
                             .value();
    std::vector<tiers::TensorId> tensors;
    for (std::uint32_t i = 0; i < 2; ++i) {
      tensors.push_back(runtime
                            ->add({.name = "tensor " + std::to_string(i), .key = {.unit = i}, .size = 64_KiB},
                                  /*on_disk=*/true)
                            .value());
      runtime->acquire(tensors[i], Access::overwrite).value().end();
    }
    runtime->acquire(tensors[0], Access::read).value().end();
    EXPECT_GT(runtime->stall_time(StallCause::loads), TimePoint());
    EXPECT_EQ(runtime->stall_time(StallCause::loads), runtime->stall_time());
  }

  const auto rows = rows_of(parse(contents(file)));

  ASSERT_EQ(rows.at("writes of path 0").size(), 2u);
  EXPECT_EQ(rows.at("writes of path 0")[0].name, "tensor 0");
  ASSERT_EQ(rows.at("reads of path 0").size(), 1u);
  EXPECT_EQ(rows.at("reads of path 0")[0].name, "tensor 0");
  EXPECT_EQ(rows.at("waits")[0].name, "loads");
}

TEST(Timeline, IsWrittenByTheRuntimesFlushWhichKnowsWhatFails) {
  const ScratchDirectory scratch;
  const auto file = scratch.path() / "timeline.json";
  const auto runtime = Runtime::create({.host_budget = 64_KiB,
                                        .paths = {{.directory = scratch.path(), .capacity = 1_MiB}},
                                        .timeline_file = file})
                           .value();
  std::vector<tiers::TensorId> tensors;
  for (std::uint32_t i = 0; i < 2; ++i) {
    const std::string name = "tensor " + std::to_string(i);
    tensors.push_back(
        runtime
            ->add({.name = name, .key = {.unit = i}, .size = 64_KiB, .write_behind = true}, /*on_disk=*/true)
            .value());
    runtime->acquire(tensors[i], Access::overwrite).value().end();
  }
  ASSERT_TRUE(runtime->flush());
  EXPECT_EQ(rows_of(parse(contents(file) + "]")).at("writes of path 0").size(), 2u);
  EXPECT_TRUE(runtime->take_messages().empty());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit a_little_more{.rlim_cur = std::filesystem::file_size(file) + 100, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &a_little_more), 0);

  runtime->acquire(tensors[0], Access::read).value().end();
  const auto flushed = runtime->flush();

  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  (void)std::signal(SIGXFSZ, ignored);
  EXPECT_TRUE(flushed) << "the run goes on";
  const auto messages = runtime->take_messages();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_NE(messages[0].find("cannot be written (File too large)"), std::string::npos) << messages[0];
}

TEST(Timeline, ThatCannotBeBegunIsAnErrorOfTheRuntime) {
  const ScratchDirectory scratch;
  const auto runtime =
      Runtime::create({.host_budget = 64_KiB, .timeline_file = scratch.path() / "none" / "timeline.json"});

  ASSERT_FALSE(runtime);
  EXPECT_EQ(runtime.error().code(), ErrorCode::not_found);
  EXPECT_NE(runtime.error().message().find("timeline_file"), std::string::npos) << runtime.error().message();
}

}  // namespace
}  // namespace penstock::swap
