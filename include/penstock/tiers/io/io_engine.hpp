#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/time.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace penstock::tiers {

/// Which engine to use. `automatic` takes the first that works, in this order.
enum class EngineChoice : std::uint8_t { automatic, io_uring, libaio, threads };
[[nodiscard]] std::string_view to_string(EngineChoice choice);

/// A file that a FileSystem opened: a descriptor of the kernel's, or an inode of a simulation. Owns nothing.
enum class FileHandle : int { none = -1 };

enum class IoOperation : std::uint8_t { read, write, flush };

/// One request. `buffer` is read into, or written from (a write changes none of its bytes), and stays alive
/// until the completion with the same tag was reaped. A flush has an empty buffer; it makes durable what had completed
/// when it was submitted, and is in no order with other requests in flight.
struct IoRequest {
  IoOperation operation = IoOperation::read;
  FileHandle file = FileHandle::none;
  FileOffset offset;
  HostSpan buffer;
  std::uint64_t tag = 0;
};

/// What the kernel said, raw: bytes transferred, possibly fewer than asked, or a negative errno.
struct IoCompletion {
  std::uint64_t tag = 0;
  std::int64_t result = 0;
};

struct IoLimits {
  ByteCount request_max;    ///< a longer request completes short, with that much moved
  std::uint32_t depth = 0;  ///< requests in flight at most
};

/// Moves bytes between files and host memory, several requests at a time.
///
/// The contract, the same for every engine: each accepted request completes exactly once, on failure and on
/// close too; a full queue is backpressure (submit accepts a shorter prefix); results are raw, for
/// BlockFile to check; no completion comes before the kernel has finished with the buffer.
///
/// submit, reap, attach and close belong to one thread at a time, the path's driver. wake may come from any
/// thread. Only reap blocks, and close.
class IoEngine {
 public:
  IoEngine() = default;
  IoEngine(const IoEngine&) = delete;
  IoEngine& operator=(const IoEngine&) = delete;
  /// Closes, without a deadline, if that was not done.
  virtual ~IoEngine() = default;

  /// Accepts a prefix of `requests` and returns its length, 0 when the queue is full.
  [[nodiscard]] virtual std::size_t submit(std::span<const IoRequest> requests) noexcept = 0;

  /// Fills `completions` with what has completed and returns how many. With none yet, blocks until one
  /// completes, wake() is called or `deadline` passes; returns 0 then.
  [[nodiscard]] virtual std::size_t reap(std::span<IoCompletion> completions,
                                         TimePoint deadline) noexcept = 0;

  /// Makes a reap that blocks, or else the next one, return without waiting.
  virtual void wake() noexcept = 0;

  /// Tells the engine of a file or a slab of buffers that requests will name, so that it may register them
  /// with the kernel. Not needed for requests to work; a refusal is a lost optimisation, kept in notes().
  virtual void attach(FileHandle file, HostSpan buffers) noexcept = 0;

  /// Cancels what it can and waits until nothing is in flight: the kernel touches no buffer after it.
  /// Completions not reaped yet can still be reaped. Afterwards submit accepts nothing.
  ///
  /// False when something is in flight still at `deadline`. What that needs of the engine's own is leaked then,
  /// and the caller must leave the buffers alone for as long as the process lives.
  [[nodiscard]] virtual bool close(TimePoint deadline) noexcept = 0;

  [[nodiscard]] virtual IoLimits limits() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t in_flight() const noexcept = 0;
  /// "io_uring", "threads", "simulated".
  [[nodiscard]] virtual const char* name() const noexcept = 0;
  /// What was probed and refused, in one line; empty when everything asked for is in use.
  [[nodiscard]] virtual std::string notes() const = 0;
};

}  // namespace penstock::tiers
