#pragma once

#include <penstock/base/time.hpp>
#include <penstock/tiers/io/io_engine.hpp>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace penstock::tiers {

/// One fault of a plan: which requests it changes, and how.
///
///     Fault::fail(IoOperation::write, 3, ENOSPC)      // the fourth write fails
struct Fault {
  enum class Effect : std::uint8_t {
    fail,  ///< completes with `error` and moves nothing
    shorten,  ///< a read or a write: moves `length` bytes, rounded up to a multiple of 4096, and reports `length`
    delay,  ///< completes `delay` later than without the fault
    hang,   ///< never completes; close() without a deadline cancels it
    /// A write: only the first `length` bytes, rounded up to a multiple of 4096, reach the disk. Reported as complete.
    tear,
    misdirect,  ///< a write: the bytes go to its offset plus `distance`; reported as complete
    lose,       ///< a write or a flush: nothing reaches the disk; reported as complete
    flip_bit,   ///< a read: bit number `bit` of its buffer is inverted
    kill,       ///< SIGKILL ends the process once the request is on its way
  };

  std::optional<IoOperation> operation;  ///< none: every operation to which the effect applies
  /// Index of the first affected request. Accepted requests of `operation` are counted from 0; if `operation` is none,
  /// requests of every operation are counted.
  std::uint64_t occurrence = 0;
  /// How many consecutive requests, from `occurrence` on, the fault covers; those to which the effect does not apply
  /// pass unchanged.
  std::uint64_t count = 1;
  Effect effect = Effect::fail;
  int error = EIO;
  ByteCount length = {};
  TimePoint delay{};
  std::int64_t distance = 0;
  std::uint64_t bit = 0;

  [[nodiscard]] static Fault fail(std::optional<IoOperation> operation, std::uint64_t occurrence, int error,
                                  std::uint64_t count = 1) {
    return {.operation = operation, .occurrence = occurrence, .count = count, .error = error};
  }
};

using FaultPlan = std::vector<Fault>;

/// Wraps an engine and injects the faults of a plan, so that an embedder can see how its trainer handles them.
/// Requests that no fault concerns pass unchanged. Where several concern a request, the first of the plan applies.
///
///     FaultEngine engine(std::move(real_engine), {Fault::fail(IoOperation::read, 10, EIO)});
///
/// When this engine injects a failed flush, no writes are lost: the next flush makes them durable. On a disk, a
/// failed flush may lose writes; SimDisk::fail_syncs() simulates that.
///
/// Thread rules: those of the wrapped engine. add(), accepted() and injected() are safe from any thread.
class FaultEngine final : public IoEngine {
 public:
  /// Owns `wrapped`; without one, it is an engine that has failed, see failure(). `clock` measures delays and outlives
  /// the engine.
  FaultEngine(std::unique_ptr<IoEngine> wrapped, FaultPlan plan, const Clock& clock = Clock::steady());
  ~FaultEngine() override;

  [[nodiscard]] std::size_t submit(std::span<const IoRequest> requests) noexcept override;
  [[nodiscard]] std::size_t reap(std::span<IoCompletion> completions, TimePoint deadline) noexcept override;
  void wake() noexcept override;
  void attach(FileHandle file, HostSpan buffers) noexcept override;
  bool detach() noexcept override;
  bool close(TimePoint deadline) noexcept override;

  [[nodiscard]] IoLimits limits() const noexcept override;
  [[nodiscard]] std::uint32_t in_flight() const noexcept override;
  [[nodiscard]] const char* name() const noexcept override;
  [[nodiscard]] std::string notes() const override;
  [[nodiscard]] std::string failure() const override;

  /// Appends a fault to the plan.
  void add(const Fault& fault);
  /// Requests accepted so far, of one kind or of all.
  [[nodiscard]] std::uint64_t accepted(std::optional<IoOperation> operation = {}) const noexcept;
  /// Faults injected so far.
  [[nodiscard]] std::uint64_t injected() const noexcept;
  /// When the next completion that this engine holds is due: an injected or delayed one, or one that reap() has not
  /// returned yet. forever when it holds none, or only requests that hang.
  [[nodiscard]] TimePoint next_due() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::tiers
