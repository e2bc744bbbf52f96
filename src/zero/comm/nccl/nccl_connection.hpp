#pragma once

#include "zero/comm/nccl/nccl_library.hpp"

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/tiers/device/device.hpp>

#include <nccl.h>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace penstock::zero {

/// A non-blocking communicator of NCCL, of one rank. What is begun is done when poll() returns true; until then nothing
/// else may be begun, and nothing enqueued on its stream.
///
/// Errors are those of NCCL, with its own text, the rank and the device. After one only abort() is of use.
/// Used by one thread at a time. Only destroy() and abort() block, as NCCL does: destroy() for the ranks of this host
/// to destroy theirs, abort() until the stream has come to the kernels in flight.
class NcclConnection {
 public:
  struct Options {
    std::uint32_t rank = 0, ranks = 1;
    int device = 0;           ///< as CUDA numbers it
    std::string device_name;  ///< for messages
  };
  /// `nccl` outlives it.
  NcclConnection(const NcclLibrary& nccl, Options options) : nccl_(nccl), options_(std::move(options)) {}
  NcclConnection(const NcclConnection&) = delete;
  NcclConnection& operator=(const NcclConnection&) = delete;
  ~NcclConnection() { abort(); }

  /// For one communicator; one rank makes it for all.
  [[nodiscard]] Result<ncclUniqueId> make_id() const;
  /// Begins to connect the ranks. Precondition: not is_open().
  Result<void> connect(const ncclUniqueId& id);
  [[nodiscard]] bool is_open() const { return communicator_ != nullptr; }
  [[nodiscard]] Result<bool> poll() const;

  /// Begins to register memory of allocate_nccl_arena(), of the same size on all ranks: from then on what is in it is
  /// at the same offset on all ranks in each collective. NCCL uses it where it can; else nothing changes.
  Result<void> register_arena(DeviceSpan arena);

  // In place, as Communicator's. What is empty is done at once.
  Result<void> all_gather(tiers::Stream& stream, DeviceSpan flat);
  /// Slot `rank` of each flat becomes ncclAvg of that of all ranks.
  Result<void> average(tiers::Stream& stream, std::span<const DeviceTensor> flats);
  /// Sends each peer its slot of each flat, and receives their slots `rank` to where peer_slot() says.
  Result<void> exchange_slots(tiers::Stream& stream, std::span<const DeviceTensor> flats, DeviceSpan scratch);
  /// Where the slot of `peer` of flats[f] is in a scratch for those of all peers.
  [[nodiscard]] DeviceSpan peer_slot(DeviceSpan scratch, std::span<const DeviceTensor> flats, std::size_t f,
                                     std::uint32_t peer) const;

  /// Begins to end the connection of all ranks, whose kernels have ended.
  Result<void> finalize();
  /// Precondition: it is finalized.
  void destroy() noexcept;
  /// Ends the kernels in flight, which may take until after the call, and the connection.
  void abort() noexcept;
  /// Keeps everything until the process ends.
  void abandon() noexcept { communicator_ = nullptr, window_ = nullptr; }

 private:
  Result<void> average_one(tiers::Stream& stream, const DeviceTensor& flat);
  Result<void> exchange_with(std::uint32_t peer, tiers::Stream& stream, std::span<const DeviceTensor> flats,
                             DeviceSpan scratch);
  /// Makes the calls of `enqueue` as one group.
  Result<void> in_group(const std::function<Result<void>()>& enqueue);
  Result<void> check(const char* operation, ncclResult_t result) const;

  const NcclLibrary& nccl_;
  const Options options_;
  bool connects_ = false;
  ncclComm_t communicator_ = nullptr;
  ncclWindow_t window_ = nullptr;  // set once register_arena() is done
};

}  // namespace penstock::zero
