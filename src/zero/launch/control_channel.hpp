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
/// A message holds 1 MiB of what is gathered, of all ranks; more is invalid_argument. The destructor leaves the job;
/// rank 0 first waits for the others to leave, at most Patience::silence. join(), gather() and the destructor block,
/// for a bounded time.
class ControlChannel : public JobControl {
 public:
  struct Options {
    std::string job;  ///< equal on all ranks, and different from that of another job
    std::uint32_t rank = 0, ranks = 1;
    Endpoint rank_0;  ///< where rank 0 listens
    control::Patience patience = {};
    /// Of a rank 0 whose port is not known: it listens on a free one, and `tell` tells it to the others.
    struct FreePort {
      bool only_here = false;  ///< at the loopback `rank_0.host`, else at all addresses of the machine
      std::function<Result<void>(std::uint16_t port)> tell;
    };
    std::optional<FreePort> free_port = {};
    std::function<void(const std::string& line)> notice = {};  ///< as of ProcessGroupOptions
  };
  using Peer = control::Peer;

  /// Returns when all ranks have come.
  ///
  /// Errors: in_use and permission, where rank 0 cannot listen; that of FreePort::tell; those of the system, such as
  /// too many open files; deadline_exceeded, naming what is missing; invalid_argument and already_exists, for ranks
  /// that do not fit together; peer_failed.
  [[nodiscard]] static Result<std::unique_ptr<ControlChannel>> join(const Options& options);

  /// By their numbers.
  [[nodiscard]] virtual const std::vector<Peer>& peers() const = 0;
  /// Of the connection to rank 0.
  struct Addresses {
    std::string own, rank_0;
  };
  [[nodiscard]] virtual const Addresses& addresses() const = 0;
  /// As gather(), for the trainer: it runs side by side with what the collectives gather. Any thread, one at a time.
  [[nodiscard]] virtual Result<Slots> gather_for_trainer(const std::string& label,
                                                         std::span<const std::byte> bytes) = 0;
  /// What a user may want to know, one per line: connections that rank 0 has refused.
  [[nodiscard]] virtual std::vector<std::string> take_messages() = 0;
};

}  // namespace penstock::zero
