#include "gpt/cuda_stream_clock.hpp"

#include <cuda_runtime_api.h>

#include <string>
#include <utility>
#include <vector>

namespace gpt {

using penstock::Clock;
using penstock::Error;
using penstock::ErrorCode;
using penstock::TimePoint;

namespace {

Error failure(ErrorCode code, cudaError_t error) {
  return Error(code, "StreamClock").reason(std::string("CUDA: ") + cudaGetErrorString(error));
}

/// CUDA gives the time between two events as a float of milliseconds. So that it stays short, the event from which
/// times are taken is replaced by a later one.
class CudaStreamClock final : public StreamClock {
 public:
  ~CudaStreamClock() override {
    for (const Point& point : points_) cudaEventDestroy(point.event);
    if (origin_ != nullptr) cudaEventDestroy(origin_);
  }

  /// Takes the device's time and the host's at once: nothing else runs yet.
  cudaError_t start() {
    cudaStream_t stream = nullptr;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) return error;
    error = cudaEventCreateWithFlags(&origin_, cudaEventDefault);
    if (error == cudaSuccess) error = cudaEventRecord(origin_, stream);
    if (error == cudaSuccess) error = cudaEventSynchronize(origin_);
    origin_time_ = Clock::steady().now();
    cudaStreamDestroy(stream);
    return error;
  }

  Mark mark(penstock::StreamHandle stream) override {
    Mark number = 0;
    if (released_.empty()) {
      number = static_cast<Mark>(points_.size());
      points_.push_back({});
      check(cudaEventCreateWithFlags(&points_.back().event, cudaEventDefault));
    } else {
      number = released_.back();
      released_.pop_back();
    }
    points_[number].time.reset();
    check(cudaEventRecord(points_[number].event, static_cast<cudaStream_t>(stream.native())));
    return number;
  }

  std::optional<TimePoint> passed(Mark mark) override {
    Point& point = points_[mark];
    if (point.time || error_ != cudaSuccess) return point.time.value_or(Clock::steady().now());
    const cudaError_t queried = cudaEventQuery(point.event);
    if (queried == cudaErrorNotReady) {
      (void)cudaGetLastError();  // CUDA may keep it as the thread's last error
      return std::nullopt;
    }
    float milliseconds = 0;
    check(queried);
    check(cudaEventElapsedTime(&milliseconds, origin_, point.event));
    point.time = origin_time_ + TimePoint(static_cast<std::int64_t>(double{milliseconds} * 1e6));
    if (milliseconds > replace_after) {
      std::swap(origin_, point.event);
      origin_time_ = *point.time;
    }
    return point.time;
  }

  void release(Mark mark) override { released_.push_back(mark); }

  penstock::Result<void> status() const override {
    if (error_ == cudaSuccess) return penstock::ok();
    return failure(ErrorCode::failed_state, error_);
  }

 private:
  struct Point {
    cudaEvent_t event = nullptr;
    std::optional<TimePoint> time;  // kept, because its event may have become the origin
  };
  static constexpr float replace_after = 500;  // milliseconds, which a float has to 30 ns

  void check(cudaError_t error) {
    if (error_ == cudaSuccess) error_ = error;
  }

  cudaEvent_t origin_ = nullptr;
  TimePoint origin_time_{};
  std::vector<Point> points_;
  std::vector<Mark> released_;
  cudaError_t error_ = cudaSuccess;  // the first
};

}  // namespace

penstock::Result<std::unique_ptr<StreamClock>> make_cuda_stream_clock() {
  auto clock = std::make_unique<CudaStreamClock>();
  if (const cudaError_t error = clock->start(); error != cudaSuccess) {
    (void)cudaGetLastError();
    return failure(ErrorCode::unsupported, error);
  }
  return std::unique_ptr<StreamClock>(std::move(clock));
}

}  // namespace gpt
