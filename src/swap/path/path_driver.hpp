#pragma once

#include "swap/path/transfer_queue.hpp"
#include "swap/path/watched_engine.hpp"
#include "tiers/io/block_file.hpp"
#include "tiers/io/running_time.hpp"

#include <penstock/swap/runtime_options.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace penstock::swap {

/// Executes the transfers of a path: its swap file, its engine, the queues of both directions, and the thread that uses
/// file and engine.
///
/// A system call that the kernel does not return from cannot be ended. A thread in such a call is abandoned: it owns
/// this object too, finds that its transfers have ended, and ends when the call returns.
///
/// Only the driver uses file and engine: the thread of start(), or the thread that calls drive(). One thread calls
/// start(), stop() and cpu_time(). All other members are safe from any thread.
class PathDriver : public std::enable_shared_from_this<PathDriver> {
 public:
  using Finished = tiers::BlockFile::Finished;
  struct Command {
    tiers::IoOperation operation;
    FileOffset offset;
    HostSpan buffer;
    std::uint64_t tag = 0;
    /// Whether a request waits for it, see hasten(). Outlives the transfer. Null: none ever does.
    const std::atomic<bool>* urgent = nullptr;
  };

  /// Errors: those of BlockFile::create.
  [[nodiscard]] static Result<std::shared_ptr<PathDriver>> create(const PathOptions& options,
                                                                  tiers::File file,
                                                                  std::unique_ptr<tiers::IoEngine> engine);

  /// For what other threads than the driver may call, and before start().
  [[nodiscard]] tiers::IoEngine& engine() { return engine_; }

  /// Starts the thread, which calls `notify` after outcomes have arrived.
  ///
  /// Errors: no_space, at a limit on threads.
  [[nodiscard]] Result<void> start(std::function<void()> notify);
  /// Ends the thread, closes engine and file, in this order. Waits for the deadline of a request at most, and not at
  /// all for requests past their deadline. `notify` is not called afterwards. False when the kernel may still use
  /// buffers.
  [[nodiscard]] bool stop();
  /// Runs the driver once on the calling thread, without blocking. True if any transfer advanced, or buffers were
  /// replaced.
  bool drive() { return turn(TimePoint::min()); }
  /// Makes the driver register `buffers` with the engine instead of what it has registered; empty: nothing. It does so
  /// once no transfer is in flight; those in the queue wait for that.
  void replace_buffers(HostSpan buffers);
  /// Whether that has ended: the driver has done it, or is stuck in a call and never will.
  [[nodiscard]] bool buffers_replaced() const;
  /// What came of the last replace_buffers(). None if there was none, or if the driver has not done it.
  struct Buffers {
    /// The kernel has released what was registered before. False too while it may execute requests that are past their
    /// deadline, or whose engine has failed.
    bool detached = false;
    std::string notes;  ///< the engine's, afterwards
  };
  [[nodiscard]] std::optional<Buffers> buffers() const;

  /// Queues a transfer or a flush, see Path::post().
  void post(const Command& command);
  /// See Path::hasten().
  void hasten(const std::atomic<bool>& urgent);
  /// Moves the outcomes that have arrived to the end of `outcomes`. Ends all transfers when the thread has been in one
  /// call of the engine for longer than the deadline: those that the engine may have with deadline_exceeded, the others
  /// with failed_state. For that, it must be called every watch_interval().
  void take_outcomes(std::vector<Finished>& outcomes);
  /// forever without transfers and buffers to replace, without a thread and without a deadline.
  [[nodiscard]] TimePoint watch_interval() const;

  /// For the thread that calls drive().
  [[nodiscard]] TimePoint next_deadline() const { return threaded_ ? forever : file_->next_deadline(); }
  [[nodiscard]] TimePoint cpu_time() const;
  [[nodiscard]] tiers::FileCounters counters() const;
  /// How long there has been at least one transfer that had not ended.
  [[nodiscard]] TimePoint busy() const;

 private:
  PathDriver(const PathOptions& options, std::string name, std::unique_ptr<tiers::IoEngine> engine);

  void run() noexcept;
  [[nodiscard]] bool should_end();
  bool turn(TimePoint deadline);
  void start_transfers();
  [[nodiscard]] bool register_buffers(std::unique_lock<std::mutex>& lock);
  void notify();
  void close() noexcept;
  [[nodiscard]] bool close_engine() noexcept;
  void close_file() noexcept;
  [[nodiscard]] bool join_or_abandon();

  // With the lock held.
  [[nodiscard]] bool is_watched() const;
  [[nodiscard]] bool watch();
  [[nodiscard]] Error refusal(const Command& command) const;
  void end_all_transfers();
  bool end_part(std::uint32_t slot, const Result<void>& result);
  void end(std::uint32_t slot, Result<void> result);
  [[nodiscard]] std::uint32_t take_slot(const Command& command);

  /// A transfer that has not ended. It is passed to the file in parts of request_max, so that an urgent one waits for
  /// the end of none.
  struct Transfer {
    Command command;
    ByteCount passed = {};    // to the file
    std::uint32_t parts = 0;  // passed and not ended
    Result<void> result = ok();
  };

  const TimePoint deadline_;
  const ByteCount request_max_;
  const Clock& clock_;
  const std::string name_;  // of the file
  WatchedEngine engine_;
  std::optional<tiers::BlockFile> file_;  // none once it is closed
  std::vector<Finished> finished_;  // parts that have ended since the driver's last turn; tagged by slot
  std::thread thread_;
  std::optional<bool> released_;  // the result of stop()

  mutable std::mutex mutex_;
  std::vector<std::optional<Transfer>> slots_;
  std::vector<std::uint32_t> free_slots_;
  TimePoint busy_{}, busy_since_{};  // busy_: until busy_since_, where a transfer has not ended
  TransferQueue queue_;              // slots of transfers that the driver has not taken
  std::vector<Finished> outcomes_;
  tiers::FileCounters counters_;  // as of the driver's last run
  bool saturated_ = false;        // BlockFile::saturated(), as of the driver's last run
  bool threaded_ = false, stopping_ = false;
  bool engine_closed_ = false, at_rest_ = true;  // at_rest_: the closed engine has no request in flight
  bool ended_ = false;                           // engine and file are closed
  std::optional<HostSpan> buffers_wanted_;       // to be registered by the driver
  bool replacing_ = false;                       // the driver is about it
  std::optional<Buffers> buffers_;               // once it has
  std::condition_variable changed_;
  tiers::RunningTime watch_;  // of the thread that calls take_outcomes()
  std::uint64_t watched_call_ = 0;
  TimePoint watched_since_{};
  std::optional<Error> stuck_;  // why all transfers have ended: a call does not return

  std::mutex notify_mutex_;
  std::function<void()> notify_;
};

}  // namespace penstock::swap
