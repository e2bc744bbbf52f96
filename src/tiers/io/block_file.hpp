#pragma once

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

/// One swap file on one path, read and written in exact lengths.
///
/// Splits a transfer to the engine's limits, resumes short ones, retries transient errors a bounded number
/// of times, and reports a transfer only once every part of it has ended. Every engine gets this
/// treatment here, once. It checks lengths and results, never payload.
///
/// A request that ends with EIO is cut in two, whose halves are tried one after the other, down to one block of
/// the file's alignment: what was too long for the drive gets through, and the error of what cannot be moved
/// names that very block, which is found among n in 2·log2(n) further requests at most.
///
/// After a flush that failed the file takes no further write or flush: the kernel reports lost writes once, so a
/// later flush that succeeds would prove nothing. Reads go on; the caller verifies what they return.
///
/// Owned by one thread, the one that owns the engine. Nothing here blocks but create().
class BlockFile {
 public:
  struct Options {
    ByteCount size;                     ///< what was reserved of the file
    ByteCount request_max = 4_MiB;      ///< a transfer is cut at this length
    ByteCount in_flight_max = 16_MiB;   ///< over all transfers of this file
    std::uint32_t retries_max = 3;      ///< of EAGAIN and the like, for one part; corruption is not retried
    std::uint32_t transfers_max = 256;  ///< transfers accepted at a time
    TimePoint deadline = std::chrono::seconds(60);  ///< of one request; forever: none
    const Clock* clock = &Clock::steady();          ///< outlives it
  };

  /// A transfer or flush that has ended: every byte moved, or its first error. deadline_exceeded comes
  /// before any other, and of this alone: the kernel may still use the buffer, so that of a read must be left
  /// alone for as long as the process lives.
  struct Finished {
    std::uint64_t tag = 0;
    IoOperation operation = IoOperation::read;
    Result<void> result;
  };

  /// Takes the file over. `engine` outlives it and serves no other file.
  ///
  /// Errors: invalid_argument, for a request size that is zero or not aligned.
  [[nodiscard]] static Result<BlockFile> create(File file, IoEngine& engine, const Options& options);

  /// Queues a transfer of buffer.size() bytes at `offset`. It comes back from take_finished() with `tag`;
  /// `buffer` stays alive and, for a write, unchanged until then. Address, size and offset are multiples
  /// of properties().alignment.
  ///
  /// A flush has an empty buffer; its offset is ignored. It is submitted once everything that was started before it
  /// has ended, and completes with the engine's flush: the earlier writes that succeeded are durable then.
  /// What is started after it does not wait for it and may be durable or not. A flush that fails means that every
  /// write since the last successful flush may be lost.
  ///
  /// Errors: invalid_argument, for a misaligned transfer, one beyond the file's end or a flush with a buffer;
  /// would_block, when transfers_max are under way; failed_state, for a write or a flush once a flush has failed or
  /// any request has passed its deadline, and for a read once a read has, or no slot of the engine's is left: a write
  /// that hangs may still reach the disk, but what was written before can be read.
  [[nodiscard]] Result<void> start(IoOperation operation, FileOffset offset, HostSpan buffer,
                                   std::uint64_t tag);

  /// Submits what the engine takes and checks what it has completed, blocking in the engine until
  /// `deadline` when nothing has and nothing has finished (TimePoint::min() does not block).
  void poll(TimePoint deadline) noexcept;

  /// The oldest transfer that has ended, if there is one.
  [[nodiscard]] std::optional<Finished> take_finished();

  /// True while requests wait for others to complete: whatever is started now has to wait too.
  [[nodiscard]] bool saturated() const { return !queues_->waiting.empty() && !in_flight_.is_zero(); }
  /// True while a transfer is queued or in flight.
  [[nodiscard]] bool busy() const { return active_count_ > 0; }
  /// When the oldest request in flight passes its deadline, so that poll() must be called then; forever when
  /// none is.
  [[nodiscard]] TimePoint next_deadline() const noexcept;
  /// Requests that have passed their deadline and never completed.
  [[nodiscard]] std::uint32_t overdue_count() const { return overdue_count_; }
  /// A request has passed its deadline, or a flush has failed, so that such operations are refused.
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
    std::uint32_t parts = 0;     // queued or in flight
    std::optional<Error> error;  // the first
    std::uint64_t number = 0;    // in the order of start()
    std::uint32_t earlier = 0;   // of a flush: transfers started before it and not ended yet
  };
  struct Part {
    std::uint32_t transfer = 0;
    ByteCount begin, length;  // within the transfer; shrinks from the front as bytes arrive
    ByteCount request_max;    // its bytes are asked for in pieces of that: all at once until EIO
    std::uint32_t retries = 0;
    bool in_flight = false;
    bool overdue = false;  // its transfer has gone without it
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
  void rest(std::uint32_t part) noexcept;
  void fail(Transfer& transfer, Error error, const Part& part) noexcept;
  void fail_flush(Transfer& transfer, Error error, const Part& part) noexcept;
  void release_flushes(std::uint64_t number) noexcept;
  bool give_up_overdue_parts() noexcept;
  [[nodiscard]] Error refusal(IoOperation operation, FileOffset offset) const;
  [[nodiscard]] bool still_flying(std::uint32_t part, TimePoint submitted) const noexcept;
  void part_has_ended(std::uint32_t transfer) noexcept;
  [[nodiscard]] std::uint32_t take_part();

  File file_;
  IoEngine* engine_;
  Options options_;
  FileCounters counters_;
  ByteCount in_flight_;
  std::uint32_t active_count_ = 0, overdue_count_ = 0;
  std::uint64_t started_count_ = 0;
  std::optional<Error> hang_;           // the first request that passed its deadline
  std::optional<Error> flush_failure_;  // the first flush that failed
  bool read_hangs_ = false;             // a read does, or writes have taken every slot of the engine's
  std::vector<Transfer> transfers_;
  std::vector<Part> parts_;
  std::vector<std::uint32_t> free_transfers_, free_parts_;
  /// Submissions, oldest first; those at the front that have completed go with each poll.
  struct Flight {
    std::uint32_t part = 0;
    TimePoint submitted{};
  };
  /// With the memory that they come and go in, which stays where it is when the file moves.
  struct Queues {
    std::pmr::unsynchronized_pool_resource nodes;
    std::pmr::deque<std::uint32_t> waiting{&nodes};  // parts not yet accepted by the engine
    std::pmr::deque<std::uint32_t> flushes{&nodes};  // transfers that wait for earlier ones, oldest first
    std::pmr::deque<Flight> flights{&nodes};
    std::pmr::deque<Finished> finished{&nodes};
  };
  std::unique_ptr<Queues> queues_ = std::make_unique<Queues>();
};

}  // namespace penstock::tiers
