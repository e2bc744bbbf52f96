#include "tiers/io/block_file.hpp"

#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/tiers/io/sim_disk.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::tiers {
namespace {

/// A file with a deadline of 5 s, on a simulated disk that delays requests or never completes them.
class BlockFileDeadline : public testing::Test {
 protected:
  static constexpr TimePoint deadline = std::chrono::seconds(5);

  void open(FaultPlan faults, ByteCount in_flight_max = 1_MiB, std::uint32_t depth = 16) {
    auto sim = std::make_unique<SimEngine>(disk_, clock_, /*seed=*/1, depth);
    sim_ = sim.get();
    engine_ = std::make_unique<FaultEngine>(std::move(sim), std::move(faults), clock_);
    file_.emplace(BlockFile::create(disk_.create_scratch("sim", 256_KiB, DirectIo::preferred).value(),
                                    *engine_,
                                    {.size = 256_KiB,
                                     .request_max = 16_KiB,
                                     .in_flight_max = in_flight_max,
                                     .deadline = deadline,
                                     .clock = &clock_})
                      .value());
  }
  void start(IoOperation operation, std::uint64_t offset, HostSpan buffer, std::uint64_t tag = 1) {
    ASSERT_TRUE(file_->start(operation, FileOffset(offset), buffer, tag));
  }
  [[nodiscard]] HostSpan bytes(ByteCount size, ByteCount first = 0_B) const {
    return HostSpan(memory_.get() + first.value(), size);
  }
  /// The process does not run until `time`.
  void stop_until(TimePoint time) {
    clock_.advance_to(time);
    file_->poll(TimePoint::min());
  }
  /// The process runs until a transfer has ended.
  BlockFile::Finished next_finished() {
    while (true) {
      file_->poll(TimePoint::min());
      if (auto finished = file_->take_finished()) return *finished;
      const TimePoint due = std::min({sim_->next_due(), engine_->next_due(), file_->next_deadline()});
      if (due != forever) clock_.advance_to(due);
    }
  }

  SimDisk disk_{{}};
  SimClock clock_;
  std::unique_ptr<std::byte, decltype(&std::free)> memory_{
      static_cast<std::byte*>(std::aligned_alloc(4096, 131072)), &std::free};
  const SimEngine* sim_ = nullptr;
  std::unique_ptr<FaultEngine> engine_;
  std::optional<BlockFile> file_;
};

TEST_F(BlockFileDeadline, FailsARequestThatNeverCompletesAndWritesNoMore) {
  open({{.occurrence = 1, .effect = Fault::Effect::hang},
        {.operation = IoOperation::read, .occurrence = 1, .effect = Fault::Effect::hang}});

  start(IoOperation::write, 4096, bytes(64_KiB), 7);
  const auto finished = next_finished();

  EXPECT_EQ(finished.tag, 7u);
  ASSERT_FALSE(finished.result);
  EXPECT_EQ(finished.result.error().code(), ErrorCode::deadline_exceeded);
  const std::string message = finished.result.error().message();
  for (const char* word : {"simulated file in sim at offset 20480", "5 s without an answer", "try"}) {
    EXPECT_NE(message.find(word), std::string::npos) << message;
  }
  EXPECT_GE(clock_.now(), deadline);
  EXPECT_EQ(file_->overdue_count(), 1u);
  EXPECT_FALSE(file_->busy());
  auto refused = file_->start(IoOperation::write, FileOffset(0), bytes(64_KiB), 8);
  EXPECT_EQ(refused.error().code(), ErrorCode::failed_state);
  EXPECT_NE(refused.error().message().find("did not complete in time"), std::string::npos);
  // What was written before can be read, until a read hangs too.
  start(IoOperation::read, 0, bytes(16_KiB));
  EXPECT_TRUE(next_finished().result);
  start(IoOperation::read, 0, bytes(16_KiB));
  EXPECT_FALSE(next_finished().result);
  EXPECT_EQ(file_->start(IoOperation::read, FileOffset(0), bytes(64_KiB), 8).error().code(),
            ErrorCode::failed_state);
  EXPECT_FALSE(engine_->close(clock_.now()));
}

TEST_F(BlockFileDeadline, IsReportedEvenIfAnotherPartFailedBefore) {
  open({{.effect = Fault::Effect::hang}, Fault::fail({}, 1, ENODEV)}, /*in_flight_max=*/32_KiB);
  start(IoOperation::read, 0, bytes(32_KiB), 1);
  file_->poll(TimePoint::min());
  start(IoOperation::read, 65536, bytes(32_KiB, 32_KiB), 2);

  std::vector<ErrorCode> codes(3, ErrorCode::io);
  for (int i = 0; i < 2; ++i) {
    const auto finished = next_finished();
    codes[finished.tag] = finished.result ? ErrorCode::invalid_argument : finished.result.error().code();
  }

  EXPECT_EQ(codes[1], ErrorCode::deadline_exceeded);  // the owner of the buffer must know
  // The earlier bytes are complete. The kernel has none of the buffers of the refused transfers.
  EXPECT_NE(codes[2], ErrorCode::deadline_exceeded);
  EXPECT_TRUE(file_->refuses(IoOperation::read) && file_->refuses(IoOperation::write));
}

TEST_F(BlockFileDeadline, RefusesReadsOnceHungWritesOccupyEverySlotOfTheEngine) {
  open({{.operation = IoOperation::write, .count = 100, .effect = Fault::Effect::hang}}, 1_MiB, /*depth=*/4);
  start(IoOperation::write, 0, bytes(128_KiB));
  start(IoOperation::read, 131072, bytes(16_KiB));

  const auto write = next_finished(), read = next_finished();

  EXPECT_EQ(write.result.error().code(), ErrorCode::deadline_exceeded);
  EXPECT_EQ(read.result.error().code(), ErrorCode::failed_state);
  EXPECT_FALSE(file_->busy());
  EXPECT_FALSE(engine_->close(clock_.now()));
}

TEST_F(BlockFileDeadline, LetsASlowRequestComplete) {
  open({{.count = 3, .effect = Fault::Effect::delay, .delay = std::chrono::milliseconds(4900)}});

  for (std::uint64_t tag = 0; tag < 3; ++tag) {
    start(IoOperation::write, 0, bytes(64_KiB), tag);
    EXPECT_TRUE(next_finished().result);
  }

  EXPECT_EQ(file_->overdue_count(), 0u);
}

/// One write of a process that is stopped.
class BlockFileStopped : public BlockFileDeadline {
 protected:
  void start_write(TimePoint takes) {
    open({{.effect = Fault::Effect::delay, .delay = takes}});
    start(IoOperation::write, 0, bytes(16_KiB));
    file_->poll(TimePoint::min());
    stop_until(sim_->next_due());  // from here the delay counts
  }
};

TEST_F(BlockFileStopped, CountsNoTimeInWhichItsProcessWasStopped) {
  start_write(std::chrono::seconds(1004));

  stop_until(std::chrono::seconds(1000));

  EXPECT_TRUE(next_finished().result);
  EXPECT_EQ(file_->overdue_count(), 0u);
}

TEST_F(BlockFileStopped, CountsNoneOfManyStops) {
  start_write(std::chrono::seconds(302));

  for (int stop = 1; stop <= 30; ++stop) stop_until(std::chrono::seconds(10 * stop));

  EXPECT_TRUE(next_finished().result);
}

TEST_F(BlockFileStopped, StillEndsARequestThatHangs) {
  start_write(std::chrono::hours(24));

  stop_until(std::chrono::seconds(1000));

  EXPECT_EQ(next_finished().result.error().code(), ErrorCode::deadline_exceeded);
  EXPECT_GE(clock_.now(), std::chrono::milliseconds(1004800));
  EXPECT_LE(clock_.now(), std::chrono::seconds(1005));
}

}  // namespace
}  // namespace penstock::tiers
