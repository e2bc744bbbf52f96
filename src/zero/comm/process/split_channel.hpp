#pragma once

#include "zero/launch/control_channel.hpp"

#include <penstock/base/result.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace penstock::zero {

/// This rank's place in a part of its job, and the part's own control channel.
struct ChannelPart {
  std::uint32_t rank = 0, ranks = 1;
  std::unique_ptr<ControlChannel> channel;  ///< of several ranks
};

/// Divides the ranks of a job by their colors; every rank calls it. The first rank of a color listens on a free port,
/// at the address by which it has reached rank 0 of the job. `job` is its name, and `splits` how often all ranks have
/// come to divide it, equal on all of them; it is counted here.
///
/// Errors: those of ControlChannel::gather_for_trainer() and join(); peer_failed, with the cause, where the first rank
/// of the color cannot listen.
[[nodiscard]] Result<ChannelPart> split_channel(ControlChannel& channel, std::uint32_t color,
                                                const std::string& job, std::atomic<std::uint64_t>& splits,
                                                const control::Patience& patience);

}  // namespace penstock::zero
