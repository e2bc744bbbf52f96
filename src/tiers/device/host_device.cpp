#include <penstock/base/check.hpp>
#include <penstock/tiers/device/host_device.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>

namespace penstock::tiers {

namespace {
/// How often an event was recorded, and how many of these records have been passed. Shared with the queues
/// that hold a record or a wait of it, so that an event may go before they run.
struct EventState {
  std::atomic<std::uint64_t> recorded{0}, passed{0};
};
}  // namespace

class HostEvent final : public Event {
 public:
  explicit HostEvent(HostDevice& device) : device_(device) {}

  Result<bool> query() const override { return passed(state_->recorded.load()); }
  Result<void> synchronize() const override {
    const std::uint64_t record = state_->recorded.load();
    // Nothing left to run here and still not passed: a wait that nothing will ever satisfy.
    while (!passed(record)) PENSTOCK_CHECK(device_.run_one());
    return ok();
  }

  bool passed(std::uint64_t record) const { return state_->passed.load() >= record; }
  const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  HostDevice& device_;
  std::shared_ptr<EventState> state_ = std::make_shared<EventState>();
};

class HostStream final : public Stream, public HostQueue {
 public:
  HostStream(HostDevice& device, HostDevice::Mode mode) : device_(device), mode_(mode) {
    const std::lock_guard lock(device_.mutex_);
    device_.streams_.push_back(this);
  }
  ~HostStream() override {
    (void)HostStream::synchronize();
    const std::lock_guard lock(device_.mutex_);
    std::erase(device_.streams_, this);
  }

  StreamHandle handle() override { return StreamHandle::of(*this); }

  void enqueue(std::function<void()> operation) override {
    if (mode_ == HostDevice::Mode::eager) return operation();
    queue_.push_back({std::move(operation), nullptr, 0});
  }

  Result<void> record(Event& event) override {
    const auto state = static_cast<HostEvent&>(event).state();
    const std::uint64_t record = ++state->recorded;
    enqueue([state, record] { state->passed.store(record); });
    return ok();
  }

  Result<void> wait(const Event& event) override {
    // Eager: the stream that recorded it has passed it by then.
    if (mode_ == HostDevice::Mode::eager) return ok();
    const auto& state = static_cast<const HostEvent&>(event).state();
    queue_.push_back({nullptr, state, state->recorded.load()});
    return ok();
  }

  Result<void> synchronize() override {
    while (!queue_.empty()) PENSTOCK_CHECK(device_.run_one());
    return ok();
  }

  bool ready() const {
    if (queue_.empty()) return false;
    const Operation& head = queue_.front();
    return !head.event || head.event->passed.load() >= head.record;
  }
  void run_head() {
    Operation head = std::move(queue_.front());
    queue_.pop_front();
    if (head.run) head.run();
  }

 private:
  struct Operation {
    std::function<void()> run;          // empty for a wait
    std::shared_ptr<EventState> event;  // what a wait waits for
    std::uint64_t record = 0;
  };
  HostDevice& device_;
  const HostDevice::Mode mode_;
  std::deque<Operation> queue_;
};

HostDevice::HostDevice(const Options& options) : options_(options), random_(options.seed) {}

HostDevice::~HostDevice() {
  PENSTOCK_CHECK(streams_.empty());
  for (const auto& [address, size] : allocations_) std::free(reinterpret_cast<void*>(address));
}

std::string HostDevice::name() const {
  return options_.mode == Mode::eager ? "host" : "host (deferred)";
}

Result<DeviceSpan> HostDevice::allocate(ByteCount size) {
  const std::lock_guard lock(mutex_);
  if (size > options_.memory - used_) {
    return Error(ErrorCode::budget_too_small, "HostDevice::allocate")
        .wanted(size)
        .got(to_string(options_.memory - used_) + " of " + to_string(options_.memory) + " free")
        .advice("raise the device budget");
  }
  // 2 MiB pages where the kernel gives them; contents are what a real device gives: anything.
  void* memory = std::aligned_alloc(
      (2_MiB).value(), std::max<std::uint64_t>(round_up(size, Alignment(2 << 20)).value(), 2 << 20));
  if (memory == nullptr) return Error::from_errno("HostDevice::allocate", ENOMEM).wanted(size);
  allocations_.emplace(reinterpret_cast<std::uintptr_t>(memory), size);
  used_ += size;
  return DeviceSpan(DeviceAddress(reinterpret_cast<std::uintptr_t>(memory)), size);
}

void HostDevice::release(DeviceSpan span) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(static_cast<std::uintptr_t>(span.address()));
  PENSTOCK_CHECK(found != allocations_.end());
  used_ -= found->second;
  std::free(reinterpret_cast<void*>(found->first));
  allocations_.erase(found);
}

ByteCount HostDevice::free_memory() const {
  const std::lock_guard lock(mutex_);
  return options_.memory - used_;
}

Result<std::unique_ptr<Stream>> HostDevice::create_stream() {
  return std::make_unique<HostStream>(*this, options_.mode);
}
Result<std::unique_ptr<Event>> HostDevice::create_event() {
  return std::make_unique<HostEvent>(*this);
}

HostSpan HostDevice::bytes(DeviceSpan span) {
  return HostSpan(reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(span.address())), span.size());
}

namespace {
Result<void> copy(StreamHandle stream, ConstHostSpan from, HostSpan to) {
  if (from.size() != to.size()) {
    return Error::invalid_argument("HostDevice::copy").wanted(from.size()).got(to.size());
  }
  stream.host_queue().enqueue([from, to] {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size().value());
  });
  return ok();
}
}  // namespace

Result<void> HostDevice::copy_to_device(StreamHandle stream, ConstHostSpan from, DeviceSpan to) {
  return copy(stream, from, bytes(to));
}
Result<void> HostDevice::copy_to_host(StreamHandle stream, DeviceSpan from, HostSpan to) {
  return copy(stream, bytes(from), to);
}
Result<void> HostDevice::copy_on_device(StreamHandle stream, DeviceSpan from, DeviceSpan to) {
  return copy(stream, bytes(from), bytes(to));
}
Result<void> HostDevice::fill_zero(StreamHandle stream, DeviceSpan span) {
  stream.host_queue().enqueue([to = bytes(span)] {
    if (!to.empty()) std::memset(to.data(), 0, to.size().value());
  });
  return ok();
}

bool HostDevice::run_one() {
  std::vector<HostStream*> ready;
  for (HostStream* stream : streams_) {
    if (stream->ready()) ready.push_back(stream);
  }
  if (ready.empty()) return false;
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
  ready[(random_ >> 33) % ready.size()]->run_head();
  return true;
}

}  // namespace penstock::tiers
