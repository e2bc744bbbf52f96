#pragma once

#include "zero/comm/job_control.hpp"

#include <penstock/base/time.hpp>
#include <penstock/base/units.hpp>
#include <penstock/zero/comm/communicator.hpp>

#include <chrono>
#include <memory>

namespace penstock::zero {

struct NcclGroupOptions {
  /// How long join() waits for the others. Once all have come, NCCL has as much time to connect them.
  TimePoint join = std::chrono::minutes(5);
  /// How long a rank waits for the others in a collective, and how long a collective may take that all have started.
  /// Only time in which poll() is called counts. `forever`: without end.
  TimePoint deadline = std::chrono::minutes(30);
  /// How long retire() waits for the others to retire too. Then it keeps what they may use until the process ends.
  TimePoint leave = std::chrono::seconds(30);
  const Clock* clock = &Clock::steady();  ///< measures the deadlines; outlives the communicator
};

/// A group of ranks on GPUs of their own, one process a rank, whose collectives are NCCL's. No other thread gathers
/// with `control`. join() blocks until all ranks have come. Precondition: its device is CUDA's.
///
/// Ranks compare each collective over `control` before it is enqueued, while the streams execute the ones before.
/// `exact` sends each slot to its rank and adds as every transport does; `native` is ncclAvg. A poll() that returns
/// true says that NCCL has enqueued the collective. Whether it ends is looked at by later polls, and by a thread where
/// nobody polls: at the deadline, the job fails with its name; where a rank fails, or interrupts the collectives, it
/// ends without its result. Nothing wakes a rank when NCCL makes progress: poll every 50 us while a collective runs.
///
/// Errors of join(): unsupported, for a build or a machine without NCCL; invalid_argument, for two ranks on one GPU,
/// more than Compute::mean_inputs_max ranks, times that are not above 0 and a null clock; deadline_exceeded, naming
/// the ranks that have not come; peer_failed; those of NCCL and the device.
[[nodiscard]] GroupMembership nccl_membership(std::shared_ptr<JobControl> control,
                                              const NcclGroupOptions& options);

}  // namespace penstock::zero
