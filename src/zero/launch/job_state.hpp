#pragma once

#include "zero/launch/control_client.hpp"
#include "zero/launch/control_message.hpp"

#include <penstock/base/result.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::zero::control {

/// What the callers of a control channel see of their job, and what they have asked. The channel's thread publishes
/// what its ControlClient knows, which may be ahead: a caller has not taken the end of a recovery yet, and the next
/// interruption is here. Not safe from several threads: the channel guards it.
class JobState {
 public:
  using Slots = std::vector<std::vector<std::byte>>;

  /// Called by the channel's thread, after everything that it has told `client`. True if callers see something new.
  [[nodiscard]] bool publish(ControlClient& client);

  [[nodiscard]] const std::optional<std::vector<Peer>>& peers() const { return peers_; }
  /// The first failure of a rank.
  [[nodiscard]] std::optional<Error> failure() const;
  /// Why no bytes can be gathered: the failure, or the interruption.
  [[nodiscard]] std::optional<Error> obstacle() const;

  /// After it the thread tells its client to gather. Errors: the obstacle; failed_state, where one is in flight.
  Result<void> start_gather(Gatherer by);
  /// What was gathered before an interruption or failure of another rank is returned: all ranks get it, or none.
  [[nodiscard]] Result<std::optional<Slots>> poll_gather(Gatherer by);
  /// Whether poll_gather() has something to say.
  [[nodiscard]] bool has_gathered(Gatherer by) const {
    return of(by).gathered || of(by).interruption || failure_ || interruption_;
  }

  /// As of ControlClient.
  [[nodiscard]] const std::vector<std::uint32_t>& absent(Gatherer by) const { return of(by).absent; }

  /// After it the thread tells its client to recover. Errors: the failure; failed_state, without an interruption, or
  /// where the recovery has started.
  Result<void> start_recovery();
  [[nodiscard]] Result<bool> poll_recovery() const;

 private:
  std::optional<std::vector<Peer>> peers_;
  struct Gathering {
    bool in_flight = false;
    std::optional<Slots> gathered;
    std::optional<Failure>
        interruption;  ///< that has ended it; its caller may notice only after the recovery
    std::vector<std::uint32_t> absent{};
  };
  [[nodiscard]] Gathering& of(Gatherer by) { return gatherings_[static_cast<std::size_t>(by)]; }
  [[nodiscard]] const Gathering& of(Gatherer by) const { return gatherings_[static_cast<std::size_t>(by)]; }

  std::array<Gathering, gatherers> gatherings_;
  std::optional<Failure> failure_;
  std::optional<Failure> interruption_;
  std::uint64_t recoveries_ = 0;
  bool recovers_ = false, recovered_ = false;
};

}  // namespace penstock::zero::control
