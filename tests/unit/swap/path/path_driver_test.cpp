#include "swap/path/path_driver.hpp"

#include "swap/path/path.hpp"
#include "tiers/io/running_time.hpp"
#include "tiers/io/thread_pool_engine.hpp"
#include "tiers/memory/host_arena.hpp"
#include "unit/swap/create_patiently.hpp"
#include "unit/swap/held_engine.hpp"

#include "kit/scratch_directory.hpp"

#include <penstock/tiers/io/sim_disk.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <atomic>
#include <latch>
#include <string>
#include <thread>
#include <vector>

namespace penstock::swap {
namespace {

using test::Gate;
using tiers::BlockFile;
using tiers::IoOperation;

/// A path with a deadline of 64 s, on a clock of the test, whose engine's calls the test can hold.
class PathDriverTest : public testing::Test {
 protected:
  static constexpr TimePoint deadline = std::chrono::seconds(64), step = std::chrono::seconds(1);

  void SetUp() override {
    ASSERT_EQ(tiers::running_time_step(deadline), step);
    PathOptions options{
        .directory = directory_.path(), .capacity = 1_MiB, .deadline = deadline, .clock = &clock_};
    test::hold_engine(options, gate_);
    path_ = Path::create(options).value();
    path_->start_driver([this] { ++notified_; }).value();
  }
  void TearDown() override {
    gate_->release_all();
    path_.reset();
    gate_->wait_until_destroyed();  // an abandoned thread uses the clock
  }
  void post(IoOperation operation, std::uint64_t tag) {
    path_->post({.operation = operation,
                 .offset = FileOffset(tag * 4096),
                 .buffer = arena_.bytes().subspan(tag * 4_KiB, 4_KiB),
                 .tag = tag});
  }
  void take() { path_->take_outcomes(outcomes_); }
  /// The process runs for `time`.
  void run_for(TimePoint time) {
    for (TimePoint passed{}; passed < time; passed += step) {
      clock_.advance_to(clock_.now() + step);
      take();
    }
  }
  /// A write that the engine does not accept, and a read that waits for it; the driver is found in that call.
  void hold_a_write() {
    gate_->hold(Gate::Call::submit);
    post(IoOperation::write, 1);
    gate_->wait_until_held();
    post(IoOperation::read, 2);
    take();
  }
  /// All transfers have ended since the driver does not return.
  void get_stuck() {
    hold_a_write();
    run_for(deadline + 3 * step);
    ASSERT_EQ(outcomes_.size(), 2u);
  }
  Result<void> outcome(std::uint64_t tag) {
    const auto is_it = [tag](const BlockFile::Finished& one) { return one.tag == tag; };
    while (std::none_of(outcomes_.begin(), outcomes_.end(), is_it)) {
      take();
      std::this_thread::yield();
    }
    return std::find_if(outcomes_.begin(), outcomes_.end(), is_it)->result;
  }

  const penstock::test::ScratchDirectory directory_;
  tiers::SimClock clock_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  tiers::HostArena arena_ = tiers::HostArena::create({.size = 1_MiB}).value();
  std::atomic<int> notified_ = 0;
  std::unique_ptr<Path> path_;
  std::vector<BlockFile::Finished> outcomes_;
};

TEST_F(PathDriverTest, EndsAllTransfersWhenItsThreadDoesNotReturnFromACall) {
  hold_a_write();

  run_for(deadline);
  EXPECT_TRUE(outcomes_.empty());
  run_for(3 * step);

  ASSERT_EQ(outcomes_.size(), 2u);
  // The kernel may still read the buffer of the write; the read has not reached it.
  EXPECT_EQ(outcome(1).error().code(), ErrorCode::deadline_exceeded);
  EXPECT_EQ(outcome(2).error().code(), ErrorCode::failed_state);
  for (const auto& one : outcomes_) {
    const std::string message = one.result.error().message();
    for (const std::string& word :
         {directory_.path().string(), std::string("system call"), std::string("try"),
          std::string("64 s without an answer"), "offset " + std::to_string(one.tag * 4096)}) {
      EXPECT_NE(message.find(word), std::string::npos) << word << "\n" << message;
    }
  }
}

TEST_F(PathDriverTest, RefusesTransfersOnceItsThreadHasNotReturned) {
  get_stuck();
  const int before = notified_;

  post(IoOperation::read, 3);

  EXPECT_EQ(outcome(3).error().code(), ErrorCode::failed_state);
  EXPECT_NE(outcome(3).error().message().find("64 s without an answer"), std::string::npos);
  EXPECT_GT(notified_, before);
}

TEST_F(PathDriverTest, DropsTheResultsOfACallThatReturnsAfterItsTransfersHaveEnded) {
  hold_a_write();
  for (std::uint64_t tag = 3; tag < 8; ++tag) post(IoOperation::write, tag);
  run_for(deadline + 3 * step);
  ASSERT_EQ(outcomes_.size(), 7u);

  gate_->release_all();
  (void)path_->stop_driver();
  path_.reset();
  gate_->wait_until_destroyed();

  EXPECT_EQ(gate_->submitted(), 1u);  // the write that was held, and no other
}

TEST_F(PathDriverTest, AbandonsAThreadThatDoesNotReturn) {
  get_stuck();
  const int before = notified_;

  EXPECT_FALSE(path_->stop_driver());
  EXPECT_FALSE(path_->stop_driver());
  path_.reset();
  gate_->release_all();
  gate_->wait_until_destroyed();

  EXPECT_EQ(notified_, before);
}

TEST_F(PathDriverTest, MayBeIdleForLongerThanTheDeadline) {
  post(IoOperation::write, 1);
  EXPECT_TRUE(outcome(1));
  run_for(2 * deadline);

  post(IoOperation::write, 2);
  run_for(2 * step);  // the thread may not have woken up yet

  EXPECT_TRUE(outcome(2));
}

TEST_F(PathDriverTest, MayWaitForRequestsInFlight) {
  gate_->withhold_completions(true);
  post(IoOperation::write, 1);

  while (true) {
    const std::uint64_t before = gate_->wait_until_reaping();
    take();
    if (!outcomes_.empty()) break;  // the thread waits for the next post
    run_for(step);
    gate_->wait_until_reaped(before + 1);
  }

  // The file has ended the request, not the watch.
  const std::string message = outcome(1).error().message();
  EXPECT_NE(message.find("a request did not complete in time"), std::string::npos) << message;
  gate_->withhold_completions(false);
  post(IoOperation::read, 2);
  EXPECT_TRUE(outcome(2));
}

TEST_F(PathDriverTest, GivesEachRequestOfABatchItsOwnDeadline) {
  gate_->hold(Gate::Call::submit);
  for (std::uint64_t tag = 1; tag < 4; ++tag) post(IoOperation::write, tag);

  for (std::uint64_t count = 1; count < 4; ++count) {
    gate_->wait_until_held(count);
    run_for(deadline - 8 * step);
    gate_->release_one();
  }

  for (std::uint64_t tag = 1; tag < 4; ++tag) EXPECT_TRUE(outcome(tag)) << tag;
}

TEST_F(PathDriverTest, CountsNoTimeInWhichItsProcessWasStopped) {
  hold_a_write();

  for (int stop = 0; stop < 30; ++stop) {
    clock_.advance_to(clock_.now() + std::chrono::hours(1));
    take();
  }
  EXPECT_TRUE(outcomes_.empty());

  run_for(deadline);
  EXPECT_EQ(outcomes_.size(), 2u);
}

TEST_F(PathDriverTest, GivesUpBuffersThatTheKernelDoesNotRelease) {
  gate_->hold(Gate::Call::detach);
  path_->replace_buffers({});
  gate_->wait_until_held();
  EXPECT_FALSE(path_->buffers_replaced());
  const int notified = notified_;

  run_for(deadline + 3 * step);

  EXPECT_TRUE(path_->buffers_replaced());
  EXPECT_FALSE(path_->buffers_detached());
  EXPECT_GT(notified_, notified);  // a thread waits for it
  post(IoOperation::read, 1);
  take();
  EXPECT_EQ(outcome(1).error().code(), ErrorCode::failed_state);
}

TEST_F(PathDriverTest, LeavesBuffersToRequestsThatArePastTheirDeadline) {
  gate_->withhold_completions(true);
  post(IoOperation::write, 1);
  while (gate_->submitted() == 0) std::this_thread::yield();
  gate_->wait_until_reaping();
  while (outcomes_.empty()) run_for(step);
  ASSERT_EQ(outcome(1).error().code(), ErrorCode::deadline_exceeded);
  gate_->hold(Gate::Call::detach);  // would never return

  path_->replace_buffers({});
  while (!path_->buffers_replaced()) std::this_thread::yield();

  EXPECT_FALSE(path_->buffers_detached());
}

TEST_F(PathDriverTest, IsWatchedOnlyWhileTransfersAreOutstanding) {
  EXPECT_EQ(path_->watch_interval(), forever);
  hold_a_write();
  EXPECT_EQ(path_->watch_interval(), step);
  gate_->release_all();
  EXPECT_TRUE(outcome(1));
  EXPECT_TRUE(outcome(2));
  EXPECT_EQ(path_->watch_interval(), forever);
}

/// Files whose last call never returns until release().
class HungFiles final : public tiers::FileSystem {
 public:
  std::latch release{1};
  std::atomic<int> closed = 0;

  Result<tiers::File> create_scratch(const std::filesystem::path& directory, ByteCount size,
                                     tiers::DirectIo direct) override {
    PENSTOCK_TRY_ASSIGN(file_, disk_.create_scratch(directory, size, direct));
    return tiers::File(*this, file_.properties());
  }
  Result<tiers::File> create(const std::filesystem::path&, ByteCount, tiers::DirectIo) override {
    return none();
  }
  Result<tiers::File> open(const std::filesystem::path&, tiers::DirectIo) override { return none(); }
  Result<void> rename(const std::filesystem::path&, const std::filesystem::path&) override { return none(); }
  Result<void> remove(const std::filesystem::path&) override { return none(); }
  Result<void> create_directory(const std::filesystem::path&) override { return none(); }
  Result<void> remove_directory(const std::filesystem::path&) override { return none(); }
  Result<std::vector<std::string>> list(const std::filesystem::path&) override { return none(); }
  Result<void> sync_directory(const std::filesystem::path&) override { return none(); }
  Result<tiers::DirectoryLock> lock(const std::filesystem::path&) override { return none(); }
  Result<ByteCount> free_space(const std::filesystem::path&) override { return none(); }
  std::string type_name(const std::filesystem::path&) override { return "hung"; }

 private:
  static Error none() { return Error::unsupported("HungFiles"); }
  void close(tiers::FileHandle) noexcept override {
    release.wait();
    ++closed;
    closed.notify_all();
  }
  Result<ByteCount> size(const tiers::File::Properties&) override { return none(); }
  Result<void> extend(const tiers::File::Properties&, ByteCount) override { return none(); }
  Result<void> read(const tiers::File::Properties&, FileOffset, HostSpan) override { return none(); }
  Result<void> write(const tiers::File::Properties&, FileOffset, ConstHostSpan) override { return none(); }
  Result<void> sync(const tiers::File::Properties&) override { return none(); }

  tiers::SimDisk disk_{{}};
  tiers::File file_;
};

class PathClose : public testing::TestWithParam<bool> {};

TEST_P(PathClose, IsGivenUpAtTheDeadline) {
  HungFiles files;
  PathOptions options{.directory = "hung",
                      .capacity = 1_MiB,
                      .deadline = std::chrono::milliseconds(200),
                      .file_system = &files,
                      .make_engine = [](const tiers::File::Properties&) {
                        return tiers::create_thread_pool_engine({.threads = 1});
                      }};
  auto path = test::create_patiently([&] { return Path::create(options); });
  if (GetParam()) path->start_driver([] {}).value();

  EXPECT_TRUE(path->stop_driver());  // the engine uses no buffer any more
  path.reset();

  EXPECT_EQ(files.closed, 0);
  files.release.count_down();
  files.closed.wait(0);
}

// A thread of the engine may be about to use the handle, which would name another file.
TEST_P(PathClose, LeavesAFileOpenThatARequestMayStillUse) {
  HungFiles files;
  files.release.count_down();
  const auto gate = std::make_shared<Gate>();
  gate->keep_in_use();
  PathOptions options{.directory = "left open", .capacity = 1_MiB, .file_system = &files};
  options.make_engine = [](const tiers::File::Properties&) {
    return tiers::create_thread_pool_engine({.threads = 1});
  };
  test::hold_engine(options, gate);
  auto path = test::create_patiently([&] { return Path::create(options); });
  if (GetParam()) path->start_driver([] {}).value();

  EXPECT_FALSE(path->stop_driver());
  path.reset();
  gate->wait_until_destroyed();

  EXPECT_EQ(files.closed, 0);
}

INSTANTIATE_TEST_SUITE_P(Threads, PathClose, testing::Bool(), [](const auto& with) {
  return std::string(with.param ? "WithADriver" : "WithoutADriver");
});

TEST_F(PathDriverTest, DoesNotWaitForAnEngineThatDoesNotClose) {
  PathOptions options{
      .directory = directory_.path(), .capacity = 1_MiB, .deadline = std::chrono::milliseconds(20)};
  const auto gate = std::make_shared<Gate>();
  test::hold_engine(options, gate);
  auto path = test::create_patiently([&] { return Path::create(options); });
  path->start_driver([] {}).value();
  gate->hold(Gate::Call::close);

  EXPECT_FALSE(path->stop_driver());

  path.reset();
  gate->release_all();
  gate->wait_until_destroyed();
}

TEST_F(PathDriverTest, DoesNotNotifyOnceItsThreadWasAbandonedInACall) {
  PathOptions options{.directory = directory_.path(),
                      .capacity = 1_MiB,
                      .deadline = std::chrono::milliseconds(20),
                      .clock = &clock_};
  const auto gate = std::make_shared<Gate>();
  test::hold_engine(options, gate);
  auto path = test::create_patiently([&] { return Path::create(options); });
  path->start_driver([this] { ++notified_; }).value();
  gate->hold(Gate::Call::submit);
  path->post(
      {.operation = IoOperation::write, .offset = {}, .buffer = arena_.bytes().subspan(ByteCount(), 4_KiB)});
  gate->wait_until_held();

  EXPECT_FALSE(path->stop_driver());

  path.reset();
  gate->release_all();
  gate->wait_until_destroyed();
  EXPECT_EQ(gate->submitted(), 1u);
  EXPECT_EQ(notified_, 0);
}

}  // namespace
}  // namespace penstock::swap
