// Ends of gpt_train during a run: by signals, and by what happens to its swap file.
#include "gpt_train_fixture.hpp"

#include "base/owned_fd.hpp"
#include "kit/sanitizer.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <initializer_list>
#include <string>
#include <vector>

namespace gpt::test {
namespace {

class GptTrainThatEnds : public GptTrain {
 protected:
  /// Expects that training had started, and ended with one message and without a result.
  void expect_stopped(const Outcome& outcome, std::initializer_list<const char*> words) {
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    EXPECT_EQ(outcome.output.find("error: "), outcome.output.rfind("error: ")) << outcome.output;
    for (const char* word : words)
      EXPECT_NE(outcome.output.find(word), std::string::npos) << word << " in\n" << outcome.output;
    EXPECT_EQ(digest_in(outcome.output), "") << "no partial claims";
    EXPECT_EQ(swap_.entry_count(), 0u);
  }
  static off_t length_of(const penstock::OwnedFd& file) {
    struct stat status {};
    EXPECT_EQ(::fstat(file.get(), &status), 0);
    return status.st_size;
  }
  /// Applies `damage` to the swap file of a stopped process, after one step and the next until the process ends: what
  /// is in memory at one time, to be written again, is not at another.
  template <class Damage>
  Outcome damage_until_it_ends(const Damage& damage) {
    TrainProcess process(arguments() + endless);
    for (int step = 2; step < 1000 && process.wait_for_output("step " + std::to_string(step) + "/"); ++step) {
      process.kill(SIGSTOP);
      if (const penstock::OwnedFd file(process.open_swap_file(swap())); file.is_open()) damage(file);
      process.kill(SIGCONT);
    }
    return process.finish();
  }
  /// Frees the reserved space of the swap file during a run, and fills the disk with another file.
  Outcome train_until_disk_is_full(const std::string& disk) {
    // Parameter shards alone are on disk, and without a home in memory they are written in every step.
    TrainProcess process(arguments(R"(, "penstock": {"host_budget": "16MiB", "eviction": "reuse_distance"})",
                                   "zero_optimization", "cpu") +
                         endless + " --nvme-path " + disk);
    EXPECT_TRUE(process.wait_for_output("step 2/"));
    process.kill(SIGSTOP);
    const penstock::OwnedFd file(process.open_swap_file(disk));
    EXPECT_TRUE(file.is_open());
    const penstock::OwnedFd other(::open(disk.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
    const std::vector<char> bytes(1 << 12, 'x');
    // A write that the kernel had begun may end after the process is stopped, and take space again.
    struct stat status {};
    do {
      EXPECT_EQ(::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, length_of(file)), 0);
      while (::write(other.get(), bytes.data(), bytes.size()) > 0) {
      }
    } while (::fstat(file.get(), &status) == 0 && status.st_blocks > 0);
    process.kill(SIGCONT);
    return process.finish();
  }
  static constexpr const char* endless = " --steps 100000";
};

TEST_F(GptTrainThatEnds, LeavesNothingBehindWhenItIsKilled) {
  TrainProcess process(arguments() + endless);
  ASSERT_TRUE(process.wait_for_output("step 2/")) << process.finish().output;

  process.kill(SIGKILL);
  const Outcome outcome = process.finish();

  EXPECT_EQ(outcome.status, -SIGKILL);
  EXPECT_EQ(swap_.entry_count(), 0u);
}

TEST_F(GptTrainThatEnds, GoesOnAfterTheReportThatASignalAsksFor) {
  TrainProcess process(arguments() + endless);
  ASSERT_TRUE(process.wait_for_output("step 2/")) << process.finish().output;

  process.kill(SIGUSR1);
  ASSERT_TRUE(process.wait_for_output("a step takes ")) << process.finish().output;  // the last line
  ASSERT_TRUE(process.wait_for_output("step 9/")) << process.finish().output;
  process.kill(SIGTERM);
  const Outcome outcome = process.finish();

  EXPECT_EQ(outcome.status, 128 + SIGTERM) << outcome.output;
  const std::string directory = swap();
  for (const char* const part :
       {"rank 0, ", "callers waited for", "host, staging", "disk traffic", directory.c_str(), "of its limit"})
    EXPECT_NE(outcome.output.find(part), std::string::npos) << part << '\n' << outcome.output;
}

TEST_F(GptTrainThatEnds, EndsAfterAWholeStepWithItsReportOnASignal) {
  for (const int signal : {SIGINT, SIGTERM}) {
    TrainProcess process(arguments() + endless);
    ASSERT_TRUE(process.wait_for_output("step 2/")) << process.finish().output;

    process.kill(signal);
    const Outcome outcome = process.finish();

    EXPECT_EQ(outcome.status, 128 + signal) << outcome.output;
    EXPECT_EQ(digest_in(outcome.output).size(), 32u) << outcome.output;
    EXPECT_EQ(outcome.output.find("error: "), std::string::npos) << outcome.output;
    EXPECT_EQ(swap_.entry_count(), 0u);
  }
}

TEST_F(GptTrainThatEnds, EndsAtOnceOnASecondSignal) {
  if (penstock::test::thread_sanitizer) GTEST_SKIP() << "ThreadSanitizer delivers signals late";
  TrainProcess process(arguments() + endless);
  ASSERT_TRUE(process.wait_for_output("step 2/")) << process.finish().output;
  process.kill(SIGSTOP);  // so that no step can end between the signals
  process.kill(SIGINT);
  process.kill(SIGTERM);
  process.kill(SIGCONT);

  const int status = process.finish().status;
  EXPECT_TRUE(status == -SIGTERM || status == -SIGINT) << status;
}

TEST_F(GptTrainThatEnds, SaysWhichBytesOfTheSwapFileWereChangedUnderIt) {
  const Outcome outcome = damage_until_it_ends([](const penstock::OwnedFd& file) {
    const std::vector<char> garbage(static_cast<std::size_t>(length_of(file)), '?');
    ASSERT_EQ(::pwrite(file.get(), garbage.data(), garbage.size(), 0), static_cast<ssize_t>(garbage.size()));
    // EIO where a direct write, still on its way, meets these pages; they reach the disk all the same.
    EXPECT_TRUE(::fsync(file.get()) == 0 || errno == EIO);
  });

  expect_stopped(outcome, {"bytes read back differ", "lost    step ", " of 100000, on rank ",
                           "optimizer tile", "block", "at offset", swap().c_str(), "try"});
}

TEST_F(GptTrainThatEnds, SaysWhereTheSwapFileWasCutOffUnderIt) {
  const Outcome outcome =
      damage_until_it_ends([](const penstock::OwnedFd& file) { ASSERT_EQ(::ftruncate(file.get(), 0), 0); });

  expect_stopped(outcome, {swap().c_str(), "at offset", "the run cannot continue"});
  // A write that was on its way makes the file long again, with a hole where bytes were.
  EXPECT_TRUE(outcome.output.find("the file is shorter than the data") != std::string::npos ||
              outcome.output.find("bytes read back differ") != std::string::npos)
      << outcome.output;
}

TEST_F(GptTrainThatEnds, SaysThatTheDiskIsFullDuringTheRun) {
  const std::string small = (directory_.path() / "small").string();
  ASSERT_EQ(::mkdir(small.c_str(), 0700), 0);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=4m") != 0)
    GTEST_SKIP() << "mounting a small tmpfs is not allowed here";
  Outcome outcome;
  // A shard that is in the file alone when its blocks are freed is read back as other bytes: that run shows nothing.
  for (int attempt = 0; attempt < 20; ++attempt) {
    outcome = train_until_disk_is_full(small);
    if (outcome.output.find("bytes read back differ") == std::string::npos) break;
  }
  ::umount(small.c_str());

  expect_stopped(outcome, {"No space left on device", "thin device", "lost    step ", small.c_str(),
                           "at offset", "parameter shard", "stays in memory, not yet stored"});
}

}  // namespace
}  // namespace gpt::test
