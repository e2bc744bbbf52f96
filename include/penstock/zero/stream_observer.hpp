#pragma once

#include <penstock/base/compute.hpp>
#include <penstock/cpu_adam/device_adam.hpp>
#include <penstock/tiers/device/device.hpp>

#include <cstdint>
#include <memory>
#include <string_view>

namespace penstock::zero {

/// What a stream of a device does for the engine: copies, and kernels of the library.
enum class StreamOperation : std::uint8_t {
  copy_to_device,
  copy_to_host,
  copy_on_device,
  fill,
  cast,
  scale,
  accumulate,
  mean,
  square_sums,
  update,  ///< of a tile, by the device's optimizer
};
inline constexpr std::size_t stream_operation_count = 10;
/// "copy to device".
[[nodiscard]] std::string_view to_string(StreamOperation operation);

/// Gets a call before and one after each operation is enqueued. Both come from the thread that enqueues on the stream;
/// those of different streams come at the same time. Must not throw and must not block.
class StreamObserver {
 public:
  StreamObserver() = default;
  StreamObserver(const StreamObserver&) = delete;
  StreamObserver& operator=(const StreamObserver&) = delete;
  virtual ~StreamObserver() = default;

  virtual void begin(StreamHandle stream, StreamOperation operation) = 0;
  /// `bytes`: of a copy, those that it copies; of a kernel, those that it reads and writes. Called also where the
  /// operation could not be enqueued.
  virtual void end(StreamHandle stream, StreamOperation operation, ByteCount bytes) = 0;
};

/// The same device; `observer` gets its copies and fills. penstock.timeline_file needs none of this: the engine
/// observes its device by itself then. Errors, of all three: invalid_argument, for a null pointer.
[[nodiscard]] Result<std::unique_ptr<tiers::Device>> observe(std::shared_ptr<tiers::Device> device,
                                                             std::shared_ptr<StreamObserver> observer);
/// The same kernels; `observer` gets them.
[[nodiscard]] Result<std::unique_ptr<Compute>> observe(std::shared_ptr<Compute> compute,
                                                       std::shared_ptr<StreamObserver> observer);
[[nodiscard]] Result<std::unique_ptr<cpu_adam::DeviceAdam>> observe(
    std::shared_ptr<cpu_adam::DeviceAdam> adam, std::shared_ptr<StreamObserver> observer);

}  // namespace penstock::zero
