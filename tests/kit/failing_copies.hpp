#pragma once

#include "kit/counting_device.hpp"

#include <penstock/base/result.hpp>

namespace penstock::test {

/// Tells where the last copy to host memory is, and makes copies fail.
class FailingCopies final : public CountingDevice {
 public:
  using CountingDevice::CountingDevice;
  Result<void> copy_to_host(StreamHandle stream, DeviceSpan from, HostSpan to) override {
    last_in_host = to;
    return fails ? Error(ErrorCode::io, "copy_to_host") : CountingDevice::copy_to_host(stream, from, to);
  }
  Result<void> copy_to_device(StreamHandle stream, ConstHostSpan from, DeviceSpan to) override {
    return fails ? Error(ErrorCode::io, "copy_to_device") : CountingDevice::copy_to_device(stream, from, to);
  }

  HostSpan last_in_host;
  bool fails = false;
};

}  // namespace penstock::test
