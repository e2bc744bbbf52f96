#pragma once

#include "base/owned_fd.hpp"
#include "zero/comm/job_control.hpp"

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>

#include <string>
#include <vector>

namespace penstock::zero {

/// What the control channel tells of the network.
struct PeerAddresses {
  std::string own;     ///< this process', as it reaches rank 0
  std::string rank_0;  ///< rank 0's, as this process reaches it
};

/// Connects this process with every other rank of its job by TCP; every rank calls it. sockets[r] is connected to rank
/// r; that of this process is empty. Ranks know each other by keys that they have exchanged over the control channel.
/// Blocks at most for `deadline`.
///
/// Errors: obstacle(); deadline_exceeded, naming the ranks that cannot be reached and their addresses; those of the
/// system. An error of this rank is one of the job.
[[nodiscard]] Result<std::vector<OwnedFd>> connect_peers(JobControl& control, const PeerAddresses& addresses,
                                                         TimePoint deadline);

}  // namespace penstock::zero
