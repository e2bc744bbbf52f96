#include "kit/pattern.hpp"
#include "kit/seeded_random.hpp"
#include "unit/tiers/io/scripted_engine.hpp"

#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/tiers/io/sim_disk.hpp>
#include "tiers/io/block_file.hpp"

#include <gtest/gtest.h>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace penstock::tiers {
namespace {

/// Writes down which requests it was handed and which of them have completed.
class WatchedEngine final : public IoEngine {
 public:
  explicit WatchedEngine(std::unique_ptr<IoEngine> within) : within_(std::move(within)) {}

  std::size_t submit(std::span<const IoRequest> requests) noexcept override {
    const std::size_t accepted = within_->submit(requests);
    for (const IoRequest& request : requests.first(accepted)) {
      if (request.operation == IoOperation::flush) written_at_flush.push_back(written);
      requests_[request.tag] = request;
    }
    return accepted;
  }
  std::size_t reap(std::span<IoCompletion> completions, TimePoint deadline) noexcept override {
    const std::size_t count = within_->reap(completions, deadline);
    for (const IoCompletion& completion : completions.first(count)) {
      const IoRequest& request = requests_.at(completion.tag);
      if (request.operation == IoOperation::write) written.insert(request.offset.value());
    }
    return count;
  }
  void wake() noexcept override { within_->wake(); }
  void attach(FileHandle file, HostSpan buffers) noexcept override { within_->attach(file, buffers); }
  bool detach() noexcept override { return within_->detach(); }
  bool close(TimePoint deadline) noexcept override { return within_->close(deadline); }
  IoLimits limits() const noexcept override { return within_->limits(); }
  std::uint32_t in_flight() const noexcept override { return within_->in_flight(); }
  const char* name() const noexcept override { return within_->name(); }
  std::string notes() const override { return within_->notes(); }

  std::set<std::uint64_t> written;                        // offsets whose write has completed
  std::vector<std::set<std::uint64_t>> written_at_flush;  // those when each flush was submitted

 private:
  std::unique_ptr<IoEngine> within_;
  std::map<std::uint64_t, IoRequest> requests_;
};

/// A file on a simulated disk whose requests complete in an order that a seed chooses, behind faults.
class BlockFileFlush : public testing::Test {
 protected:
  static constexpr ByteCount size = 4_MiB;

  void make(FaultPlan plan, std::uint64_t seed = 1) {
    file_.reset();
    auto sim = std::make_unique<SimEngine>(disk_, clock_, seed);
    sim_ = sim.get();
    auto faulty = std::make_unique<FaultEngine>(std::move(sim), std::move(plan), clock_);
    faults_ = faulty.get();
    engine_ = std::make_unique<WatchedEngine>(std::move(faulty));
    file_.emplace(BlockFile::create(disk_.create_scratch("sim", size, DirectIo::preferred).value(), *engine_,
                                    {.size = size,
                                     .request_max = 8_KiB,
                                     .in_flight_max = 32_KiB,
                                     .deadline = std::chrono::seconds(5),
                                     .clock = &clock_})
                      .value());
  }
  void write(std::uint64_t offset, ByteCount length, std::uint64_t tag) {
    ASSERT_TRUE(file_->start(IoOperation::write, FileOffset(offset), HostSpan(memory_.get(), length), tag));
  }
  void flush(std::uint64_t tag) { ASSERT_TRUE(file_->start(IoOperation::flush, FileOffset(0), {}, tag)); }
  void pass_time() {
    const TimePoint due = std::min({sim_->next_due(), faults_->next_due(), file_->next_deadline()});
    if (due != forever) clock_.advance_to(due);
  }
  /// The transfers in the order in which they finish, until none is in flight.
  std::vector<BlockFile::Finished> run() {
    std::vector<BlockFile::Finished> all;
    while (file_->busy()) {
      file_->poll(TimePoint::min());
      while (auto one = file_->take_finished()) all.push_back(std::move(*one));
      pass_time();
    }
    return all;
  }

  SimDisk disk_{{}};
  SimClock clock_;
  std::unique_ptr<std::byte, decltype(&std::free)> memory_{
      static_cast<std::byte*>(std::aligned_alloc(4096, 65536)), &std::free};
  SimEngine* sim_ = nullptr;
  FaultEngine* faults_ = nullptr;
  std::unique_ptr<WatchedEngine> engine_;
  std::optional<BlockFile> file_;
};

TEST_F(BlockFileFlush, SubmitsEachFlushOnceAllEarlierTransfersHaveCompleted) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    test::SeededRandom random(seed);
    make({}, seed);
    std::set<std::uint64_t> started;                        // offsets of requests
    std::vector<std::set<std::uint64_t>> started_at_flush;  // those before each flush
    std::uint64_t at = 0;
    for (std::uint64_t tag = 0; tag < 40; ++tag) {
      if (random.below(4) == 0) {
        flush(tag);
        started_at_flush.push_back(started);
      } else {
        const ByteCount length = (1 + random.below(5)) * 4_KiB;
        write(at, length, tag);
        for (ByteCount part; part < length; part += 8_KiB) started.insert(at + part.value());
        at += length.value();
      }
      for (std::uint64_t polls = random.below(3); polls > 0; --polls) {
        file_->poll(TimePoint::min());
        pass_time();
      }
    }

    run();

    ASSERT_EQ(engine_->written_at_flush.size(), started_at_flush.size()) << "seed " << seed;
    for (std::size_t i = 0; i < started_at_flush.size(); ++i) {
      EXPECT_TRUE(std::includes(engine_->written_at_flush[i].begin(), engine_->written_at_flush[i].end(),
                                started_at_flush[i].begin(), started_at_flush[i].end()))
          << "seed " << seed << ", flush " << i;
    }
  }
}

TEST_F(BlockFileFlush, DelaysNoTransferThatIsStartedAfterIt) {
  make({{.effect = Fault::Effect::delay, .delay = std::chrono::seconds(1)}});
  write(0, 4_KiB, 1);
  flush(2);
  write(8192, 4_KiB, 3);

  std::vector<std::uint64_t> order;
  for (const BlockFile::Finished& one : run()) {
    EXPECT_TRUE(one.result);
    order.push_back(one.tag);
  }

  EXPECT_EQ(order, (std::vector<std::uint64_t>{3, 1, 2}));
}

TEST_F(BlockFileFlush, CompletesAsAFlushWhenNothingIsInFlight) {
  make({});
  flush(7);

  const auto finished = run();

  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].operation, IoOperation::flush);
  EXPECT_EQ(finished[0].tag, 7u);
  EXPECT_TRUE(finished[0].result);
  EXPECT_EQ(disk_.flush_count(), 1u);
}

TEST_F(BlockFileFlush, SucceedsAfterAWriteWhoseErrorWasReturned) {
  make({Fault::fail(IoOperation::write, 0, ENODEV)});
  write(0, 4_KiB, 1);
  flush(2);

  const auto finished = run();

  EXPECT_EQ(finished.at(0).result.error().code(), ErrorCode::io);
  EXPECT_TRUE(finished.at(1).result);
}

TEST_F(BlockFileFlush, ThatFailsEndsAllWritingAndLetsReadsGoOn) {
  make({Fault::fail(IoOperation::flush, 0, EIO)});
  write(0, 4_KiB, 1);
  flush(2);
  flush(3);
  const auto finished = run();

  EXPECT_EQ(
      finished.at(1).result.error().message(),
      "a flush failed: writes that no earlier flush has made durable may be lost: simulated file in sim: "
      "Input/output error [BlockFile::flush]\n"
      "  try     check the drive and the kernel log; nothing more is written to this swap file");
  EXPECT_EQ(finished.at(1).result.error().code(), ErrorCode::io);
  const Error& queued = finished.at(2).result.error();
  EXPECT_EQ(queued.code(), ErrorCode::failed_state);
  EXPECT_EQ(queued.message().find("refused since a flush failed: simulated file in sim [BlockFile::flush]"),
            0u)
      << queued.message();
  EXPECT_NE(queued.message().find("cause   a flush failed"), std::string::npos) << queued.message();
  for (const IoOperation operation : {IoOperation::write, IoOperation::flush}) {
    EXPECT_TRUE(file_->refuses(operation));
    EXPECT_EQ(file_->start(operation, FileOffset(0), {}, 4).error().code(), ErrorCode::failed_state);
  }
  ASSERT_TRUE(file_->start(IoOperation::read, FileOffset(0), HostSpan(memory_.get(), 4_KiB), 5));
  EXPECT_TRUE(run().at(0).result);
}

TEST_F(BlockFileFlush, RetriesATransientErrorABoundedNumberOfTimes) {
  make({Fault::fail(IoOperation::flush, 0, EINTR, 3), Fault::fail(IoOperation::flush, 4, EINTR, 4)});
  flush(1);
  EXPECT_TRUE(run().at(0).result);
  EXPECT_EQ(file_->counters().retries, 3u);

  flush(2);

  EXPECT_EQ(run().at(0).result.error().os_error(), EINTR);
}

TEST_F(BlockFileFlush, FailsAFlushThatNeverCompletes) {
  make({{.operation = IoOperation::flush, .effect = Fault::Effect::hang}});
  flush(1);

  const auto finished = run();

  EXPECT_EQ(finished.at(0).result.error().code(), ErrorCode::deadline_exceeded);
  EXPECT_EQ(clock_.now(), std::chrono::seconds(5));
  EXPECT_TRUE(file_->refuses(IoOperation::write) && file_->refuses(IoOperation::flush));
  EXPECT_FALSE(file_->refuses(IoOperation::read));
  EXPECT_FALSE(engine_->close(clock_.now()));
}

TEST_F(BlockFileFlush, IsRefusedWhenAWriteBeforeItHangs) {
  make({{.operation = IoOperation::write, .effect = Fault::Effect::hang}});
  write(0, 4_KiB, 1);
  flush(2);

  const auto finished = run();

  EXPECT_EQ(finished.at(0).result.error().code(), ErrorCode::deadline_exceeded);
  EXPECT_EQ(finished.at(1).tag, 2u);
  EXPECT_EQ(finished.at(1).result.error().code(), ErrorCode::failed_state);
  EXPECT_EQ(disk_.flush_count(), 0u);
  EXPECT_FALSE(engine_->close(clock_.now()));
}

TEST_F(BlockFileFlush, TakesNoBuffer) {
  make({});

  auto started = file_->start(IoOperation::flush, FileOffset(0), HostSpan(memory_.get(), 4_KiB), 1);

  EXPECT_EQ(started.error().code(), ErrorCode::invalid_argument);
  EXPECT_FALSE(file_->busy());
}

}  // namespace
}  // namespace penstock::tiers
