#include "fake_cuda/runtime.hpp"

namespace penstock::test::fake_cuda {

std::uint64_t Counts::of(std::string_view function) const {
  const auto found = calls.find(function);
  return found == calls.end() ? 0 : found->second;
}
std::uint64_t Counts::allocations() const {
  return of("cudaMalloc");
}
std::uint64_t Counts::event_creations() const {
  return of("cudaEventCreateWithFlags");
}
std::uint64_t Counts::stream_creations() const {
  return of("cudaStreamCreateWithFlags");
}
std::uint64_t Counts::device_synchronizations() const {
  return of("cudaDeviceSynchronize") + of("cudaFree");
}

Counts operator-(const Counts& later, const Counts& earlier) {
  Counts between;
  for (const auto& [function, calls] : later.calls) {
    if (calls > earlier.of(function)) between.calls[function] = calls - earlier.of(function);
  }
  return between;
}

void restart(const Machine& machine) {
  Runtime::instance().restart(machine);
}

Counts count() {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  return runtime.counts;
}

Live live() {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  return {.allocations = runtime.memory.count(),
          .streams = runtime.handles.size(),
          .events = runtime.events.size(),
          .registrations = runtime.registrations.count()};
}

std::vector<int> contexts() {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  std::vector<int> with;
  for (std::size_t device = 0; device < runtime.devices.size(); ++device) {
    if (runtime.devices[device].has_context) with.push_back(static_cast<int>(device));
  }
  return with;
}

std::uint64_t late_loads() {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  return runtime.late_loads;
}

std::uint64_t default_stream_operations() {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  return runtime.default_stream_operations;
}

void fail_call(std::string_view function, std::uint64_t nth, cudaError_t error) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  runtime.failing_calls[std::string(function)] = {nth, error};
}

void fail_kernel(std::uint64_t nth) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  runtime.failing_kernel = nth;
}

cudaError_t enqueue(cudaStream_t handle, std::function<void()> operation) {
  return call("enqueue", [&](Runtime& runtime, auto&) {
    const auto stream = runtime.stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    runtime.append(stream, [run = std::move(operation)] {
      run();
      return cudaSuccess;
    });
    return cudaSuccess;
  });
}

std::byte* bytes(const void* device_address, std::size_t size) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  const auto block = runtime.memory.containing(device_address, size);
  if (block == nullptr) return nullptr;
  return block->bytes.get() + (reinterpret_cast<std::uintptr_t>(device_address) - block->address);
}

}  // namespace penstock::test::fake_cuda
