#pragma once

#include "tiers/io/block_file.hpp"
#include "tiers/io/choose_engine.hpp"

#include <penstock/swap/runtime_options.hpp>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace penstock::swap {

/// Errors: invalid_argument, for a weight that is none.
[[nodiscard]] Result<void> check_weight(const PathOptions& path);

/// One directory on one drive: its swap file, its engine, its driver.
///
/// Transfers are posted and collected from any thread, through fixed-size messages; the file and the engine
/// belong to the driver alone: a thread that start_driver() makes and that sleeps in the engine, or the thread that
/// calls drive(), never both.
class Path {
 public:
  struct Command {
    tiers::IoOperation operation;
    FileOffset offset;
    HostSpan buffer;
    std::uint64_t tag = 0;
  };

  /// Errors: invalid_argument, of the weight; those of FileSystem::create_scratch, choose_engine and
  /// BlockFile::create.
  [[nodiscard]] static Result<std::unique_ptr<Path>> create(const PathOptions& options);
  /// Stops the driver, closes the engine, removes the file. Does not wait for requests past their deadline.
  ~Path();

  /// The engine may register `buffers` with the kernel. Before the driver starts.
  void attach(HostSpan buffers);
  /// Starts the driver thread; `notify` is called on it after outcomes have arrived.
  void start_driver(std::function<void()> notify);
  /// Stops it, and closes the engine. False when the kernel still holds a request past its deadline, whose
  /// buffer must stay for as long as the process lives.
  [[nodiscard]] bool stop_driver();
  /// One turn of the driver, without blocking, on the caller's thread. True when something moved.
  bool drive();

  /// Queues a transfer or a flush; the buffer belongs to the path until its outcome was taken. A flush covers what
  /// was posted before it (BlockFile::start).
  void post(const Command& command);
  /// Moves the outcomes that have arrived to the end of `outcomes`.
  void take_outcomes(std::vector<tiers::BlockFile::Finished>& outcomes);

  /// As they are in effect: a file that may not grow has the capacity that is reserved.
  [[nodiscard]] const PathOptions& options() const { return options_; }
  [[nodiscard]] const tiers::File::Properties& file() const { return file_.properties(); }
  [[nodiscard]] const char* engine_name() const { return engine_->name(); }
  /// What was probed and refused: engine, registration, direct I/O, reserved space. Empty when nothing was.
  [[nodiscard]] std::string notes() const;
  [[nodiscard]] Alignment alignment() const { return file_.properties().alignment; }
  [[nodiscard]] PathReport report() const;
  /// CPU time that the driver thread has used. Zero without one.
  [[nodiscard]] TimePoint driver_cpu_time() const;
  [[nodiscard]] tiers::FileCounters counters() const;
  /// When a request passes its deadline, for the thread that calls drive().
  [[nodiscard]] TimePoint next_deadline() const { return file_.next_deadline(); }

 private:
  Path(PathOptions options, tiers::ChosenEngine chosen, tiers::BlockFile file, std::string growth_note);
  bool turn(TimePoint deadline);
  void close_engine() noexcept;

  PathOptions options_;
  std::unique_ptr<tiers::IoEngine> engine_;
  tiers::BlockFile file_;
  std::string choice_;        // why this engine
  std::string growth_note_;   // why the file may not grow
  std::string engine_notes_;  // as of the last attach: the engine is the driver's
  std::function<void()> notify_;
  std::vector<tiers::BlockFile::Finished> finished_;  // in this turn of the driver's

  mutable std::mutex mutex_;
  std::pmr::unsynchronized_pool_resource nodes_;  // of the commands
  std::pmr::deque<Command> commands_{&nodes_};
  std::vector<tiers::BlockFile::Finished> outcomes_;
  tiers::FileCounters counters_;  // the driver's, as of its last turn
  bool stopping_ = false, closed_ = false, at_rest_ = true;
  bool saturated_ = false;  // the file's word, as of the driver's last turn
  std::thread driver_;
};

}  // namespace penstock::swap
