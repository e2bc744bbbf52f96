#include "kit/timed_rank.hpp"

#include "swap/runtime_internals.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <utility>

namespace penstock::zero::test {

void TimedWorkers::post(std::function<void()> task) {
  waiting_.push_back(std::move(task));
  begin_tasks();
}

void TimedWorkers::begin_tasks() {
  for (; free_ > 0 && !waiting_.empty(); --free_) {
    running_.push_back({std::move(waiting_.front()), clock_.now() + takes_});
    waiting_.pop_front();
  }
}

bool TimedWorkers::run_one() {
  const auto ended = std::find_if(running_.begin(), running_.end(),
                                  [&](const Running& running) { return running.ends <= clock_.now(); });
  if (ended == running_.end()) return false;
  const auto task = std::move(ended->task);
  running_.erase(ended);
  ++free_;
  begin_tasks();
  task();
  return true;
}

TimePoint TimedWorkers::next_due() const {
  TimePoint due = forever;
  for (const Running& running : running_) due = std::min(due, running.ends);
  return due;
}

TimedRank::TimedRank(const Options& options)
    : options_(options), disk_(options.disk), workers_(clock_, options.workers, options.task_takes) {
  const auto make_accelerator = [this](ByteCount memory) -> Result<Accelerator> {
    Accelerator made = make_host_accelerator(
        {.memory = memory,
         .mode = options_.threaded ? tiers::HostDevice::Mode::threaded : tiers::HostDevice::Mode::deferred,
         .location = tiers::DeviceMemory::separate,
         .speeds = options_.speeds,
         .clock = options_.threaded ? nullptr : &clock_});
    device_ = static_cast<tiers::HostDevice*>(made.device.get());
    auto counting = std::make_unique<penstock::test::CountingDevice>(std::move(made.device));
    counting_ = counting.get();
    made.device = std::move(counting);
    return made;
  };
  const auto simulate = [this](swap::RuntimeOptions& runtime) {
    runtime.idle_handler = this;
    runtime.executor = &workers_;
    for (swap::PathOptions& path : runtime.paths) {
      path.weight = 1;
      path.file_system = &disk_;
      path.clock = &clock_;
      path.make_engine = [this](const tiers::File::Properties&) -> Result<std::unique_ptr<tiers::IoEngine>> {
        auto engine = std::make_unique<tiers::SimEngine>(disk_, clock_, /*seed=*/1, /*depth=*/64);
        engine_of_disk_ = engine.get();
        return engine;
      };
    }
  };
  const std::function<void(swap::RuntimeOptions&)> leave;
  rank_ = Rank::create({.config = options_.config,
                        .model = options_.model,
                        .make_accelerator = make_accelerator,
                        .hooks = {.runtime_options = options_.threaded ? leave : simulate}})
              .value();
  stream_ = rank_->device().create_stream().value();
  event_ = rank_->device().create_event().value();
  engine().initialize([](ParameterId, std::uint64_t, std::span<float>) {}).value();
}

TimedRank::~TimedRank() {
  finish();
  event_.reset();
  stream_.reset();
}

void TimedRank::compute(TimePoint takes) {
  stream_->handle().host_queue()->enqueue([] {}, {.duration = takes});
}

void TimedRank::clear(DeviceSpan bytes) {
  const HostSpan memory = tiers::HostDevice::bytes(bytes);
  stream_->handle().host_queue()->enqueue(
      [memory] { std::fill_n(memory.data(), memory.size().value(), std::byte{}); }, {});
}

void TimedRank::mark(TimePoint* at) {
  stream_->handle().host_queue()->enqueue([this, at] { *at = now(); });
}

void TimedRank::finish() {
  stream_->record(*event_).value();
  swap::RuntimeInternals(rank_->runtime()).wait_for(*event_, "the trainer", forever).value();
}

void TimedRank::run_dry() {
  if (options_.threaded) return engine().finish_update().value();
  while (rank_->runtime().poll() || advance()) {
  }
}

void TimedRank::idle() {
  PENSTOCK_CHECK(advance());  // else nothing will ever happen
}

/// Executes all that is due; if nothing is, advances the clock. False if nothing is in flight.
bool TimedRank::advance() {
  bool any = false;
  while (device_->run_one() || workers_.run_one()) any = true;
  if (any) return true;
  TimePoint due = std::min(device_->next_due(), workers_.next_due());
  if (engine_of_disk_ != nullptr) due = std::min(due, engine_of_disk_->next_due());
  if (due == forever) return false;
  clock_.advance_to(due);
  return true;
}

}  // namespace penstock::zero::test
