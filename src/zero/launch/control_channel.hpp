#pragma once

#include "zero/comm/job_control.hpp"
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
/// join(), gather() and the destructor block, for a bounded time.
class ControlChannel final : public JobControl {
 public:
  struct Options {
    std::string job;  ///< equal on all ranks, and different from that of another job
    std::uint32_t rank = 0, ranks = 1;
    Endpoint rank_0;  ///< where rank 0 listens
    control::Patience patience = {};
  };
  using Peer = control::Peer;

  /// Returns when all ranks have come.
  ///
  /// Errors: unsupported, for a build without Asio; in_use and permission, where rank 0 cannot listen;
  /// deadline_exceeded, naming what is missing; invalid_argument and already_exists, for ranks that do not fit
  /// together; peer_failed.
  [[nodiscard]] static Result<std::unique_ptr<ControlChannel>> join(const Options& options);
  /// Leaves the job. Rank 0 first waits for the others to leave, at most Patience::silence.
  ~ControlChannel() override;

  /// By their numbers.
  [[nodiscard]] const std::vector<Peer>& peers() const;
  /// Of the connection to rank 0.
  struct Addresses {
    std::string own, rank_0;
  };
  [[nodiscard]] const Addresses& addresses() const;

  std::uint32_t rank() const override;
  std::uint32_t ranks() const override;
  /// Errors of both: those of JobControl; invalid_argument, for more bytes than a message holds (of all ranks, 1 MiB).
  Result<Slots> gather(const std::string& label, std::span<const std::byte> bytes) override;
  Result<void> start_gather(const std::string& label, std::span<const std::byte> bytes) override;
  Result<std::optional<Slots>> poll_gather() override;
  std::vector<std::uint32_t> absent() const override { return {}; }
  void interrupt(const Error& cause) noexcept override;
  Result<void> start_recovery() override;
  Result<bool> poll_recovery() override;
  void fail(const Error& error) noexcept override;
  void fail_job(const Error& error) noexcept override;
  std::optional<Error> obstacle() const override;
  void set_wake(std::function<void()> wake) override;
  /// What a user may want to know, one per line: connections that rank 0 has refused.
  [[nodiscard]] std::vector<std::string> take_messages();

 private:
  class Loop;
  explicit ControlChannel(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace penstock::zero
