#pragma once

#include "zero/engine/device_update.hpp"

#include <penstock/swap/runtime.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace penstock::zero {

/// The bytes of a shard or a tile for host code: its tensor, leased, or a copy of what is kept on the device.
/// Move-only; used by the trainer's thread.
class HostView {
 public:
  /// Leases `tensor`, or copies `kept` if that is not empty, unless `access` is overwrite. Blocks.
  ///
  /// Errors: those of Runtime::acquire(), and of the device.
  [[nodiscard]] static Result<HostView> of(swap::Runtime& runtime, DeviceUpdate& device,
                                           tiers::TensorId tensor, DeviceSpan kept, swap::Access access) {
    HostView view(device, kept);
    if (kept.empty()) {
      PENSTOCK_TRY_ASSIGN(view.lease_, runtime.acquire(tensor, access, swap::Use::unrecorded));
      return view;
    }
    view.copy_.resize(kept.size().value());
    if (access != swap::Access::overwrite) PENSTOCK_TRY(device.read(kept, view.bytes()));
    return view;
  }

  [[nodiscard]] HostSpan bytes() {
    return kept_.empty() ? lease_.bytes() : HostSpan(copy_.data(), ByteCount(copy_.size()));
  }
  /// Copies the bytes to where they are kept. Blocks. Errors: those of the device.
  Result<void> write_back() { return kept_.empty() ? ok() : device_->write(bytes(), kept_); }

 private:
  HostView(DeviceUpdate& device, DeviceSpan kept) : device_(&device), kept_(kept) {}

  DeviceUpdate* device_;
  DeviceSpan kept_;
  swap::Lease lease_;
  std::vector<std::byte> copy_;
};

}  // namespace penstock::zero
