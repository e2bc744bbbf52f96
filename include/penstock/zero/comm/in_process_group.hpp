#pragma once

#include <penstock/base/compute.hpp>
#include <penstock/zero/comm/communicator.hpp>

#include <memory>

namespace penstock::zero {

/// Ranks in one process, over any kind of device, one thread or many. Safe from any thread.
///
///     auto group = zero::InProcessGroup::create(/*ranks=*/2);
///     auto communicator = group->join(rank, device, compute).value();   // on each rank's thread
class InProcessGroup {
 public:
  /// A group of `ranks` > 0.
  [[nodiscard]] static std::shared_ptr<InProcessGroup> create(std::uint32_t ranks);
  virtual ~InProcessGroup() = default;

  /// The communicator of `rank`, to be made once a rank. `device` and `compute` belong to that rank and outlive it;
  /// peers read that device's memory, so all devices of a group are of one kind.
  ///
  /// Errors: invalid_argument, for a rank that the group does not have; already_exists, for one that has joined.
  [[nodiscard]] virtual Result<std::unique_ptr<Communicator>> join(std::uint32_t rank, tiers::Device& device,
                                                                   Compute& compute) = 0;

  /// `rank` will never join, or has failed: every collective of its peers fails from now on, with `error` as cause.
  virtual void abort(std::uint32_t rank, const Error& error) noexcept = 0;
};

/// What Rank::create() needs to join `group` as `rank`.
[[nodiscard]] GroupMembership in_process_membership(std::shared_ptr<InProcessGroup> group,
                                                    std::uint32_t rank);

}  // namespace penstock::zero
