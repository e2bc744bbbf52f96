#pragma once

#include <penstock/base/compute.hpp>
#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>
#include <penstock/zero/comm/communicator.hpp>
#include <penstock/zero/launch/launch.hpp>
#include <penstock/zero/launch/rank_identity.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::zero {

/// What carries the bytes of collectives between processes whose devices' memory is host memory. Those of GPUs are
/// always NCCL's.
enum class Carrier : std::uint8_t {
  tcp,
  mpi,  ///< of ranks that mpirun has started, with the ranks of MPI_COMM_WORLD; needs libpenstock_mpi.so
};

struct ProcessGroupOptions {
  std::uint32_t rank = 0, ranks = 1;
  Endpoint rank_0;  ///< where rank 0 listens: a host that all ranks can reach, and a TCP port of its own
  std::string job;  ///< equal on all ranks; ranks of another job are refused
  /// On this machine. Without values they are counted among the ranks that run on one kernel.
  std::optional<std::uint32_t> local_rank, local_ranks;
  Carrier carrier = Carrier::tcp;                     ///< equal on all ranks
  TimePoint join_deadline = std::chrono::minutes(5);  ///< how long a rank waits until all have come
  /// How long a rank may show no sign of life before the others take it for lost: a process that is stopped or swapped
  /// out, a host or network that is down. A process that ends is noticed at once.
  TimePoint silence_max = std::chrono::seconds(30);
  TimePoint deadline =
      std::chrono::minutes(30);           ///< of a collective, as in InProcessGroupOptions, and of gather()
  const Clock* clock = &Clock::steady();  ///< measures all of them; outlives the group
  /// If set: join() calls it on its thread with what it waits for, first after 5 s, then each time after twice as long:
  /// "waits since 5 s: rank 1, rank 3 did not come yet at node0:29501".
  std::function<void(const std::string& line)> notice = {};

  /// Of the ranks that a launcher has started; rank 0 listens on the port after MASTER_PORT.
  ///
  /// Errors: invalid_argument, where `launch` does not say where rank 0 is, and for the port 65535.
  [[nodiscard]] static Result<ProcessGroupOptions> of(const Launch& launch);
};

/// A group of ranks that are processes, on one machine or several. Each rank is connected with rank 0 by TCP, for what
/// few bytes all need, signs of life and failures. Bytes of collectives go from each rank to every other by TCP or MPI;
/// between GPUs, of which each rank has one of its own, by NCCL.
///
///     auto launch = zero::find_launch().value();   // torchrun, mpirun, srun, or options
///     auto group = zero::ProcessGroup::join(zero::ProcessGroupOptions::of(launch).value()).value();
///     auto rank = zero::Rank::create({.config = config, .model = layout, .identity = group->identity(),
///                                     .group = zero::process_membership(group)}).value();
///
/// A rank that fails, ends or falls silent ends the collectives of all with an error that names it. Safe from any
/// thread. join(), agree(), connect(), gather(), split() and the destructor block, for a bounded time.
class ProcessGroup {
 public:
  /// Returns when all ranks have come. A group of one rank needs no network.
  ///
  /// Errors: unsupported, for more ranks than Compute::mean_inputs_max; invalid_argument, for options that cannot be,
  /// and on every rank for ranks that do not fit together: other numbers of ranks, another build; already_exists, for
  /// two processes with one rank; in_use and permission, where rank 0 cannot listen; deadline_exceeded, naming the
  /// ranks that have not come, or what a rank has tried in order to reach rank 0; peer_failed.
  [[nodiscard]] static Result<std::shared_ptr<ProcessGroup>> join(const ProcessGroupOptions& options);
  /// Leaves the group; its communicator keeps it alive. Rank 0 first waits for the others, at most `silence_max`.
  virtual ~ProcessGroup() = default;

  [[nodiscard]] virtual const RankIdentity& identity() const = 0;
  /// Compares a description of the run, as in GroupMembership; every rank calls it. Errors: invalid_argument, on every
  /// rank, naming the first line in which a rank differs from rank 0; peer_failed.
  virtual Result<void> agree(const std::string& description) = 0;
  /// Connects the ranks and creates this one's communicator, once; every rank calls it. `device` and `compute` outlive
  /// the communicator.
  ///
  /// Errors: unsupported, without MPI or NCCL where it is needed, and for a device whose memory is neither the host's
  /// nor CUDA's; already_exists; deadline_exceeded, naming the ranks that cannot be reached and their addresses;
  /// invalid_argument, for ranks that choose different carriers, or not all have GPUs, and for two ranks on one GPU;
  /// peer_failed; those of NCCL and the device.
  [[nodiscard]] virtual Result<std::unique_ptr<Communicator>> connect(tiers::Device& device, Compute& compute,
                                                                      const CollectiveNeeds& needs) = 0;
  using Slots = std::vector<std::vector<std::byte>>;
  /// Every rank's `bytes`, in the order of the ranks: for what a trainer needs of all, such as their losses, or whether
  /// to stop. Every rank calls it with the same `label`, which says what they are; one thread at a time. Blocks until
  /// all have called it. Not beside this rank's own abandon_step(): interrupted does not tell it whether the others
  /// have got the bytes.
  ///
  /// Errors: peer_failed; interrupted, where a rank abandons a step, until all have; invalid_argument, for more than 1
  /// MiB of all ranks, and for ranks with different labels; failed_state, while another thread is in it.
  [[nodiscard]] virtual Result<Slots> gather(const std::string& label, std::span<const std::byte> bytes) = 0;
  /// Divides the group: the ranks that call it with one `color` form a new group, in the order of their ranks here, for
  /// example data-parallel groups of tensor-parallel ranks. Every rank of this group calls it. The new group has
  /// connections of its own: a rank that fails in it leaves other groups alone, unless its process ends. Its identity()
  /// counts its own ranks: of groups that share a machine, each needs its part of penstock.host_budget. Blocks until
  /// all ranks of the new group have come, at most `join_deadline`; one thread at a time in it and in gather().
  ///
  /// Errors: unsupported, for the carrier mpi; those of gather() and join(); peer_failed, where the new group's rank 0
  /// cannot listen.
  [[nodiscard]] virtual Result<std::shared_ptr<ProcessGroup>> split(std::uint32_t color) = 0;
  /// Call when this rank has failed: the collectives of its peers fail with `error` as the cause.
  virtual void abort(const Error& error) noexcept = 0;
  /// What a user may want to know, one per line, each once: connections that rank 0 has refused.
  [[nodiscard]] virtual std::vector<std::string> take_messages() = 0;
};

/// The membership that Rank::create() needs to join `group`. Without a group, join() returns invalid_argument.
[[nodiscard]] GroupMembership process_membership(std::shared_ptr<ProcessGroup> group);

}  // namespace penstock::zero
