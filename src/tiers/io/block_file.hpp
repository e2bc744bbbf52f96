#pragma once

#include "tiers/io/running_time.hpp"

#include <penstock/base/time.hpp>
#include <penstock/tiers/io/file_counters.hpp>
#include <penstock/tiers/io/file_system.hpp>
#include <penstock/tiers/io/io_engine.hpp>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <memory_resource>
#include <optional>
#include <vector>

namespace penstock::tiers {

/// Reads and writes exact lengths of one swap file.
///
/// Splits a transfer to the engine's limits, continues short ones, repeats requests after transient errors a bounded
/// number of times, and reports a transfer once all its parts have ended. The same for every engine. Checks lengths and
/// results, not contents.
///
/// After EIO a request is halved and each half is tried, down to one block of the file's alignment. A request that was
/// too long for the drive succeeds then, and otherwise the error names the block that failed. Finding it among n blocks
/// takes at most 2·log2(n) further requests.
///
/// After a failed flush the file refuses writes and flushes: the kernel reports lost writes once, so that a later flush
/// that succeeds proves nothing. Reads continue; the caller verifies the bytes.
///
/// A request's deadline counts only time in which poll() is called (RunningTime), so that a process that was stopped
/// does not take its drive for hung.
///
/// After IoEngine::failure() the file refuses everything, and requests in flight end with deadline_exceeded at once.
///
/// Used by the thread that owns the engine. Only create() blocks.
class BlockFile {
 public:
  struct Options {
    ByteCount size;                                 ///< reserved length of the file
    ByteCount request_max = 4_MiB;                  ///< maximum length of one request
    ByteCount in_flight_max = 16_MiB;               ///< over all transfers of this file
    std::uint32_t retries_max = 3;                  ///< after EAGAIN and similar errors, for each part
    std::uint32_t transfers_max = 256;              ///< transfers accepted at a time
    TimePoint deadline = std::chrono::seconds(60);  ///< for one request; forever: no deadline
    const Clock* clock = &Clock::steady();          ///< outlives it
  };

  /// The result of a transfer or flush: ok when every byte was moved, else its first error; but deadline_exceeded
  /// replaces any other. After deadline_exceeded only, the kernel may still use the buffer: the caller must not free or
  /// reuse the buffer of a read until the process ends.
  struct Finished {
    std::uint64_t tag = 0;
    IoOperation operation = IoOperation::read;
    Result<void> result;
  };

  /// Owns the file. `engine` outlives it and is used for no other file.
  ///
  /// Errors: invalid_argument, for a request size that is zero or not aligned.
  [[nodiscard]] static Result<BlockFile> create(File file, IoEngine& engine, const Options& options);
  /// File::leave_open(), where IoEngine::close() has returned false. No other call follows.
  void leave_open() noexcept { file_.leave_open(); }

  /// Queues a transfer of buffer.size() bytes at `offset`. take_finished() returns it with `tag`; until then `buffer`
  /// stays alive and, for a write, unchanged. Address, size and offset are multiples of properties().alignment.
  ///
  /// A flush has an empty buffer; its offset is ignored. It is submitted once all operations started before it have
  /// ended; when it succeeds, their successful writes are durable. Operations started after it do not wait for it and
  /// may be durable or not. After a failed flush, every write since the last successful flush may be lost.
  ///
  /// Errors: invalid_argument, for a misaligned transfer, one beyond the file's end or a flush with a buffer;
  /// would_block, when transfers_max are active; failed_state, for a write or flush after a failed flush or after any
  /// request has passed its deadline; for a read after a read has passed its deadline, or when hanging writes occupy
  /// all slots of the engine; and for everything after a failure of the engine. Reads continue beside writes that
  /// hang, because earlier data is still on the disk.
  [[nodiscard]] Result<void> start(IoOperation operation, FileOffset offset, HostSpan buffer,
                                   std::uint64_t tag);

  /// Submits requests and handles completions. Blocks until `deadline` if there are no completions and no finished
  /// transfers (TimePoint::min(): does not block).
  void poll(TimePoint deadline) noexcept;

  /// Submits requests as poll() does, without looking for completions.
  void submit() noexcept { submit_parts(); }

  /// Returns and removes the oldest result, if there is one.
  [[nodiscard]] std::optional<Finished> take_finished();

  /// Whether a new transfer is needed to keep in_flight_max bytes in flight when the next request ends. Otherwise its
  /// owner may choose later which one comes next.
  [[nodiscard]] bool takes_more() const { return unmoved_ < options_.in_flight_max + options_.request_max; }
  /// True while requests in flight must end before a new transfer begins.
  [[nodiscard]] bool saturated() const {
    return !in_flight_.is_zero() && (!queues_->waiting.empty() || !takes_more());
  }
  /// True while a transfer is queued or in flight.
  [[nodiscard]] bool busy() const { return active_count_ > 0; }
  /// When poll() must be called while requests with a deadline are in flight: at the earliest deadline or before it,
  /// since time counts in steps. forever when there are none.
  [[nodiscard]] TimePoint next_deadline() const noexcept;
  /// Requests past their deadline that have not completed.
  [[nodiscard]] std::uint32_t overdue_count() const { return overdue_count_; }
  /// The error of an operation that is refused after a hang or a failed flush.
  [[nodiscard]] bool refuses(IoOperation operation) const {
    return operation == IoOperation::read ? read_hangs_ : hang_.has_value() || flush_failure_.has_value();
  }

  [[nodiscard]] const File::Properties& properties() const { return file_.properties(); }
  [[nodiscard]] const FileCounters& counters() const { return counters_; }
  [[nodiscard]] ByteCount size() const { return options_.size; }

 private:
  struct Transfer {
    IoOperation operation = IoOperation::read;
    FileOffset offset;
    HostSpan buffer;
    std::uint64_t tag = 0;
    std::uint32_t parts = 0;     // those queued or in flight
    std::optional<Error> error;  // the first
    std::uint64_t number = 0;    // in the order of start()
    std::uint32_t earlier = 0;   // for a flush: active transfers that were started before it
  };
  struct Part {
    std::uint32_t transfer = 0;
    ByteCount begin, length;  // range in the transfer that is still to be moved
    ByteCount request_max;    // maximum length of its requests; smaller after EIO
    std::uint32_t retries = 0;
    bool in_flight = false;
    bool overdue = false;  // past its deadline: its transfer has ended without it
    TimePoint submitted{};

    [[nodiscard]] ByteCount request_length() const { return std::min(length, request_max); }
  };

  BlockFile(File file, IoEngine& engine, const Options& options);
  [[nodiscard]] Result<void> check(IoOperation operation, FileOffset offset, HostSpan buffer) const;
  void queue_parts(std::uint32_t slot);
  void queue_part(std::uint32_t slot, ByteCount begin, ByteCount length);
  void submit_parts() noexcept;
  [[nodiscard]] std::size_t next_batch(std::span<IoRequest> batch) noexcept;
  void on_completion(const IoCompletion& completion, TimePoint now) noexcept;
  [[nodiscard]] bool subdivide(Part& part) noexcept;
  void resume(std::uint32_t part) noexcept;
  void end_part(std::uint32_t part) noexcept;
  void fail(Transfer& transfer, Error error, const Part& part) noexcept;
  void fail_flush(Transfer& transfer, Error error, const Part& part) noexcept;
  void release_flushes(std::uint64_t number) noexcept;
  bool end_overdue_parts() noexcept;
  [[nodiscard]] bool check_engine(const std::string& failure) noexcept;
  [[nodiscard]] Error refusal(IoOperation operation, FileOffset offset) const;
  [[nodiscard]] bool is_current(std::uint32_t part, TimePoint submitted) const noexcept;
  void part_has_ended(std::uint32_t transfer) noexcept;
  [[nodiscard]] std::uint32_t take_part();

  File file_;
  IoEngine* engine_;
  Options options_;
  FileCounters counters_;
  RunningTime running_;
  ByteCount in_flight_;
  ByteCount unmoved_;  // of parts that wait or are in flight
  std::uint32_t active_count_ = 0, overdue_count_ = 0;
  std::uint64_t started_count_ = 0;
  std::optional<Error> hang_;           // the first request that passed its deadline, or the engine's failure
  std::optional<Error> flush_failure_;  // the first flush that failed
  bool read_hangs_ = false;             // a read hangs, or hanging writes occupy all slots of the engine
  bool engine_failed_ = false;
  std::vector<Transfer> transfers_;
  std::vector<Part> parts_;
  std::vector<std::uint32_t> free_transfers_, free_parts_;
  /// Submissions, oldest first; each poll removes the completed ones at the front.
  struct Submission {
    std::uint32_t part = 0;
    TimePoint submitted{};
    TimePoint deadline{};  // in running time
  };
  /// The queues and the pool of their nodes, which must not move with the file.
  struct Queues {
    std::pmr::unsynchronized_pool_resource nodes;
    std::pmr::deque<std::uint32_t> waiting{&nodes};  // parts not yet accepted by the engine
    std::pmr::deque<std::uint32_t> flushes{&nodes};  // transfers that wait for earlier ones, oldest first
    std::pmr::deque<Submission> submissions{&nodes};
    std::pmr::deque<Finished> finished{&nodes};
  };
  std::unique_ptr<Queues> queues_ = std::make_unique<Queues>();
};

}  // namespace penstock::tiers
