#pragma once

#include <penstock/base/compute.hpp>
#include <penstock/base/time.hpp>
#include <penstock/zero/comm/communicator.hpp>

#include <chrono>
#include <cstdint>
#include <memory>

namespace penstock::zero {

struct InProcessGroupOptions {
  /// How long a rank waits in one collective for the others. Only time in which its poll() is called counts: a process
  /// that was stopped continues. `forever`: without end.
  TimePoint deadline = std::chrono::minutes(30);
  const Clock* clock = &Clock::steady();  ///< measures the deadline; outlives the group
};

/// A group of ranks in one process, on any kind of device, with one thread or several. Safe from any thread.
///
/// If a rank has not joined a collective by the deadline, poll() of the ranks that wait for it returns
/// deadline_exceeded, which names the missing ranks, and every later collective of the group fails with that error.
///
///     auto group = zero::InProcessGroup::create(/*ranks=*/2).value();
///     auto communicator = group->join(rank, device, compute).value();   // on each rank's thread
class InProcessGroup {
 public:
  /// Errors: invalid_argument, for zero ranks or more than Compute::mean_inputs_max, a deadline that is not above 0,
  /// and a null clock.
  [[nodiscard]] static Result<std::shared_ptr<InProcessGroup>> create(
      std::uint32_t ranks, const InProcessGroupOptions& options = {});
  virtual ~InProcessGroup() = default;

  /// Creates the communicator of `rank`, once per rank. `device` and `compute` belong to that rank and must outlive the
  /// communicator. Peers read that device's memory, so all devices of a group must be of one kind, and GPUs must have
  /// peer-to-peer access: where one has not, the first collective fails on every rank, with unsupported on that rank.
  ///
  /// Errors: invalid_argument, for a rank outside the group; already_exists, for a rank that has joined.
  [[nodiscard]] virtual Result<std::unique_ptr<Communicator>> join(std::uint32_t rank, tiers::Device& device,
                                                                   Compute& compute) = 0;

  /// Call when `rank` will never join or has failed: from now on every collective of its peers fails with `error` as
  /// the cause.
  virtual void abort(std::uint32_t rank, const Error& error) noexcept = 0;
};

/// The membership that Rank::create() needs to join `group` as `rank`. Without a group, join() returns
/// invalid_argument.
[[nodiscard]] GroupMembership in_process_membership(std::shared_ptr<InProcessGroup> group,
                                                    std::uint32_t rank);

}  // namespace penstock::zero
