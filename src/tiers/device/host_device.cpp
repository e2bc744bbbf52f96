#include <penstock/tiers/device/host_device.hpp>

#include "tiers/device/host_stream.hpp"
#include "tiers/device/host_stream_clock.hpp"
#include "tiers/memory/host_pages.hpp"

#include <penstock/tiers/memory/memory_limits.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace penstock::tiers {

namespace {

std::shared_ptr<HostStreams> make_streams(const HostDevice::Options& options) {
  switch (options.mode) {
    case HostDevice::Mode::deferred: return make_deferred_streams(options);
    case HostDevice::Mode::threaded: return make_threaded_streams(options.speeds);
    case HostDevice::Mode::eager: break;
  }
  return make_eager_streams();
}

constexpr ByteCount page = 2_MiB;
/// Smaller allocations are not checked against the machine's memory: reading the limits takes longer than they do.
constexpr ByteCount checked_min = 16_MiB;
constexpr const char* less_memory = "lower penstock.device_budget, or use smaller units";

/// Memory in 2 MiB pages where the kernel gives them. Its contents are what a real device gives: anything.
Result<std::byte*> allocate_pages(ByteCount size) {
  const ByteCount padded = std::max(round_up(size, Alignment(page.value())), page);
  std::unique_lock<std::mutex> lock;
  if (size >= checked_min) {
    lock = std::unique_lock(population_mutex());
    if (auto fits = check_memory("HostDevice::allocate", size, memory_limit()); !fits)
      return std::move(fits).error().advice(less_memory);
  }
  // The sum of a size near 2^64 and its padding wraps around.
  void* memory = padded < size ? nullptr : std::aligned_alloc(page.value(), padded.value());
  if (memory != nullptr && (!lock || populate(static_cast<std::byte*>(memory), padded)))
    return static_cast<std::byte*>(memory);
  std::free(memory);
  return Error(ErrorCode::no_space, "HostDevice::allocate")
      .reason("the machine has no memory for it")
      .wanted(size)
      .advice(less_memory);
}

}  // namespace

struct HostDevice::State {
  const Options options;
  std::mutex mutex{};
  std::map<std::uintptr_t, ByteCount> allocations{};
  ByteCount used{};
  std::shared_ptr<HostStreams> streams = make_streams(options);
};

HostDevice::HostDevice(const Options& options) : state_(new State{.options = options}) {}

HostDevice::~HostDevice() {
  state_->streams->finish();
  for (const auto& [address, size] : state_->allocations) std::free(reinterpret_cast<void*>(address));
}

std::string HostDevice::name() const {
  switch (state_->options.mode) {
    case Mode::deferred: return "host (deferred)";
    case Mode::threaded: return "host (threaded)";
    case Mode::eager: break;
  }
  return "host";
}

DeviceMemory HostDevice::memory() const {
  return state_->options.location;
}

Result<DeviceSpan> HostDevice::allocate(ByteCount size) {
  const std::lock_guard lock(state_->mutex);
  if (size > state_->options.memory - state_->used) {
    return Error(ErrorCode::budget_too_small, "HostDevice::allocate")
        .object("device memory")
        .wanted(size)
        .got(to_string(state_->options.memory - state_->used) + " of " + to_string(state_->options.memory) +
             " free")
        .advice("raise HostDevice::Options::memory, which make_host_accelerator() sets");
  }
  PENSTOCK_TRY_ASSIGN(std::byte* const memory, allocate_pages(size));
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
  return state_->streams->create_stream();
}
Result<std::unique_ptr<Event>> HostDevice::create_event() {
  return make_host_event();
}
Result<std::unique_ptr<StreamClock>> HostDevice::create_clock() {
  return make_host_stream_clock();
}
bool HostDevice::owns_stream(const Stream& stream) const {
  const auto* const host = dynamic_cast<const HostStream*>(&stream);
  return host != nullptr && host->is_of(*state_->streams);
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

Result<void> copy(StreamHandle stream, ConstHostSpan from, HostSpan to, const OperationCost& cost) {
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
  const auto move = [from, to] {
    if (!from.empty()) std::memmove(to.data(), from.data(), from.size().value());
  };
  queue->enqueue(move, cost);
  return ok();
}
}  // namespace

Result<void> HostDevice::copy_to_device(StreamHandle stream, ConstHostSpan from, DeviceSpan to) {
  return copy(stream, from, bytes(to),
              {.resource = OperationCost::Resource::copy_to_device, .bytes = from.size()});
}
Result<void> HostDevice::copy_to_host(StreamHandle stream, DeviceSpan from, HostSpan to) {
  return copy(stream, bytes(from), to,
              {.resource = OperationCost::Resource::copy_to_host, .bytes = to.size()});
}
Result<void> HostDevice::copy_on_device(StreamHandle stream, DeviceSpan from, DeviceSpan to) {
  return copy(stream, bytes(from), bytes(to), {.bytes = from.size() * 2});
}
Result<void> HostDevice::fill_zero(StreamHandle stream, DeviceSpan span) {
  constexpr const char* operation = "HostDevice::fill_zero";
  PENSTOCK_TRY(check_address(operation, "span", bytes(span)));
  PENSTOCK_TRY_ASSIGN(HostQueue* const queue, queue_of(operation, stream));
  const auto fill = [to = bytes(span)] {
    if (!to.empty()) std::memset(to.data(), 0, to.size().value());
  };
  queue->enqueue(fill, {.bytes = span.size()});
  return ok();
}

bool HostDevice::run_one() {
  return state_->streams->run_one();
}

TimePoint HostDevice::next_due() const {
  return state_->streams->next_due();
}

}  // namespace penstock::tiers
