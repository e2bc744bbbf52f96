// A process that is stopped for longer than the deadline of its requests, as by a debugger or a paused virtual machine.
#include "tiers/io/block_file.hpp"

#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace penstock::tiers {
namespace {

/// Completes each request after a thread has run 20 times for 10 ms: like a drive, it needs time that a stopped process
/// does not have.
class SlowEngine final : public IoEngine {
 public:
  ~SlowEngine() override {
    for (std::thread& thread : threads_) thread.join();
  }
  std::size_t submit(std::span<const IoRequest> requests) noexcept override {
    for (const IoRequest& request : requests) {
      threads_.emplace_back([this, request] {
        for (int i = 0; i < 20; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        const std::lock_guard lock(mutex_);
        done_.push_back({request.tag, static_cast<std::int64_t>(request.buffer.size().value())});
        completed_.notify_all();
      });
    }
    return requests.size();
  }
  std::size_t reap(std::span<IoCompletion> completions, TimePoint deadline) noexcept override {
    std::unique_lock lock(mutex_);
    if (deadline != TimePoint::min()) {
      completed_.wait_until(lock, std::chrono::steady_clock::time_point(deadline),
                            [this] { return !done_.empty(); });
    }
    if (done_.empty()) return 0;
    completions[0] = done_.back();
    done_.pop_back();
    return 1;
  }
  void wake() noexcept override {}
  void attach(FileHandle, HostSpan) noexcept override {}
  bool detach() noexcept override { return true; }
  bool close(TimePoint) noexcept override { return true; }
  IoLimits limits() const noexcept override { return {1_GiB, 64}; }
  std::uint32_t in_flight() const noexcept override { return 0; }
  const char* name() const noexcept override { return "slow"; }
  std::string notes() const override { return {}; }

 private:
  std::mutex mutex_;
  std::condition_variable completed_;
  std::vector<IoCompletion> done_;
  std::vector<std::thread> threads_;
};

/// The child: writes once, with a deadline of one second, and exits with 0 when that succeeded. It writes a byte to
/// `started` when the request is in flight.
[[noreturn]] void write_once(const std::filesystem::path& directory, int started) {
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(4096, 4096)), &std::free);
  bool written = false;
  {
    SlowEngine engine;
    auto scratch = real_file_system().create_scratch(directory, 4_KiB, DirectIo::off);
    auto file = BlockFile::create(std::move(scratch).value(), engine,
                                  {.size = 4_KiB, .deadline = std::chrono::seconds(1)});
    file->start(IoOperation::write, FileOffset(0), HostSpan(memory.get(), 4_KiB), 1).value();
    file->poll(TimePoint::min());
    if (::write(started, "x", 1) != 1) ::_exit(2);
    std::optional<BlockFile::Finished> finished;
    while (!(finished = file->take_finished())) file->poll(forever);
    written = finished->result.has_value();
  }
  ::_exit(written ? 0 : 1);
}

TEST(StoppedProcess, DoesNotTakeItsDriveForHung) {
  const test::ScratchDirectory directory;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) write_once(directory.path(), ends[1]);
  ASSERT_GT(child, 0);
  char byte = 0;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);

  ::kill(child, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  ::kill(child, SIGCONT);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(ends[0]);
  ::close(ends[1]);

  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace penstock::tiers
