#include "zero/engine/commit_hop.hpp"

#include "base/abandon.hpp"

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <utility>

namespace penstock::zero {

using swap::HopState;

namespace {

class CommitHop final : public swap::Hop {
 public:
  CommitHop(EngineContext& context, std::vector<DeviceCopy> copies, swap::Runtime& side,
            const std::atomic<bool>& stop)
      : context_(context), copies_(std::move(copies)), side_(side), stop_(stop) {}
  ~CommitHop() override {
    for (InFlight& one : in_flight_) {
      // The device may write there for ever.
      if (one.state != State::waits) abandon(std::move(one.lease));
    }
  }

  Result<void> start() override { return ok(); }
  /// It holds nothing of the engine's runtime.
  bool is_blocked() const override { return true; }
  /// The side runtime, which grants the leases, does not wake this one's mover.
  TimePoint poll_interval() const override {
    constexpr TimePoint until_granted = std::chrono::milliseconds(1);
    const bool waits = std::any_of(in_flight_.begin(), in_flight_.end(),
                                   [](const InFlight& one) { return one.state == State::waits; });
    return std::min(context_.copied_out.next_query(), waits ? until_granted : forever);
  }

  Result<HopState> poll() override {
    if (stop_ && !failure_)
      failure_ = Error(ErrorCode::failed_state, "Engine::finish_commit").reason("the commit was given up");
    request();
    for (InFlight& one : in_flight_) {
      if (one.state != State::waits || failure_) continue;
      if (auto taken = take(one); !taken) failure_ = taken.error();
    }
    PENSTOCK_TRY(end_copied());
    if (failure_) return stop();
    request();
    return in_flight_.empty() && next_ == copies_.size() ? HopState::done : HopState::pending;
  }

 private:
  static constexpr std::size_t in_flight_max = 8;  // of the staging's parts; more wait for room in vain

  /// waits: for its lease; unknown: perhaps enqueued, and when it ends cannot be told.
  enum class State : std::uint8_t { waits, unknown, enqueued };
  struct InFlight {
    const DeviceCopy* copy;
    swap::PendingLease pending;
    swap::Lease lease = {};
    tiers::StreamProgress::Point copied = {};
    State state = State::waits;
  };

  void request() {
    while (!failure_ && next_ < copies_.size() && in_flight_.size() < in_flight_max) {
      const DeviceCopy& copy = copies_[next_++];
      in_flight_.push_back({&copy, swap::RuntimeInternals(side_).request_for_mover(
                                       copy.to, swap::Access::overwrite, swap::Use::unrecorded)});
    }
  }

  Result<void> take(InFlight& one) {
    auto lease = one.pending.poll();
    if (!lease) return ok();
    PENSTOCK_TRY_ASSIGN(one.lease, *std::move(lease));
    tiers::Stream& stream = *context_.copy_out;
    const auto enqueued =
        context_.device.copy_to_host(stream.handle(), one.copy->range.on_device, one.lease.bytes());
    one.state = State::unknown;  // also after an error: a part of the copy may be enqueued
    PENSTOCK_TRY_ASSIGN(
        one.copied,
        context_.copied_out.record(stream, context_.events, one.lease.bytes().size(), one.copy->range.name));
    one.state = State::enqueued;
    return enqueued;
  }

  /// Ends the leases whose copies are complete: the first ones, since the stream copies in order.
  Result<void> end_copied() {
    while (!in_flight_.empty() && in_flight_.front().state == State::enqueued) {
      PENSTOCK_TRY_ASSIGN(const bool copied, context_.copied_out.has_passed(in_flight_.front().copied));
      if (!copied) break;
      in_flight_.front().lease.end();
      in_flight_.pop_front();
    }
    return ok();
  }

  /// Ends once no copy is in flight of which the end can be told. The destructor keeps the memory of the others.
  Result<HopState> stop() {
    std::erase_if(in_flight_, [](const InFlight& one) { return one.state == State::waits; });
    bool any_copies = false;
    for (auto one = in_flight_.begin(); one != in_flight_.end();) {
      bool copied = false;
      if (one->state == State::enqueued) {
        PENSTOCK_TRY_ASSIGN(copied, context_.copied_out.has_passed(one->copied));
        any_copies |= !copied;
      }
      if (copied) one->lease.end();
      one = copied ? in_flight_.erase(one) : one + 1;
    }
    if (!any_copies) return *failure_;
    return HopState::pending;
  }

  EngineContext& context_;
  const std::vector<DeviceCopy> copies_;
  swap::Runtime& side_;
  const std::atomic<bool>& stop_;
  std::size_t next_ = 0;
  std::deque<InFlight> in_flight_;
  std::optional<Error> failure_;
};

}  // namespace

std::unique_ptr<swap::Hop> make_commit_hop(EngineContext& context, std::vector<DeviceCopy> copies,
                                           swap::Runtime& side, const std::atomic<bool>& stop) {
  return std::make_unique<CommitHop>(context, std::move(copies), side, stop);
}

}  // namespace penstock::zero
