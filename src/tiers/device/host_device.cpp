#include <penstock/tiers/device/host_device.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace penstock::tiers {

namespace {

/// How often an event was recorded, and how many of these records the streams have passed. The queues share it, so
/// that an event may be destroyed before the operations that record it or wait for it run.
struct EventState {
  std::atomic<std::uint64_t> recorded{0}, passed{0};

  [[nodiscard]] bool has_passed(std::uint64_t record) const { return passed.load() >= record; }
};

/// The operations of one stream that have not run yet.
class OperationQueue {
 public:
  void push(std::function<void()> run) { operations_.push_back({std::move(run), nullptr, 0}); }
  void push_wait(std::shared_ptr<EventState> event) {
    const std::uint64_t record = event->recorded.load();
    operations_.push_back({nullptr, std::move(event), record});
  }
  [[nodiscard]] bool empty() const { return operations_.empty(); }
  [[nodiscard]] bool ready() const {
    if (operations_.empty()) return false;
    const Operation& head = operations_.front();
    return !head.event || head.event->has_passed(head.record);
  }
  void run_head() {
    Operation head = std::move(operations_.front());
    operations_.pop_front();
    if (head.run) head.run();
  }

 private:
  struct Operation {
    std::function<void()> run;          // empty for a wait
    std::shared_ptr<EventState> event;  // null unless a wait
    std::uint64_t record = 0;
  };
  std::deque<Operation> operations_;
};

Error never_ready(const char* operation) {
  return Error(ErrorCode::failed_state, operation)
      .reason("no operation can run: the stream waits for an event that will not be recorded");
}

/// The streams of one device, and the choice of the next operation of a deferred one. Streams and events share it, so
/// that they may be destroyed after the device.
class Scheduler {
 public:
  explicit Scheduler(std::uint64_t seed) : random_(seed) {}

  void add(OperationQueue& queue) {
    const std::lock_guard lock(mutex_);
    queues_.push_back(&queue);
  }
  void remove(const OperationQueue& queue) {
    const std::lock_guard lock(mutex_);
    std::erase(queues_, &queue);
  }
  bool run_one() {
    std::vector<OperationQueue*> ready;
    for (OperationQueue* queue : queues_) {
      if (queue->ready()) ready.push_back(queue);
    }
    if (ready.empty()) return false;
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
    ready[(random_ >> 33) % ready.size()]->run_head();
    return true;
  }

 private:
  std::mutex mutex_;
  std::vector<OperationQueue*> queues_;
  std::uint64_t random_;
};

class HostEvent final : public Event {
 public:
  explicit HostEvent(std::shared_ptr<Scheduler> scheduler) : scheduler_(std::move(scheduler)) {}

  Result<bool> query() const override { return state_->has_passed(state_->recorded.load()); }
  Result<void> synchronize() const override {
    const std::uint64_t record = state_->recorded.load();
    while (!state_->has_passed(record)) {
      if (!scheduler_->run_one()) return never_ready("Event::synchronize");
    }
    return ok();
  }
  const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  std::shared_ptr<Scheduler> scheduler_;
  std::shared_ptr<EventState> state_ = std::make_shared<EventState>();
};

class HostStream final : public Stream, public HostQueue {
 public:
  HostStream(std::shared_ptr<Scheduler> scheduler, HostDevice::Mode mode)
      : scheduler_(std::move(scheduler)), mode_(mode) {
    scheduler_->add(queue_);
  }
  ~HostStream() override {
    (void)HostStream::synchronize();
    scheduler_->remove(queue_);
  }

  StreamHandle handle() override { return StreamHandle::of(*this); }

  void enqueue(std::function<void()> operation) override {
    if (!operation) return;
    if (mode_ == HostDevice::Mode::eager) return operation();
    queue_.push(std::move(operation));
  }

  Result<void> record(Event& event) override {
    const auto* const host_event = dynamic_cast<const HostEvent*>(&event);
    if (host_event == nullptr) return foreign_event("Stream::record");
    const auto state = host_event->state();
    const std::uint64_t record = ++state->recorded;
    enqueue([state, record] { state->passed.store(record); });
    return ok();
  }

  Result<void> wait(const Event& event) override {
    const auto* const host_event = dynamic_cast<const HostEvent*>(&event);
    if (host_event == nullptr) return foreign_event("Stream::wait");
    // An eager stream has passed the record already.
    if (mode_ == HostDevice::Mode::deferred) queue_.push_wait(host_event->state());
    return ok();
  }

  Result<void> synchronize() override {
    while (!queue_.empty()) {
      if (!scheduler_->run_one()) return never_ready("Stream::synchronize");
    }
    return ok();
  }

 private:
  static Error foreign_event(const char* operation) {
    return Error::invalid_argument(operation).object("event").reason("it is not an event of a HostDevice");
  }

  std::shared_ptr<Scheduler> scheduler_;
  const HostDevice::Mode mode_;
  OperationQueue queue_;
};

}  // namespace

struct HostDevice::State {
  const Options options;
  std::mutex mutex{};
  std::map<std::uintptr_t, ByteCount> allocations{};
  ByteCount used{};
  std::shared_ptr<Scheduler> scheduler = std::make_shared<Scheduler>(options.seed);
};

HostDevice::HostDevice(const Options& options) : state_(new State{.options = options}) {}

HostDevice::~HostDevice() {
  while (state_->scheduler->run_one()) {
  }
  for (const auto& [address, size] : state_->allocations) std::free(reinterpret_cast<void*>(address));
}

std::string HostDevice::name() const {
  return state_->options.mode == Mode::eager ? "host" : "host (deferred)";
}

DeviceMemory HostDevice::memory() const {
  return state_->options.location;
}

Result<DeviceSpan> HostDevice::allocate(ByteCount size) {
  const std::lock_guard lock(state_->mutex);
  if (size > state_->options.memory - state_->used) {
    return Error(ErrorCode::budget_too_small, "HostDevice::allocate")
        .wanted(size)
        .got(to_string(state_->options.memory - state_->used) + " of " + to_string(state_->options.memory) +
             " free")
        .advice("raise the device budget");
  }
  // 2 MiB pages where the kernel gives them; contents are what a real device gives: anything.
  constexpr ByteCount page = 2_MiB;
  const ByteCount padded = std::max(round_up(size, Alignment(page.value())), page);
  // The sum of a size near 2^64 and its padding wraps around.
  void* memory = padded < size ? nullptr : std::aligned_alloc(page.value(), padded.value());
  if (memory == nullptr) {
    return Error(ErrorCode::no_space, "HostDevice::allocate")
        .reason("the machine has no memory for it")
        .wanted(size)
        .advice("lower penstock.device_budget, or use smaller units");
  }
  state_->allocations.emplace(reinterpret_cast<std::uintptr_t>(memory), size);
  state_->used += size;
  return DeviceSpan(DeviceAddress(reinterpret_cast<std::uintptr_t>(memory)), size);
}

void HostDevice::release(DeviceSpan span) noexcept {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->allocations.find(static_cast<std::uintptr_t>(span.address()));
  if (found == state_->allocations.end()) return;
  state_->used -= found->second;
  std::free(reinterpret_cast<void*>(found->first));
  state_->allocations.erase(found);
}

ByteCount HostDevice::free_memory() const {
  const std::lock_guard lock(state_->mutex);
  return state_->options.memory - state_->used;
}

Result<std::unique_ptr<Stream>> HostDevice::create_stream() {
  return std::make_unique<HostStream>(state_->scheduler, state_->options.mode);
}
Result<std::unique_ptr<Event>> HostDevice::create_event() {
  return std::make_unique<HostEvent>(state_->scheduler);
}

HostSpan HostDevice::bytes(DeviceSpan span) {
  return HostSpan(reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(span.address())), span.size());
}

namespace {
Result<HostQueue*> queue_of(const char* operation, StreamHandle stream) {
  if (stream.host_queue() != nullptr) return stream.host_queue();
  return Error::invalid_argument(operation).object("stream").reason("a default StreamHandle is no stream");
}

Result<void> check_address(const char* operation, const char* name, ConstHostSpan bytes) {
  if (bytes.data() != nullptr || bytes.empty()) return ok();
  return Error::invalid_argument(operation).object(name).reason("its address is null").got(bytes.size());
}

Result<void> copy(StreamHandle stream, ConstHostSpan from, HostSpan to) {
  constexpr const char* operation = "HostDevice::copy";
  if (from.size() != to.size()) {
    return Error::invalid_argument(operation)
        .reason("the lengths of source and destination differ")
        .wanted(from.size())
        .got(to.size());
  }
  PENSTOCK_TRY(check_address(operation, "from", from));
  PENSTOCK_TRY(check_address(operation, "to", to));
  PENSTOCK_TRY_ASSIGN(HostQueue* const queue, queue_of(operation, stream));
  queue->enqueue([from, to] {
    if (!from.empty()) std::memmove(to.data(), from.data(), from.size().value());
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
  constexpr const char* operation = "HostDevice::fill_zero";
  PENSTOCK_TRY(check_address(operation, "span", bytes(span)));
  PENSTOCK_TRY_ASSIGN(HostQueue* const queue, queue_of(operation, stream));
  queue->enqueue([to = bytes(span)] {
    if (!to.empty()) std::memset(to.data(), 0, to.size().value());
  });
  return ok();
}

bool HostDevice::run_one() {
  return state_->scheduler->run_one();
}

}  // namespace penstock::tiers
