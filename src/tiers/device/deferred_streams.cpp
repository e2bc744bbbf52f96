#include "tiers/device/host_stream.hpp"

#include <array>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

namespace penstock::tiers {

namespace {

Error never_ready() {
  return Error(ErrorCode::failed_state, "Stream::synchronize")
      .reason("no operation can run: the stream waits for an event that will not be recorded");
}

/// The operations of one stream that have not run yet.
struct DeferredQueue {
  std::deque<StreamOperation> operations;
  std::optional<TimePoint> ends;  ///< of the head, once it has begun

  void run_head() {
    const StreamOperation head = std::move(operations.front());
    operations.pop_front();
    ends.reset();
    if (head.run) head.run();
  }
};

/// Runs an operation only when it is asked to. Chooses by a seed: the next of those that have ended, and the next to
/// use a resource.
class DeferredStreams final : public HostStreams {
 public:
  explicit DeferredStreams(const HostDevice::Options& options)
      : speeds_(options.clock != nullptr ? options.speeds : HostDevice::Speeds{}),
        clock_(options.clock),
        random_(options.seed) {}

  Result<std::unique_ptr<Stream>> create_stream() override;
  bool run_one() override { return run_until(now()); }
  void finish() override {
    while (run_next()) {
    }
  }
  /// For a caller that blocks, so that nobody advances the clock: if no operation has ended, runs the one that ends
  /// next.
  bool run_next() {
    if (run_one()) return true;
    const TimePoint due = next_due();
    return due != forever && run_until(due);
  }
  TimePoint next_due() const override {
    TimePoint due = forever;
    for (const DeferredQueue* queue : queues_) {
      if (queue->ends) due = std::min(due, *queue->ends);
    }
    return due;
  }

  void add(DeferredQueue& queue) {
    const std::lock_guard lock(mutex_);
    queues_.push_back(&queue);
  }
  void remove(const DeferredQueue& queue) {
    const std::lock_guard lock(mutex_);
    std::erase(queues_, &queue);
  }

 private:
  [[nodiscard]] TimePoint now() const { return clock_ != nullptr ? clock_->now() : TimePoint::zero(); }
  bool& busy(OperationCost::Resource resource) { return busy_[static_cast<std::size_t>(resource)]; }
  std::size_t choose(std::size_t count) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
    return (random_ >> 33) % count;
  }

  bool run_until(TimePoint time) {
    begin_operations();
    std::vector<DeferredQueue*> ended;
    for (DeferredQueue* queue : queues_) {
      if (queue->ends && *queue->ends <= time) ended.push_back(queue);
    }
    if (ended.empty()) return false;
    DeferredQueue& queue = *ended[choose(ended.size())];
    const StreamOperation& head = queue.operations.front();
    if (head.duration > TimePoint::zero()) busy(head.resource) = false;
    queue.run_head();
    return true;
  }

  void begin_operations() {
    while (true) {
      std::vector<DeferredQueue*> waiting;  // for a free resource
      for (DeferredQueue* queue : queues_) {
        if (queue->operations.empty() || queue->ends) continue;
        const StreamOperation& head = queue->operations.front();
        if (!head.may_run()) continue;
        if (head.duration <= TimePoint::zero()) {
          queue->ends = now();
        } else if (!busy(head.resource)) {
          waiting.push_back(queue);
        }
      }
      if (waiting.empty()) return;
      DeferredQueue& queue = *waiting[choose(waiting.size())];
      const StreamOperation& head = queue.operations.front();
      busy(head.resource) = true;
      queue.ends = now() + head.duration;
    }
  }

  const HostDevice::Speeds speeds_;
  const Clock* const clock_;
  std::mutex mutex_;
  std::vector<DeferredQueue*> queues_;
  std::array<bool, 3> busy_{};  // by resource
  std::uint64_t random_;
};

class DeferredStream final : public HostStream {
 public:
  DeferredStream(std::shared_ptr<DeferredStreams> streams, const HostDevice::Speeds& speeds)
      : HostStream(streams, speeds), streams_(std::move(streams)) {
    streams_->add(queue_);
  }
  ~DeferredStream() override {
    (void)DeferredStream::synchronize();
    streams_->remove(queue_);
  }

  Result<void> synchronize() override {
    while (!queue_.operations.empty()) {
      if (!streams_->run_next()) return never_ready();
    }
    return ok();
  }

 private:
  void push(StreamOperation operation) override { queue_.operations.push_back(std::move(operation)); }

  std::shared_ptr<DeferredStreams> streams_;
  DeferredQueue queue_;
};

Result<std::unique_ptr<Stream>> DeferredStreams::create_stream() {
  return std::make_unique<DeferredStream>(std::static_pointer_cast<DeferredStreams>(shared_from_this()),
                                          speeds_);
}

}  // namespace

std::shared_ptr<HostStreams> make_deferred_streams(const HostDevice::Options& options) {
  return std::make_shared<DeferredStreams>(options);
}

}  // namespace penstock::tiers
