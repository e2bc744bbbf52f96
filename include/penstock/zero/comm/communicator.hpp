#pragma once

#include <penstock/base/compute.hpp>
#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/tiers/device/device.hpp>

#include <cstdint>
#include <memory>
#include <span>

namespace penstock::zero {

/// Collectives of one data-parallel group, as one rank sees them.
///
/// Every rank starts the same collectives in the same order, one at a time: the next one once enqueued()
/// has said true for the last. A rank that fails aborts, and its peers hear of it. Nothing here blocks.
/// Owned by one thread at a time.
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  [[nodiscard]] virtual std::uint32_t rank() const = 0;
  [[nodiscard]] virtual std::uint32_t size() const = 0;

  /// In place: `flat` is size() equal slots, of which slot rank() holds this rank's bytes; all are filled.
  virtual Result<void> start_all_gather(tiers::Stream& stream, DeviceSpan flat) = 0;

  /// In place: slot rank() of `flat` becomes the mean over ranks of that slot, summed in fp32 in rank order
  /// and rounded once (`exact`). The other slots are left undefined.
  virtual Result<void> start_reduce_scatter(tiers::Stream& stream, DeviceTensor flat) = 0;

  /// Bytes of host memory: all[r] of size() equal slots becomes rank r's `mine`. Both stay alive until
  /// enqueued() has said true, and then `all` is filled.
  virtual Result<void> start_exchange(ConstHostSpan mine, HostSpan all) = 0;

  /// True once everything this rank must enqueue on the stream for the collective is enqueued there: who
  /// waits for the stream waits for the collective.
  ///
  /// Errors: peer_failed, naming the rank and its error; invalid_argument, when the ranks' collectives
  /// differ.
  [[nodiscard]] virtual Result<bool> enqueued() = 0;

  /// This rank leaves with `error`; every collective of its peers now fails.
  virtual void abort(const Error& error) noexcept = 0;

  /// This rank takes part in nothing more. Once `stream` has passed this point, no peer reads or writes its
  /// memory, not even in a collective that was broken off.
  virtual void retire(tiers::Stream& stream) noexcept = 0;
};

/// Ranks in one process, over any kind of device, one thread or many.
class InProcessGroup {
 public:
  /// A group of `ranks` > 0.
  [[nodiscard]] static std::shared_ptr<InProcessGroup> create(std::uint32_t ranks);
  virtual ~InProcessGroup() = default;

  /// The communicator of `rank`, to be made once a rank. `device` and `compute` belong to that rank and
  /// outlive it; peers read that device's memory, so all devices of a group are of one kind.
  [[nodiscard]] virtual Result<std::unique_ptr<Communicator>> join(std::uint32_t rank, tiers::Device& device,
                                                                   Compute& compute) = 0;

  /// `rank` will never join, or has failed: every collective of its peers now fails with `error` as cause.
  virtual void abort(std::uint32_t rank, const Error& error) noexcept = 0;
};

}  // namespace penstock::zero
