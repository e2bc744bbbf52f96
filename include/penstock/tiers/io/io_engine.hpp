#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/time.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace penstock::tiers {

/// Which engine to use. `automatic` takes the first that works, in this order; libaio only for a
/// file with direct I/O.
enum class EngineChoice : std::uint8_t { automatic, io_uring, libaio, threads };
[[nodiscard]] std::string_view to_string(EngineChoice choice);

/// A file that a FileSystem opened: a file descriptor, or the number of a simulated file. Owns nothing.
enum class FileHandle : int { none = -1 };

enum class IoOperation : std::uint8_t { read, write, flush };

/// One request. A read fills `buffer`, a write only reads it; the caller keeps it alive until it has reaped the
/// completion with the same tag. A flush has an empty buffer. It makes the writes durable that had completed when it
/// was submitted; its order with other requests in flight is undefined.
struct IoRequest {
  IoOperation operation = IoOperation::read;
  FileHandle file = FileHandle::none;
  FileOffset offset;
  HostSpan buffer;
  std::uint64_t tag = 0;
};

/// The kernel's result, unchanged: the bytes transferred, possibly fewer than requested, or a negative errno.
struct IoCompletion {
  std::uint64_t tag = 0;
  std::int64_t result = 0;
};

struct IoLimits {
  ByteCount request_max;    ///< a longer request completes after this many bytes
  std::uint32_t depth = 0;  ///< maximum number of requests in flight
};

/// Moves bytes between files and host memory, several requests at a time. Implementations: io_uring, libaio, threads,
/// SimEngine, and FaultEngine, which injects errors. An embedder may implement its own.
///
///     const IoRequest request{.operation = IoOperation::read, .file = handle, .buffer = block, .tag = 1};
///     if (engine.submit({&request, 1}) == 1) count = engine.reap(completions, deadline);
///
/// Contract of every engine: each accepted request completes exactly once, even if it fails or close() cancels it.
/// When the queue is full, submit() accepts a shorter prefix. The engine does not interpret results; the caller
/// checks them. A completion is reported only after the kernel has finished with the buffer. Exception to exactly once:
/// an engine that has failed may never report requests that were in flight, see failure().
///
/// submit(), reap(), attach(), detach() and close() are called by one thread at a time, the path's driver; wake() by
/// any thread. Only reap() and close() block.
class IoEngine {
 public:
  IoEngine() = default;
  IoEngine(const IoEngine&) = delete;
  IoEngine& operator=(const IoEngine&) = delete;
  /// The destructor of each implementation calls close(forever) if the caller has not closed the engine.
  virtual ~IoEngine() = default;

  /// Accepts a prefix of `requests` and returns its length, 0 when the queue is full.
  [[nodiscard]] virtual std::size_t submit(std::span<const IoRequest> requests) noexcept = 0;

  /// Stores completions in `completions` and returns their number. If there is none, blocks until a request completes,
  /// wake() is called or `deadline` passes, and returns 0 in the last two cases.
  [[nodiscard]] virtual std::size_t reap(std::span<IoCompletion> completions,
                                         TimePoint deadline) noexcept = 0;

  /// Makes a blocked reap() return; if none is blocked, the next one returns without waiting. Must not wait for a call
  /// of the driver's thread, because a call that the kernel does not return from would stop the caller too.
  virtual void wake() noexcept = 0;

  /// Announces a file and a memory range that requests will use, so that the engine may register them with the kernel.
  /// Optional: without it requests are slower. notes() reports a refused registration. Memory is announced once, and
  /// again after detach().
  virtual void attach(FileHandle file, HostSpan buffers) noexcept = 0;
  /// Ends the registration of the memory that attach() announced, so that its pages can be given back; requests may use
  /// it as before. No request is in flight. False if the kernel refuses: it keeps the pages, and may use them instead
  /// of new ones. Engines that register no memory return true, decorators what the engine within returns.
  [[nodiscard]] virtual bool detach() noexcept = 0;

  /// Cancels requests where possible and waits until none is in flight: the kernel uses no buffer afterwards.
  /// Completions that are not reaped yet can still be reaped; submit() accepts no request any more.
  ///
  /// False if requests are still in flight at `deadline`; an engine that has failed does not wait until then. The
  /// engine then leaks its own memory that the kernel may still use, and the caller must keep the buffers of these
  /// requests until the process ends.
  [[nodiscard]] virtual bool close(TimePoint deadline) noexcept = 0;

  [[nodiscard]] virtual IoLimits limits() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t in_flight() const noexcept = 0;
  /// "io_uring", "threads", "simulated".
  [[nodiscard]] virtual const char* name() const noexcept = 0;
  /// Optional features that the kernel refused, with the reasons, in one line; empty when all are in use.
  [[nodiscard]] virtual std::string notes() const = 0;
  /// Why the engine does not work any more, in one line, for example since the kernel refuses its system calls; empty
  /// while it works. New requests then complete with an error. Requests in flight may never be reported, because
  /// the kernel may still use their buffers; reap() returns at once when the engine fails. Called by the thread that
  /// calls reap().
  [[nodiscard]] virtual std::string failure() const { return {}; }
};

}  // namespace penstock::tiers
