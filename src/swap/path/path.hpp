#pragma once

#include "swap/path/path_driver.hpp"
#include "tiers/io/block_file.hpp"

#include <penstock/swap/runtime_options.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::swap {

/// Errors: invalid_argument, for a weight that is not positive and finite.
[[nodiscard]] Result<void> check_weight(const PathOptions& path);
/// Errors: invalid_argument, for an empty directory, a null pointer, a deadline that is not above 0, or an unknown
/// enumerator.
[[nodiscard]] Result<void> check_options(const PathOptions& path);

/// One directory on one drive: its swap file, its engine, its driver.
///
/// Any thread posts transfers and collects outcomes. Only the driver uses the file and the engine: either the thread
/// that start_driver() creates, which sleeps in the engine, or the thread that calls drive().
class Path {
 public:
  using Command = PathDriver::Command;

  /// Errors: invalid_argument, of the weight or for a capacity of zero; deadline_exceeded, when file and engine are not
  /// made within options.deadline; no_space, for an existing file that is longer than the limit on file sizes;
  /// unsupported, for an alignment above 4096; those of FileSystem::create_scratch, choose_engine and
  /// BlockFile::create. `pinned_end`: of the bytes that are kept in an existing file, which is longer by them: what is
  /// written has room in gaps between them or, where these are too short, beyond.
  [[nodiscard]] static Result<std::unique_ptr<Path>> create(const PathOptions& options,
                                                            ByteCount pinned_end = {});
  /// As stop_driver().
  ~Path();

  /// The engine may register `buffers` with the kernel. Before the driver starts.
  void attach(HostSpan buffers);
  /// From the start of the driver on: makes it register `buffers` instead, or nothing if it is empty, once no transfer
  /// is in flight. See buffers_replaced().
  void replace_buffers(HostSpan buffers) { driver_->replace_buffers(buffers); }
  /// Whether that has ended: the driver has done it, or is stuck in a call of the kernel.
  [[nodiscard]] bool buffers_replaced() const { return driver_->buffers_replaced(); }
  /// Whether the kernel has released what was registered before.
  [[nodiscard]] bool buffers_detached() const;
  /// Starts the driver thread, which calls `notify` after outcomes have arrived.
  ///
  /// Errors: no_space, at a limit on threads.
  [[nodiscard]] Result<void> start_driver(std::function<void()> notify) {
    return driver_->start(std::move(notify));
  }
  /// Stops the driver, closes the engine, then the file, which removes it. Waits for the deadline of a request at most,
  /// and not for requests past it: a driver that is still in a system call then is abandoned. False when a request may
  /// still be in flight: then the file stays open, and the request's buffer must not be freed or reused, until the
  /// process ends.
  [[nodiscard]] bool stop_driver() { return driver_->stop(); }
  /// Runs the driver once on the calling thread, without blocking. True if any transfer advanced.
  bool drive() { return driver_->drive(); }

  /// Queues a transfer or a flush. The path uses the buffer until the caller has taken the outcome. A flush covers the
  /// writes posted before it (BlockFile::start).
  ///
  /// Transfers begin in the order of TransferQueue: those that are urgent first.
  void post(const Command& command) { driver_->post(command); }
  /// Command::urgent of a transfer, posted or to be posted, has become true.
  void hasten(const std::atomic<bool>& urgent) { driver_->hasten(urgent); }
  /// Moves the outcomes that have arrived to the end of `outcomes`. Also ends all transfers with deadline_exceeded when
  /// the driver's thread is in a system call that has not returned within the deadline; the path then refuses
  /// transfers. Only time in which the callers of take_outcomes() ran counts. Called by one thread at a time.
  void take_outcomes(std::vector<tiers::BlockFile::Finished>& outcomes) { driver_->take_outcomes(outcomes); }
  /// How often take_outcomes() must be called. forever while no transfer is outstanding.
  [[nodiscard]] TimePoint watch_interval() const { return driver_->watch_interval(); }

  /// The effective options: if the file cannot grow, its capacity is the reserved length.
  [[nodiscard]] const PathOptions& options() const { return options_; }
  [[nodiscard]] const tiers::File::Properties& file() const { return file_; }
  /// Refused features (engine, registration, direct I/O, reserved space), with reasons. Empty when there are none.
  [[nodiscard]] std::string notes() const;
  [[nodiscard]] Alignment alignment() const { return file_.alignment; }
  [[nodiscard]] PathReport report() const;
  /// CPU time that the driver thread has used. Zero without one.
  [[nodiscard]] TimePoint driver_cpu_time() const { return driver_->cpu_time(); }
  [[nodiscard]] tiers::FileCounters counters() const { return driver_->counters(); }
  /// A line about requests that failed and were overcome by shorter ones. Empty, unless there are the first of them or
  /// twice as many as the last line has said.
  [[nodiscard]] std::string take_message();
  /// The earliest deadline of a request in flight, for the thread that calls drive().
  [[nodiscard]] TimePoint next_deadline() const { return driver_->next_deadline(); }

 private:
  struct Opened;
  explicit Path(Opened opened);
  [[nodiscard]] static Result<Opened> open(PathOptions options, ByteCount reserved, ByteCount pinned_end);

  PathOptions options_;
  tiers::File::Properties file_;
  std::string choice_;            // why this engine
  std::string growth_note_;       // why the file may not grow
  std::string engine_notes_;      // as of attach(): only the driver may ask the engine
  std::uint64_t subdivided_ = 0;  // as of the last message
  std::shared_ptr<PathDriver> driver_;
};

}  // namespace penstock::swap
