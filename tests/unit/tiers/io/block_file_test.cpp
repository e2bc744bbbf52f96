#include "tiers/io/block_file.hpp"

#include "kit/pattern.hpp"
#include "unit/tiers/io/scripted_engine.hpp"

#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/tiers/io/sim_disk.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace penstock::tiers {
namespace {

using test::Pattern;

class BlockFileTest : public testing::Test {
 protected:
  BlockFileTest() : file_(make()) {}
  BlockFile make() {
    return BlockFile::create(
               disk_.create_scratch("sim", 256_KiB, DirectIo::preferred).value(), engine_,
               {.size = 256_KiB, .request_max = 16_KiB, .in_flight_max = 32_KiB, .transfers_max = 4})
        .value();
  }
  Result<void> run(IoOperation operation, std::uint64_t offset, HostSpan buffer) {
    PENSTOCK_TRY(file_.start(operation, FileOffset(offset), buffer, 77));
    while (file_.busy()) file_.poll(TimePoint::min());
    auto finished = file_.take_finished();
    EXPECT_EQ(finished->tag, 77u);
    return finished->result;
  }
  HostSpan bytes(ByteCount size, std::size_t which = 0) {
    return HostSpan(memory_.get() + which * 131072, size);
  }

  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> memory_{static_cast<std::byte*>(std::aligned_alloc(4096, 262144))};
  SimDisk disk_{{}};
  ScriptedEngine engine_;
  BlockFile file_;
};

TEST_F(BlockFileTest, SplitsATransferAndReadsItBack) {
  Pattern{.tensor = 1}.fill(bytes(100_KiB));

  ASSERT_TRUE(run(IoOperation::write, 8192, bytes(100_KiB)));
  ASSERT_TRUE(run(IoOperation::read, 8192, bytes(100_KiB, 1)));

  EXPECT_FALSE(Pattern{.tensor = 1}.first_difference(bytes(100_KiB, 1)));
  EXPECT_EQ(engine_.largest, 16_KiB);
  EXPECT_EQ(file_.counters().requests, 14u);
  EXPECT_EQ(file_.counters().bytes_read, 100_KiB);
}

TEST_F(BlockFileTest, CompletesAnEmptyTransfer) {
  EXPECT_TRUE(run(IoOperation::read, 0, bytes(0_B)));
  EXPECT_EQ(engine_.count, 0u);
}

TEST_F(BlockFileTest, ResumesAShortTransferAtTheLastWholeBlock) {
  engine_.script = [](const IoRequest& r, std::size_t index) -> std::optional<std::int64_t> {
    if (index == 0) return 4096 + 1000;
    if (index == 1) {
      EXPECT_EQ(r.offset, FileOffset(4096));
    }
    return std::nullopt;
  };
  Pattern{.tensor = 2}.fill(bytes(16_KiB));

  ASSERT_TRUE(run(IoOperation::write, 0, bytes(16_KiB)));
  ASSERT_TRUE(run(IoOperation::read, 0, bytes(16_KiB, 1)));

  EXPECT_FALSE(Pattern{.tensor = 2}.first_difference(bytes(16_KiB, 1)));
  EXPECT_EQ(file_.counters().short_transfers, 1u);
  EXPECT_EQ(file_.counters().bytes_written, 16_KiB);
}

TEST_F(BlockFileTest, GivesUpOnATransferThatNeverGetsAWholeBlock) {
  engine_.script = [](const IoRequest&, std::size_t) -> std::optional<std::int64_t> { return 100; };

  auto result = run(IoOperation::write, 0, bytes(4_KiB));

  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::truncated);
  EXPECT_EQ(engine_.count, 4u);
}

TEST_F(BlockFileTest, IgnoresCompletionsOfRequestsThatAreNotInFlight) {
  Pattern{.tensor = 4}.fill(bytes(16_KiB));
  ASSERT_TRUE(run(IoOperation::write, 0, bytes(16_KiB)));

  for (const std::uint64_t tag : {std::uint64_t{0}, std::uint64_t{1} << 20, ~std::uint64_t{0}}) {
    engine_.report({.tag = tag, .result = 4096});
  }
  file_.poll(TimePoint::min());

  ASSERT_TRUE(run(IoOperation::read, 0, bytes(16_KiB, 1)));
  EXPECT_FALSE(Pattern{.tensor = 4}.first_difference(bytes(16_KiB, 1)));
  EXPECT_EQ(file_.counters().bytes_read, 16_KiB);
}

TEST_F(BlockFileTest, ReportsATransferOfMoreThanItAskedFor) {
  for (const auto operation : {IoOperation::read, IoOperation::write}) {
    engine_.script = [](const IoRequest&, std::size_t) -> std::optional<std::int64_t> { return 8192; };

    auto result = run(operation, 12288, bytes(4_KiB));

    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), ErrorCode::io);
    for (const std::string words : {"more bytes than were requested", "simulated file in sim",
                                    "at offset 12288", "wanted 4.0 KiB", "got 8.0 KiB"}) {
      EXPECT_NE(result.error().message().find(words), std::string::npos) << result.error().message();
    }
  }
  engine_.script = nullptr;
  EXPECT_TRUE(run(IoOperation::write, 0, bytes(4_KiB)));
}

/// Accepts requests; its result is given by the test, and none before that.
class FailingEngine final : public IoEngine {
 public:
  std::size_t submit(std::span<const IoRequest> requests) noexcept override {
    accepted += requests.size();
    return requests.size();
  }
  std::size_t reap(std::span<IoCompletion>, TimePoint) noexcept override { return 0; }
  void wake() noexcept override {}
  void attach(FileHandle, HostSpan) noexcept override {}
  bool detach() noexcept override { return true; }
  bool close(TimePoint) noexcept override { return false; }
  IoLimits limits() const noexcept override { return {1_GiB, 64}; }
  std::uint32_t in_flight() const noexcept override { return static_cast<std::uint32_t>(accepted); }
  const char* name() const noexcept override { return "failing"; }
  std::string notes() const override { return {}; }
  std::string failure() const override { return reason; }

  std::size_t accepted = 0;
  std::string reason;
};

TEST_F(BlockFileTest, RefusesEverythingAfterAFailureOfItsEngine) {
  FailingEngine engine;
  BlockFile file = BlockFile::create(disk_.create_scratch("sim", 256_KiB, DirectIo::preferred).value(),
                                     engine, {.size = 256_KiB, .request_max = 4_KiB, .in_flight_max = 4_KiB})
                       .value();
  ASSERT_TRUE(file.start(IoOperation::read, FileOffset(0), bytes(8_KiB), 1));  // one part waits
  ASSERT_TRUE(file.start(IoOperation::write, FileOffset(0), bytes(4_KiB), 2));
  file.poll(TimePoint::min());
  EXPECT_TRUE(file.busy());

  engine.reason = "io_uring_enter failed: Bad file descriptor";
  file.poll(TimePoint::min());

  EXPECT_FALSE(file.busy());
  EXPECT_EQ(engine.accepted, 1u);
  EXPECT_EQ(file.overdue_count(), 1u);
  const auto first = file.take_finished(), second = file.take_finished();
  EXPECT_EQ(first->result.error().code(), ErrorCode::deadline_exceeded);
  EXPECT_EQ(second->result.error().code(), ErrorCode::failed_state);
  for (const auto& finished : {*first, *second}) {
    EXPECT_NE(finished.result.error().message().find(engine.reason), std::string::npos)
        << finished.result.error().message();
  }
  for (const auto operation : {IoOperation::read, IoOperation::write, IoOperation::flush}) {
    auto refused = file.start(operation, FileOffset(0), {}, 3);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::failed_state);
  }
}

TEST_F(BlockFileTest, RefusesReadsTooAfterItsEngineHasFailedWithNothingInFlight) {
  FailingEngine engine;
  BlockFile file = BlockFile::create(disk_.create_scratch("sim", 256_KiB, DirectIo::preferred).value(),
                                     engine, {.size = 256_KiB})
                       .value();
  engine.reason = "io_uring_enter failed: Bad file descriptor";
  file.poll(TimePoint::min());

  auto refused = file.start(IoOperation::read, FileOffset(0), bytes(4_KiB), 1);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::failed_state);
  EXPECT_EQ(engine.accepted, 0u);
}

TEST_F(BlockFileTest, NamesTheCauseOfARequestThatTheKernelCancels) {
  engine_.script = [](const IoRequest&, std::size_t) -> std::optional<std::int64_t> { return -ECANCELED; };

  auto result = run(IoOperation::write, 4096, bytes(4_KiB));

  ASSERT_FALSE(result);
  EXPECT_EQ(
      result.error().message(),
      "scripted canceled the request, because the kernel could not start a worker thread for it: simulated "
      "file in sim at offset 4096, wanted 4.0 KiB (4096 B): Operation canceled [BlockFile::write]\n"
      "  try     raise the limit on processes and threads (ulimit -u, pids.max of the container)");
}

TEST_F(BlockFileTest, AdvisesWhatToDoAboutADrivesError) {
  engine_.script = [](const IoRequest&, std::size_t) -> std::optional<std::int64_t> { return -EIO; };

  const auto result = run(IoOperation::read, 0, bytes(4_KiB));

  EXPECT_NE(result.error().message().find("penstock doctor --path"), std::string::npos)
      << result.error().message();
}

TEST_F(BlockFileTest, RetriesATransientErrorABoundedNumberOfTimes) {
  engine_.script = [](const IoRequest&, std::size_t index) -> std::optional<std::int64_t> {
    if (index < 3) return -EAGAIN;
    return std::nullopt;
  };
  EXPECT_TRUE(run(IoOperation::write, 0, bytes(4_KiB)));
  EXPECT_EQ(file_.counters().retries, 3u);

  engine_.script = [](const IoRequest&, std::size_t) -> std::optional<std::int64_t> { return -EAGAIN; };
  EXPECT_FALSE(run(IoOperation::write, 0, bytes(4_KiB)));
}

TEST_F(BlockFileTest, ReportsAnErrorOnceEveryPartHasCompleted) {
  engine_.script = [](const IoRequest&, std::size_t index) -> std::optional<std::int64_t> {
    if (index == 1) return -ENODEV;
    return std::nullopt;
  };

  auto result = run(IoOperation::write, 8192, bytes(64_KiB));

  ASSERT_FALSE(result);
  EXPECT_EQ(
      result.error().message(),
      "input/output error: simulated file in sim at offset 24576, wanted 16.0 KiB (16384 B): "
      "No such device [BlockFile::write]\n"
      "  try     check the kernel log (dmesg) and the drive (penstock doctor --path DIR), or name another "
      "directory");
  EXPECT_EQ(engine_.in_flight(), 0u);
  engine_.script = nullptr;
  EXPECT_TRUE(run(IoOperation::write, 8192, bytes(64_KiB)));
}

TEST_F(BlockFileTest, ReportsAReadBeyondTheEndAsTruncated) {
  engine_.script = [](const IoRequest&, std::size_t) -> std::optional<std::int64_t> { return 0; };

  auto result = run(IoOperation::read, 0, bytes(4_KiB));

  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::truncated);
}

TEST_F(BlockFileTest, RefusesMisalignedTransfersAndThoseBeyondTheEnd) {
  EXPECT_EQ(run(IoOperation::read, 1, bytes(4_KiB)).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(run(IoOperation::read, 0, bytes(100_B)).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(run(IoOperation::read, 0, HostSpan(memory_.get() + 1, 4_KiB)).error().code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(run(IoOperation::read, 252 * 1024, bytes(8_KiB)).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(run(IoOperation::read, ~0ull - 4095, bytes(8_KiB)).error().code(),
            ErrorCode::invalid_argument);  // the end of this one is 4096 modulo 2^64
  EXPECT_EQ(engine_.count, 0u);
}

TEST_F(BlockFileTest, RefusesATransferWhenAllSlotsAreInUse) {
  for (std::uint64_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(file_.start(IoOperation::read, FileOffset(0), bytes(4_KiB), i));
  }

  EXPECT_EQ(file_.start(IoOperation::read, FileOffset(0), bytes(4_KiB), 4).error().code(),
            ErrorCode::would_block);
}

TEST_F(BlockFileTest, IsSaturatedWhileRequestsWaitForOthers) {
  SimClock clock;
  SimEngine engine(disk_, clock, /*seed=*/1);
  auto file = BlockFile::create(disk_.create_scratch("sim", 64_KiB, DirectIo::preferred).value(), engine,
                                {.size = 64_KiB, .request_max = 16_KiB, .in_flight_max = 32_KiB})
                  .value();
  ASSERT_TRUE(file.start(IoOperation::write, FileOffset(0), bytes(64_KiB), 1));
  EXPECT_FALSE(file.saturated());  // nothing is in flight

  file.poll(TimePoint::min());
  EXPECT_TRUE(file.saturated());  // half is in flight, and half waits

  while (file.busy()) {
    clock.advance_to(std::max(clock.now(), engine.next_due()));
    file.poll(TimePoint::min());
  }
  EXPECT_FALSE(file.saturated());
}

// Its owner holds others back, whose order may change.
TEST_F(BlockFileTest, TakesMoreUntilARequestWaitsBesideAllThatMayBeInFlight) {
  SimClock clock;
  SimEngine engine(disk_, clock, /*seed=*/1);
  auto file = BlockFile::create(disk_.create_scratch("sim", 64_KiB, DirectIo::preferred).value(), engine,
                                {.size = 64_KiB, .request_max = 8_KiB, .in_flight_max = 16_KiB})
                  .value();
  EXPECT_TRUE(file.takes_more());
  ASSERT_TRUE(file.start(IoOperation::write, FileOffset(0), bytes(16_KiB), 1));
  EXPECT_TRUE(file.takes_more());
  ASSERT_TRUE(file.start(IoOperation::write, FileOffset(16 << 10), bytes(16_KiB), 2));
  EXPECT_FALSE(file.takes_more());
  file.poll(TimePoint::min());
  EXPECT_FALSE(file.takes_more());
  EXPECT_TRUE(file.saturated());

  ByteCount written;  // when it has last taken none
  while (file.busy()) {
    clock.advance_to(std::max(clock.now(), engine.next_due()));
    file.poll(TimePoint::min());
    if (!file.takes_more()) written = file.counters().bytes_written;
  }
  EXPECT_EQ(written, 8_KiB) << "then two of four requests are in flight, and one waits";
  EXPECT_TRUE(file.takes_more());
  EXPECT_FALSE(file.saturated());
}

}  // namespace
}  // namespace penstock::tiers
