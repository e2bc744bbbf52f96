#pragma once

#include "swap/runtime_internals.hpp"
#include "zero/engine/device_update.hpp"

#include <penstock/swap/runtime.hpp>

namespace penstock::zero {

/// A shard or a tile for host code, piece by piece: parts of its tensor, leased, or copies of what is kept on the
/// device. Move-only; used by the trainer's thread.
class HostView {
 public:
  /// Leases `tensor`, or views `kept` if that is not empty: each piece in `copy`, which is as long as the longest one.
  /// Blocks.
  ///
  /// Errors: those of Runtime::acquire().
  [[nodiscard]] static Result<HostView> of(swap::Runtime& runtime, DeviceUpdate& device,
                                           tiers::TensorId tensor, DeviceSpan kept, HostSpan copy,
                                           swap::Access access) {
    HostView view(device, kept, copy, access);
    if (kept.empty()) {
      PENSTOCK_TRY_ASSIGN(view.lease_,
                          swap::RuntimeInternals(runtime).acquire(tensor, access, swap::Use::unrecorded));
    }
    return view;
  }

  /// Bytes [begin, begin + size), until the next call; with Access::overwrite undefined at first. Blocks.
  ///
  /// Errors: those of the device.
  [[nodiscard]] Result<HostSpan> piece(ByteCount begin, ByteCount size) {
    if (kept_.empty()) return lease_.bytes().subspan(begin, size);
    piece_ = kept_.subspan(begin, size);
    const HostSpan copy = copy_.subspan({}, size);
    if (access_ != swap::Access::overwrite) PENSTOCK_TRY(device_->read(piece_, copy));
    return copy;
  }
  /// Copies the last piece to where it is kept. Blocks. Errors: those of the device.
  Result<void> write_back() {
    return kept_.empty() ? ok() : device_->write(copy_.subspan({}, piece_.size()), piece_);
  }
  /// All bytes of a tensor.
  [[nodiscard]] HostSpan leased() { return lease_.bytes(); }

 private:
  HostView(DeviceUpdate& device, DeviceSpan kept, HostSpan copy, swap::Access access)
      : device_(&device), kept_(kept), copy_(copy), access_(access) {}

  DeviceUpdate* device_;
  DeviceSpan kept_, piece_;
  HostSpan copy_;
  swap::Access access_;
  swap::Lease lease_;
};

}  // namespace penstock::zero
