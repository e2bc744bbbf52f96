#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/stream.hpp>
#include <penstock/cpu_adam/adam.hpp>

#include <cstdint>

namespace penstock::cpu_adam {

/// One tile in the memory of a device, with its gradient and its output, the parameter. The bytes are those of an
/// AdamTile, whose members have the same meaning. Spans do not overlap and are aligned to their element, `state` to
/// state_alignment(); at multiples of 16 bytes the update is fastest.
struct DeviceAdamTile {
  DeviceSpan state;
  DeviceTensor gradient, parameter;  ///< of equal counts: the elements of the tile
  /// An aligned uint64, written: the first block with a master or a second moment that is now not finite, or all ones
  /// if there is none.
  DeviceSpan first_non_finite_block;
  StateFormat format = StateFormat::fp32;
  std::uint64_t first_element = 0;
};

/// Adam on tiles in the memory of one kind of device, with the bits of adam_step().
///
/// Safe from any thread; calls on one stream come from one thread at a time. Nothing here blocks.
class DeviceAdam {
 public:
  DeviceAdam() = default;
  DeviceAdam(const DeviceAdam&) = delete;
  DeviceAdam& operator=(const DeviceAdam&) = delete;
  virtual ~DeviceAdam() = default;

  /// Enqueues the update of the tile by step number `step`. The tile's memory must stay alive until the stream has
  /// executed it.
  ///
  /// Errors: as adam_step(); those of the device.
  virtual Result<void> step(StreamHandle stream, const AdamConfig& config, std::uint64_t step,
                            float gradient_factor, const DeviceAdamTile& tile) = 0;
};

}  // namespace penstock::cpu_adam
