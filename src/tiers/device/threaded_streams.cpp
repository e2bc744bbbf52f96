#include "base/start_thread.hpp"
#include "tiers/device/host_stream.hpp"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace penstock::tiers {

namespace {

/// What the threads of all devices' streams share: a stream may wait for an event of another device.
struct AllStreams {
  std::mutex mutex;
  std::condition_variable changed;  // a queue, or how far a stream is
};
AllStreams& all_streams() {
  static AllStreams& all = *new AllStreams;  // never destroyed: streams may outlive static objects
  return all;
}

/// What the threads of a device's streams share.
class ThreadedStreams final : public HostStreams {
 public:
  explicit ThreadedStreams(const HostDevice::Speeds& speeds) : speeds_(speeds) {}

  Result<std::unique_ptr<Stream>> create_stream() override;
  void finish() override {
    std::unique_lock lock(all_.mutex);
    finishing_ = true;
    all_.changed.notify_all();
    all_.changed.wait(lock, [this] { return pending == 0; });
  }

  /// Runs an operation, and uses its resource for as long as it takes.
  void run(const StreamOperation& operation) {
    if (operation.duration <= TimePoint::zero()) return operation.run();
    const std::lock_guard resource(resources_[static_cast<std::size_t>(operation.resource)]);
    const auto ends = std::chrono::steady_clock::now() + operation.duration;
    operation.run();
    std::unique_lock lock(all_.mutex);
    all_.changed.wait_until(lock, ends, [this] { return finishing_; });
  }

  std::uint64_t pending = 0;  // operations that have not run, of all streams of the device

 private:
  AllStreams& all_ = all_streams();
  const HostDevice::Speeds speeds_;
  bool finishing_ = false;  // operations take no time any more
  std::array<std::mutex, 3> resources_;
};

class ThreadedStream final : public HostStream {
 public:
  ThreadedStream(std::shared_ptr<ThreadedStreams> streams, const HostDevice::Speeds& speeds)
      : HostStream(streams, speeds), streams_(std::move(streams)) {}
  ~ThreadedStream() override {
    {
      const std::lock_guard lock(all_.mutex);
      closing_ = true;
    }
    all_.changed.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  Result<void> start() {
    PENSTOCK_TRY_ASSIGN(thread_, start_thread("Device::create_stream", "a stream", [this] { run(); }));
    return ok();
  }

  Result<void> synchronize() override {
    std::unique_lock lock(all_.mutex);
    all_.changed.wait(lock, [this] { return operations_.empty(); });
    return ok();
  }

 private:
  void push(StreamOperation operation) override {
    {
      const std::lock_guard lock(all_.mutex);
      operations_.push_back(std::move(operation));
      ++streams_->pending;
    }
    all_.changed.notify_all();
  }

  /// The stream's thread: runs all operations before it ends.
  void run() {
    std::unique_lock lock(all_.mutex);
    while (true) {
      all_.changed.wait(lock,
                        [this] { return operations_.empty() ? closing_ : operations_.front().may_run(); });
      if (operations_.empty()) return;
      const StreamOperation head = std::move(operations_.front());
      lock.unlock();
      if (head.run) streams_->run(head);
      lock.lock();
      operations_.pop_front();  // now, so that an empty queue means that everything has run
      --streams_->pending;
      all_.changed.notify_all();
    }
  }

  AllStreams& all_ = all_streams();
  std::shared_ptr<ThreadedStreams> streams_;
  std::deque<StreamOperation> operations_;  // the head may be running
  bool closing_ = false;
  std::thread thread_;
};

Result<std::unique_ptr<Stream>> ThreadedStreams::create_stream() {
  auto stream = std::make_unique<ThreadedStream>(
      std::static_pointer_cast<ThreadedStreams>(shared_from_this()), speeds_);
  PENSTOCK_TRY(stream->start());
  return stream;
}

}  // namespace

std::shared_ptr<HostStreams> make_threaded_streams(const HostDevice::Speeds& speeds) {
  return std::make_shared<ThreadedStreams>(speeds);
}

}  // namespace penstock::tiers
