#include "fake_cuda/runtime.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace penstock::test::fake_cuda {

namespace {

/// What CUDA keeps for each host thread. `epoch` is the number of the restart that it belongs to.
struct PerThread {
  std::uint64_t epoch = 0;
  int device = 0;
  cudaError_t last_error = cudaSuccess;
};
std::uint64_t epoch = 1;  // guarded by Runtime::mutex

PerThread& per_thread() {
  thread_local PerThread mine;
  if (mine.epoch != epoch) mine = {.epoch = epoch};
  return mine;
}

}  // namespace

bool destroys_context(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure: return true;
    default: return false;
  }
}

// Not destroyed: the threads of its streams may run until the process ends.
Runtime& Runtime::instance() {
  static Runtime* const runtime = new Runtime;
  return *runtime;
}

Runtime::Runtime() {
  start({});
}

void Runtime::start(const Machine& wanted) {
  machine = wanted;
  random.reset();
  if (machine.seed) random.emplace(*machine.seed);
  for (int device = 0; device < machine.devices; ++device) {
    devices.push_back({.default_stream = create_stream(device, /*blocking=*/true)});
  }
}

void Runtime::restart(const Machine& wanted) {
  std::vector<Running> ending;
  {
    const std::lock_guard lock(mutex);
    for (const Running& running : running_) running.stream->close();
    ending.swap(running_);
  }
  for (Running& running : ending) running.thread.join();
  const std::lock_guard lock(mutex);
  ++epoch;
  devices.clear();
  memory.clear();
  registrations.clear();
  events.clear();
  handles.clear();
  counts = {};
  failing_calls.clear();
  failing_kernel = 0;
  loaded_kernels.clear();
  late_loads = 0;
  default_stream_operations = 0;
  start(wanted);
}

namespace {
/// cudaSetDevice creates the context of its argument instead.
bool creates_context(std::string_view function) {
  constexpr std::string_view none[] = {"cudaDeviceCanAccessPeer", "cudaGetDevice", "cudaGetDeviceCount",
                                       "cudaGetDeviceProperties", "cudaSetDevice"};
  return std::ranges::find(none, function) == std::end(none);
}
}  // namespace

cudaError_t Runtime::enter(const char* function, std::unique_lock<std::mutex>& lock) {
  ++counts.calls[function];
  if (machine.driver != cudaSuccess) return machine.driver;
  if (devices.empty()) return cudaErrorNoDevice;
  Device& device = devices[static_cast<std::size_t>(current_device())];
  device.has_context |= creates_context(function);
  if (device.lost != cudaSuccess) {
    // CUDA reports the error when the device accesses memory no more: the caller may free it.
    stopped.wait(lock, [&] { return device.running == 0; });
    return device.lost;
  }
  const auto failing = failing_calls.find(std::string_view(function));
  if (failing == failing_calls.end() || --failing->second.first > 0) return cudaSuccess;
  const cudaError_t error = failing->second.second;
  failing_calls.erase(failing);
  if (destroys_context(error)) device.lost = error;
  return error;
}

cudaError_t Runtime::leave(cudaError_t error) {
  if (error != cudaSuccess) per_thread().last_error = error;
  return error;
}

cudaError_t Runtime::last_error(bool clear) {
  PerThread& mine = per_thread();
  const bool exists = static_cast<std::size_t>(mine.device) < devices.size();
  if (exists && devices[static_cast<std::size_t>(mine.device)].lost != cudaSuccess) {
    return devices[static_cast<std::size_t>(mine.device)].lost;
  }
  return clear ? std::exchange(mine.last_error, cudaSuccess) : mine.last_error;
}

int Runtime::current_device() const {
  return per_thread().device;
}
void Runtime::set_current_device(int device) {
  per_thread().device = device;
}

std::shared_ptr<Stream> Runtime::create_stream(int device, bool blocking) {
  std::optional<std::uint64_t> seed = machine.seed;
  if (seed) *seed = SeededRandom::mix(*seed + running_.size());
  auto stream = std::make_shared<Stream>(device, blocking, seed);
  running_.push_back({stream, std::thread([stream] { stream->run(); })});
  return stream;
}

std::shared_ptr<Stream> Runtime::stream(cudaStream_t handle) const {
  if (handle == nullptr || handle == cudaStreamLegacy) {
    return devices[static_cast<std::size_t>(current_device())].default_stream;
  }
  const auto found = handles.find(handle);
  return found == handles.end() ? nullptr : found->second;
}

cudaStream_t Runtime::add_handle(std::shared_ptr<Stream> stream) {
  const auto handle = reinterpret_cast<cudaStream_t>(next_handle += 16);
  handles.emplace(handle, std::move(stream));
  return handle;
}

bool Runtime::drop_handle(cudaStream_t handle) {
  const auto found = handles.find(handle);
  if (found == handles.end()) return false;
  found->second->close();
  handles.erase(found);
  return true;
}

Point Runtime::append(const std::shared_ptr<Stream>& stream, Stream::Operation run,
                      std::vector<Point> after) {
  const auto& first = devices[static_cast<std::size_t>(stream->device())].default_stream;
  if (stream == first) {
    ++default_stream_operations;
    for (const Running& other : running_) {
      if (other.stream == stream || other.stream->device() != stream->device() || !other.stream->blocking())
        continue;
      after.push_back({other.stream, other.stream->enqueued()});
    }
  } else if (stream->blocking()) {
    after.push_back({first, first->enqueued()});
  }
  stream->append(std::move(run), std::move(after));
  return {stream, stream->enqueued()};
}

cudaError_t Runtime::wait(std::unique_lock<std::mutex>& lock, const Point& point) {
  point.wait(lock);
  return point.stream ? devices[static_cast<std::size_t>(point.stream->device())].lost : cudaSuccess;
}

cudaError_t Runtime::wait_for_device(std::unique_lock<std::mutex>& lock, int device) {
  std::vector<Point> points;
  for (const Running& running : running_) {
    if (running.stream->device() == device) points.push_back({running.stream, running.stream->enqueued()});
  }
  for (const Point& point : points) (void)wait(lock, point);
  return devices[static_cast<std::size_t>(device)].lost;
}

bool Point::reached() const {
  return stream == nullptr || stream->done() >= number;
}

void Point::wait(std::unique_lock<std::mutex>& lock) const {
  if (stream != nullptr) stream->wait(lock, number);
}

Stream::Stream(int device, bool blocking, const std::optional<std::uint64_t>& seed)
    : device_(device), blocking_(blocking) {
  if (!seed) return;
  random_.emplace(*seed);
  slow_ = random_->below(3) == 0;
}

void Stream::append(Operation run, std::vector<Point> after) {
  queue_.push_back({std::move(run), std::move(after)});
  ++enqueued_;
  appended_.notify_one();
}

void Stream::close() {
  closed_ = true;
  appended_.notify_one();
}

void Stream::wait(std::unique_lock<std::mutex>& lock, std::uint64_t number) const {
  passed_.wait(lock, [&] { return done_ >= number; });
}

void Stream::run() {
  Runtime& runtime = Runtime::instance();
  std::unique_lock lock(runtime.mutex);
  while (true) {
    appended_.wait(lock, [&] { return !queue_.empty() || closed_; });
    if (queue_.empty()) return;
    for (const Point& point : queue_.front().after) point.wait(lock);
    Entry entry = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    pause();
    lock.lock();
    Runtime::Device& device = runtime.devices[static_cast<std::size_t>(device_)];
    if (entry.run && device.lost == cudaSuccess) {
      ++device.running;
      lock.unlock();
      const cudaError_t error = entry.run();
      entry = {};
      lock.lock();
      --device.running;
      if (error != cudaSuccess) device.lost = error;
      if (device.lost != cudaSuccess) runtime.stopped.notify_all();
    }
    ++done_;
    passed_.notify_all();
  }
}

/// Between two operations: nothing, some yields or a sleep, so that a seed is an order of the streams. A slow stream
/// sleeps more often, and sometimes for longer than a disk needs to overwrite what it copies.
void Stream::pause() {
  if (!random_) return;
  const std::uint64_t choice = random_->below(16);
  if (choice < 6) return;
  if (choice < 12 && !slow_) {
    for (std::uint64_t i = random_->below(16); i > 0; --i) std::this_thread::yield();
    return;
  }
  const std::uint64_t longest = !slow_ ? 60 : choice == 15 ? 4000 : 200;
  std::this_thread::sleep_for(std::chrono::microseconds(random_->below(longest)));
}

}  // namespace penstock::test::fake_cuda
