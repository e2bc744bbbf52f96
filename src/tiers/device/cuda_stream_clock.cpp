#include "tiers/device/cuda_stream_clock.hpp"

#include "base/cuda/calls.hpp"

#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

namespace penstock::tiers {

namespace {

/// CUDA gives the time between two events as a float of milliseconds. So that it stays short, the event from which
/// times are taken is replaced by a later one.
class CudaStreamClock final : public StreamClock {
 public:
  explicit CudaStreamClock(int device) : device_(device) {}
  ~CudaStreamClock() override {
    if (!use_device("StreamClock::~StreamClock", device_)) return;
    for (const cudaEvent_t event : events_) ignore_cuda(cudaEventDestroy(event));
    if (origin_ != nullptr) ignore_cuda(cudaEventDestroy(origin_));
  }

  /// Takes the device's time and the host's at once.
  cudaError_t start() {
    cudaStream_t stream = nullptr;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) return error;
    error = cudaEventCreateWithFlags(&origin_, cudaEventDefault);
    if (error == cudaSuccess) error = cudaEventRecord(origin_, stream);
    if (error == cudaSuccess) error = cudaEventSynchronize(origin_);
    origin_time_ = Clock::steady().now();
    ignore_cuda(cudaStreamDestroy(stream));
    return error;
  }

 private:
  Result<void> record(Mark mark, StreamHandle stream) override {
    constexpr const char* operation = "StreamClock::mark";
    PENSTOCK_TRY(use_device(operation, device_));
    while (events_.size() <= mark) {
      cudaEvent_t event = nullptr;
      PENSTOCK_TRY(check_cuda(operation, cudaEventCreateWithFlags(&event, cudaEventDefault)));
      events_.push_back(event);
    }
    return check_cuda(operation, cudaEventRecord(events_[mark], static_cast<cudaStream_t>(stream.native())));
  }

  Result<std::optional<TimePoint>> query(Mark mark) override {
    constexpr const char* operation = "StreamClock::passed";
    PENSTOCK_TRY(use_device(operation, device_));
    const cudaError_t queried = cudaEventQuery(events_[mark]);
    if (queried == cudaErrorNotReady) {
      ignore_cuda(queried);  // CUDA may keep it as the thread's last error
      return std::optional<TimePoint>();
    }
    PENSTOCK_TRY(check_cuda(operation, queried));
    float milliseconds = 0;
    PENSTOCK_TRY(check_cuda(operation, cudaEventElapsedTime(&milliseconds, origin_, events_[mark])));
    const TimePoint time = origin_time_ + TimePoint(static_cast<std::int64_t>(double{milliseconds} * 1e6));
    if (milliseconds > replace_after) {
      std::swap(origin_, events_[mark]);
      origin_time_ = time;
    }
    return std::optional(time);
  }

  static constexpr float replace_after = 500;  // milliseconds, which a float has to 30 ns

  const int device_;
  cudaEvent_t origin_ = nullptr;
  TimePoint origin_time_{};
  std::vector<cudaEvent_t> events_;  // by mark
};

}  // namespace

Result<std::unique_ptr<StreamClock>> make_cuda_stream_clock(int device) {
  constexpr const char* operation = "Device::create_clock";
  PENSTOCK_TRY(use_device(operation, device));
  auto clock = std::make_unique<CudaStreamClock>(device);
  PENSTOCK_TRY(check_cuda(operation, clock->start()));
  return std::unique_ptr<StreamClock>(std::move(clock));
}

}  // namespace penstock::tiers
