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

/// Errors: invalid_argument, for a weight that is not positive and finite.
[[nodiscard]] Result<void> check_weight(const PathOptions& path);
/// Errors: invalid_argument, for a null pointer, a deadline that is not above 0, or an unknown enumerator.
[[nodiscard]] Result<void> check_options(const PathOptions& path);

/// One directory on one drive: its swap file, its engine, its driver.
///
/// Any thread posts transfers and collects outcomes. Only the driver uses the file and the engine: either the thread
/// that start_driver() creates, which sleeps in the engine, or the thread that calls drive().
class Path {
 public:
  struct Command {
    tiers::IoOperation operation;
    FileOffset offset;
    HostSpan buffer;
    std::uint64_t tag = 0;
  };

  /// Errors: invalid_argument, of the weight or for a capacity of zero; deadline_exceeded, when the file is not made
  /// within options.deadline; those of FileSystem::create_scratch, choose_engine and BlockFile::create.
  [[nodiscard]] static Result<std::unique_ptr<Path>> create(const PathOptions& options);
  /// Stops the driver, closes the engine, removes the file. Does not wait for requests past their deadline.
  ~Path();

  /// The engine may register `buffers` with the kernel. Before the driver starts.
  void attach(HostSpan buffers);
  /// Starts the driver thread, which calls `notify` after outcomes have arrived.
  ///
  /// Errors: no_space, at a limit on threads.
  [[nodiscard]] Result<void> start_driver(std::function<void()> notify);
  /// Stops the driver and closes the engine. False when a request past its deadline is still in flight: its buffer must
  /// not be freed or reused until the process ends.
  [[nodiscard]] bool stop_driver();
  /// Runs the driver once on the calling thread, without blocking. True if any transfer advanced.
  bool drive();

  /// Queues a transfer or a flush. The path uses the buffer until the caller has taken the outcome. A flush covers the
  /// writes posted before it (BlockFile::start).
  void post(const Command& command);
  /// Moves the outcomes that have arrived to the end of `outcomes`.
  void take_outcomes(std::vector<tiers::BlockFile::Finished>& outcomes);

  /// The effective options: if the file cannot grow, its capacity is the reserved length.
  [[nodiscard]] const PathOptions& options() const { return options_; }
  [[nodiscard]] const tiers::File::Properties& file() const { return file_.properties(); }
  [[nodiscard]] const char* engine_name() const { return engine_->name(); }
  /// Refused features (engine, registration, direct I/O, reserved space), with reasons. Empty when there are none.
  [[nodiscard]] std::string notes() const;
  [[nodiscard]] Alignment alignment() const { return file_.properties().alignment; }
  [[nodiscard]] PathReport report() const;
  /// CPU time that the driver thread has used. Zero without one.
  [[nodiscard]] TimePoint driver_cpu_time() const;
  [[nodiscard]] tiers::FileCounters counters() const;
  /// The earliest deadline of a request in flight, for the thread that calls drive().
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
  std::string engine_notes_;  // as of the last attach(): only the driver may ask the engine
  std::function<void()> notify_;
  std::vector<tiers::BlockFile::Finished> finished_;  // in this run of the driver

  mutable std::mutex mutex_;
  std::pmr::unsynchronized_pool_resource nodes_;  // of the commands
  std::pmr::deque<Command> commands_{&nodes_};
  std::vector<tiers::BlockFile::Finished> outcomes_;
  tiers::FileCounters counters_;  // as of the driver's last run
  bool stopping_ = false, closed_ = false, at_rest_ = true;
  bool saturated_ = false;  // BlockFile::saturated(), as of the driver's last run
  std::thread driver_;
};

}  // namespace penstock::swap
