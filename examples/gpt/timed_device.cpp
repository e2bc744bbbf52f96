#include "gpt/timed_device.hpp"

#include <penstock/zero/stream_observer.hpp>

#include <optional>
#include <utility>

namespace gpt {

using namespace penstock;  // NOLINT: an example reads better so

namespace {

/// None: it is not in the trace.
std::optional<Activity> activity_of(zero::StreamOperation operation) {
  switch (operation) {
    case zero::StreamOperation::fill: return std::nullopt;
    case zero::StreamOperation::copy_to_device: return Activity::copy_to_device;
    case zero::StreamOperation::copy_to_host: return Activity::copy_to_host;
    case zero::StreamOperation::copy_on_device: return Activity::copy_on_device;
    case zero::StreamOperation::cast: return Activity::cast;
    case zero::StreamOperation::scale: return Activity::scale;
    case zero::StreamOperation::accumulate: return Activity::accumulate;
    case zero::StreamOperation::mean: return Activity::mean;
    case zero::StreamOperation::square_sums: return Activity::square_sums;
    case zero::StreamOperation::update: return Activity::adam;
  }
  return std::nullopt;
}

class SpanObserver final : public zero::StreamObserver {
 public:
  explicit SpanObserver(std::shared_ptr<Timeline> timeline) : timeline_(std::move(timeline)) {}

  void begin(StreamHandle stream, zero::StreamOperation operation) override {
    if (activity_of(operation)) timeline_->begin(stream);
  }
  void end(StreamHandle stream, zero::StreamOperation operation, ByteCount bytes) override {
    if (const auto activity = activity_of(operation))
      timeline_->end(stream, {.activity = *activity, .bytes = bytes});
  }

 private:
  const std::shared_ptr<Timeline> timeline_;
};

template <class Part>
Result<std::unique_ptr<Part>> observed(std::unique_ptr<Part> part,
                                       std::shared_ptr<zero::StreamObserver> observer) {
  return zero::observe(std::shared_ptr<Part>(std::move(part)), std::move(observer));
}

class TimedEngine final : public tiers::IoEngine {
 public:
  TimedEngine(std::unique_ptr<tiers::IoEngine> engine, std::shared_ptr<Timeline> timeline,
              std::uint32_t track)
      : engine_(std::move(engine)), timeline_(std::move(timeline)), track_(track) {}

  std::size_t submit(std::span<const tiers::IoRequest> requests) noexcept override {
    if (in_flight_ == 0) began_ = Clock::steady().now();
    const std::size_t accepted = engine_->submit(requests);
    in_flight_ += accepted;
    for (const tiers::IoRequest& request : requests.first(accepted)) bytes_ += request.buffer.size();
    return accepted;
  }
  std::size_t reap(std::span<tiers::IoCompletion> completions, TimePoint deadline) noexcept override {
    const std::size_t completed = engine_->reap(completions, deadline);
    in_flight_ -= completed;
    if (completed > 0 && in_flight_ == 0) {
      timeline_->add({.track = track_,
                      .did = {.activity = Activity::disk, .bytes = std::exchange(bytes_, {})},
                      .begin = began_,
                      .end = Clock::steady().now()});
    }
    return completed;
  }
  void wake() noexcept override { engine_->wake(); }
  void attach(tiers::FileHandle file, HostSpan buffers) noexcept override { engine_->attach(file, buffers); }
  bool detach() noexcept override { return engine_->detach(); }
  bool close(TimePoint deadline) noexcept override { return engine_->close(deadline); }
  tiers::IoLimits limits() const noexcept override { return engine_->limits(); }
  std::uint32_t in_flight() const noexcept override { return engine_->in_flight(); }
  const char* name() const noexcept override { return engine_->name(); }
  std::string notes() const override { return engine_->notes(); }
  std::string failure() const override { return engine_->failure(); }

 private:
  const std::unique_ptr<tiers::IoEngine> engine_;
  const std::shared_ptr<Timeline> timeline_;
  const std::uint32_t track_;
  std::size_t in_flight_ = 0;
  TimePoint began_{};
  ByteCount bytes_;
};

}  // namespace

Result<zero::Accelerator> time_operations(zero::Accelerator accelerator, std::shared_ptr<Timeline> timeline) {
  const auto observer = std::make_shared<SpanObserver>(std::move(timeline));
  zero::Accelerator timed;
  PENSTOCK_TRY_ASSIGN(timed.device, observed(std::move(accelerator.device), observer));
  PENSTOCK_TRY_ASSIGN(timed.compute, observed(std::move(accelerator.compute), observer));
  if (accelerator.adam) {
    PENSTOCK_TRY_ASSIGN(timed.adam, observed(std::move(accelerator.adam), observer));
  }
  return timed;
}

std::unique_ptr<tiers::IoEngine> time_requests(std::unique_ptr<tiers::IoEngine> engine,
                                               std::shared_ptr<Timeline> timeline, std::uint32_t track) {
  return std::make_unique<TimedEngine>(std::move(engine), std::move(timeline), track);
}

}  // namespace gpt
