#pragma once

#include <penstock/base/time.hpp>
#include <penstock/tiers/io/io_engine.hpp>

#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace penstock::tiers {

/// One fault of a plan: which request it strikes, and what becomes of it.
///
///     Fault::fail(IoOperation::write, 3, ENOSPC)      // the fourth write
struct Fault {
  enum class Effect : std::uint8_t {
    fail,       ///< completes with `error`, and moves nothing
    shorten,    ///< moves `length` bytes and says so
    delay,      ///< completes `delay` later than it would
    hang,       ///< never completes; an engine closed without a deadline cancels it
    tear,       ///< a write of which `length` bytes, in blocks of 4096, reach the disk, reported as whole
    misdirect,  ///< a write that reaches the disk `distance` bytes further on, reported as whole
    lose,  ///< a write that never reaches the disk, reported as whole: reads after it are stale; or a flush
           ///< that makes nothing durable, reported as done
    flip_bit,  ///< a read that brings bit number `bit` of its buffer the wrong way round
  };

  std::optional<IoOperation> operation;  ///< none: whatever comes
  std::uint64_t occurrence = 0;          ///< of such requests, counted from 0 over the engine's life
  std::uint64_t count = 1;               ///< it, and those after it
  Effect effect = Effect::fail;
  int error = EIO;
  ByteCount length;
  TimePoint delay{};
  std::int64_t distance = 0;
  std::uint64_t bit = 0;

  [[nodiscard]] static Fault fail(std::optional<IoOperation> operation, std::uint64_t occurrence, int error,
                                  std::uint64_t count = 1) {
    return {.operation = operation, .occurrence = occurrence, .count = count, .error = error};
  }
};

using FaultPlan = std::vector<Fault>;

/// Any engine with faults injected, so that an embedder can see its own trainer meet them. A request that no
/// fault of the plan strikes passes unchanged. Where several strike, the first of the plan does.
///
/// Owned and called as the engine within.
class FaultEngine final : public IoEngine {
 public:
  /// `clock` outlives it; delays are counted by it.
  FaultEngine(std::unique_ptr<IoEngine> within, FaultPlan plan, const Clock& clock = Clock::steady());
  ~FaultEngine() override { (void)FaultEngine::close(forever); }

  [[nodiscard]] std::size_t submit(std::span<const IoRequest> requests) noexcept override;
  [[nodiscard]] std::size_t reap(std::span<IoCompletion> completions, TimePoint deadline) noexcept override;
  void wake() noexcept override { within_->wake(); }
  void attach(FileHandle file, HostSpan buffers) noexcept override { within_->attach(file, buffers); }
  bool close(TimePoint deadline) noexcept override;

  [[nodiscard]] IoLimits limits() const noexcept override { return within_->limits(); }
  [[nodiscard]] std::uint32_t in_flight() const noexcept override { return in_flight_; }
  [[nodiscard]] const char* name() const noexcept override { return within_->name(); }
  [[nodiscard]] std::string notes() const override { return within_->notes(); }

  /// One fault more, after those of the plan.
  void add(const Fault& fault) { plan_.push_back(fault); }
  /// Requests accepted so far, of one kind or of all.
  [[nodiscard]] std::uint64_t accepted(std::optional<IoOperation> operation = {}) const noexcept;
  /// Faults that have struck so far.
  [[nodiscard]] std::uint64_t struck() const noexcept { return struck_; }
  /// When a completion that is held back is due; forever when none is.
  [[nodiscard]] TimePoint next_due() const noexcept;

 private:
  /// A request on its way, and the fault that has struck it.
  struct Slot {
    IoRequest request;
    std::optional<Fault> fault;
  };
  struct Held {
    IoCompletion completion;
    TimePoint due{};
  };

  [[nodiscard]] std::optional<Fault> strike(IoOperation operation) noexcept;
  [[nodiscard]] bool start(const IoRequest& request) noexcept;
  [[nodiscard]] bool pass_on(const IoRequest& request, const std::optional<Fault>& fault) noexcept;
  void hold(std::uint64_t tag, std::int64_t result, TimePoint due) { held_.push_back({{tag, result}, due}); }
  void take_from_within(TimePoint deadline) noexcept;
  [[nodiscard]] std::int64_t whole(const IoRequest& request) const noexcept;

  std::unique_ptr<IoEngine> within_;
  FaultPlan plan_;
  const Clock& clock_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<Held> held_;
  std::array<std::uint64_t, 3> accepted_{};  // by operation
  std::uint64_t struck_ = 0;
  std::uint32_t in_flight_ = 0;
  bool closed_ = false, at_rest_ = true;
};

}  // namespace penstock::tiers
