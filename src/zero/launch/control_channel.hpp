#pragma once

#include "zero/launch/control_message.hpp"
#include "zero/launch/patience.hpp"

#include <penstock/base/result.hpp>
#include <penstock/zero/launch/launch.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::zero {

/// The control channel of one rank of a job: a TCP connection to rank 0, over which the ranks meet, exchange few bytes,
/// show that they live, and tell each other why they fail. Rank 0's channel serves the others. Its own thread moves the
/// bytes.
///
///     auto channel = ControlChannel::join({.job = launch.job, .rank = 1, .ranks = 2, .rank_0 = endpoint}).value();
///     auto all = channel->gather("configuration", bytes).value();   // all[r] are those of rank r
///
/// Safe from any thread. join(), gather() and the destructor block, for a bounded time.
class ControlChannel {
 public:
  struct Options {
    std::string job;  ///< equal on all ranks, and different from that of another job
    std::uint32_t rank = 0, ranks = 1;
    Endpoint rank_0;  ///< where rank 0 listens
    control::Patience patience = {};
  };
  using Slots = std::vector<std::vector<std::byte>>;
  using Peer = control::Peer;

  /// Returns when all ranks have come.
  ///
  /// Errors: unsupported, for a build without Asio; in_use and permission, where rank 0 cannot listen;
  /// deadline_exceeded, naming what is missing; invalid_argument and already_exists, for ranks that do not fit
  /// together; peer_failed.
  [[nodiscard]] static Result<std::unique_ptr<ControlChannel>> join(const Options& options);
  /// Leaves the job. Rank 0 first waits for the others to leave, at most Patience::silence.
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  /// By their numbers.
  [[nodiscard]] const std::vector<Peer>& peers() const;

  /// Every rank's `bytes`, in the order of the ranks. Every rank calls it with the same `label`, which says what they
  /// are, one gathering at a time.
  ///
  /// Errors: obstacle(); invalid_argument, for more bytes than a message holds (of all ranks, 1 MiB);
  /// failed_state, while another one is in flight.
  [[nodiscard]] Result<Slots> gather(const std::string& label, std::span<const std::byte> bytes);
  /// The same without waiting: poll_gather() returns the slots once, when they are here.
  Result<void> start_gather(const std::string& label, std::span<const std::byte> bytes);
  [[nodiscard]] Result<std::optional<Slots>> poll_gather();

  /// Ends the gathering in progress of every rank, which then returns `interrupted`, naming this rank and its cause,
  /// until every rank has recovered. Without effect while the job is interrupted.
  void interrupt(const Error& cause) noexcept;
  /// Every rank calls it after an interruption; once poll_recovery() has returned true, bytes can be gathered again.
  /// Errors: the failure of a rank; failed_state, where the job is not interrupted, or the recovery has started.
  Result<void> start_recovery();
  [[nodiscard]] Result<bool> poll_recovery();

  /// Tells every rank that this one has failed, and why.
  void fail(const Error& error) noexcept;
  /// Tells every rank what all of them return, such as collectives that differ.
  void fail_job(const Error& error) noexcept;
  /// Why bytes cannot be gathered: the first failure of a rank, this one included, or the interruption.
  [[nodiscard]] std::optional<Error> obstacle() const;
  /// Sets the function that is called on the channel's thread when poll_gather(), poll_recovery() or obstacle() may
  /// have changed. An empty function ends the calls.
  void set_wake(std::function<void()> wake);
  /// What a user may want to know, one per line: connections that rank 0 has refused.
  [[nodiscard]] std::vector<std::string> take_messages();

 private:
  class Loop;
  explicit ControlChannel(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace penstock::zero
