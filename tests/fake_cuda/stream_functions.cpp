// Streams, events and copies of the CUDA runtime.
#include "fake_cuda/runtime.hpp"

#include <cstring>

using namespace penstock::test::fake_cuda;

namespace {

using Block = DeviceMemory::Block;

/// One side of a copy.
struct Side {
  std::shared_ptr<const Block> block;  ///< kept until the copy has run; null for host memory
  std::byte* bytes = nullptr;
  HostRegistrations::Kind kind = HostRegistrations::Kind::registered;

  [[nodiscard]] bool valid() const { return bytes != nullptr && kind != HostRegistrations::Kind::leaves; }
  [[nodiscard]] bool pageable() const { return kind == HostRegistrations::Kind::pageable; }
};

Side side(const Runtime& runtime, const void* address, std::size_t size, bool on_device) {
  if (on_device) {
    auto block = runtime.memory.containing(address, size);
    if (block == nullptr) return {};
    std::byte* const bytes =
        block->bytes.get() + (reinterpret_cast<std::uintptr_t>(address) - block->address);
    return {.block = std::move(block), .bytes = bytes};
  }
  if (runtime.memory.reserves(address)) return {};
  return {.block = nullptr,
          .bytes = static_cast<std::byte*>(const_cast<void*>(address)),
          .kind = runtime.registrations.kind(address, size)};
}

/// When a copy of pageable memory uses it. CUDA may do any of these (Runtime API, "API synchronization behavior").
enum class PageableCopy : std::uint8_t {
  staged,        ///< reads the source during the call; has written the target when the call returns
  synchronous,   ///< the copy has run when the call returns
  asynchronous,  ///< as with registered memory
};
PageableCopy choose_pageable_copy(Runtime& runtime) {
  return runtime.random ? static_cast<PageableCopy>(runtime.random->below(3)) : PageableCopy::staged;
}

cudaError_t copy(Runtime& runtime, std::unique_lock<std::mutex>& lock, void* to, const void* from,
                 std::size_t size, cudaMemcpyKind kind, cudaStream_t handle) {
  const auto stream = runtime.stream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDeviceToDevice) return cudaErrorInvalidMemcpyDirection;
  if (size == 0) return cudaSuccess;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const Side source = side(runtime, from, size, from_device), target = side(runtime, to, size, to_device);
  if (!source.valid() || !target.valid()) return cudaErrorInvalidValue;

  const bool pageable = source.pageable() || target.pageable();
  const PageableCopy how = pageable ? choose_pageable_copy(runtime) : PageableCopy::asynchronous;
  const bool stage = source.pageable() && how == PageableCopy::staged;
  std::vector<std::byte> staged;
  if (stage) staged.assign(source.bytes, source.bytes + size);
  const Point copied = runtime.append(stream, [source, target, size, stage, bytes = std::move(staged)] {
    std::memmove(target.bytes, stage ? bytes.data() : source.bytes, size);
    return cudaSuccess;
  });
  const bool waits = how == PageableCopy::synchronous || (how == PageableCopy::staged && target.pageable());
  return waits ? runtime.wait(lock, copied) : cudaSuccess;
}

/// Null if the handle is none.
Event* find_event(Runtime& runtime, cudaEvent_t handle) {
  const auto found = runtime.events.find(handle);
  return found == runtime.events.end() ? nullptr : &found->second;
}

}  // namespace

extern "C" {

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* argument) {
  return call("cudaLaunchHostFunc", [&](Runtime& runtime, auto&) {
    const auto stream = runtime.stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (function == nullptr) return cudaErrorInvalidValue;
    runtime.append(stream, [function, argument] {
      function(argument);
      return cudaSuccess;
    });
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return call("cudaStreamCreateWithFlags", [&](Runtime& runtime, auto&) {
    if (handle == nullptr || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
    const bool blocking = flags == cudaStreamDefault;
    *handle = runtime.add_handle(runtime.create_stream(runtime.current_device(), blocking));
    return cudaSuccess;
  });
}

// Returns at once; the stream's operations still run (Runtime API, cudaStreamDestroy).
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return call("cudaStreamDestroy", [&](Runtime& runtime, auto&) {
    return runtime.drop_handle(handle) ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return call("cudaStreamSynchronize", [&](Runtime& runtime, auto& lock) {
    const auto stream = runtime.stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    return runtime.wait(lock, {stream, stream->enqueued()});
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  return call("cudaStreamWaitEvent", [&](Runtime& runtime, auto&) {
    const auto stream = runtime.stream(handle);
    const auto* const recorded = find_event(runtime, event);
    if (stream == nullptr || recorded == nullptr) return cudaErrorInvalidResourceHandle;
    runtime.append(stream, {}, {recorded->last});
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  return call("cudaEventCreateWithFlags", [&](Runtime& runtime, auto&) {
    if (handle == nullptr) return cudaErrorInvalidValue;
    *handle = reinterpret_cast<cudaEvent_t>(runtime.next_handle += 16);
    runtime.events[*handle] = {.device = runtime.current_device(),
                               .timed = (flags & cudaEventDisableTiming) == 0};
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return call("cudaEventDestroy", [&](Runtime& runtime, auto&) {
    return runtime.events.erase(handle) > 0 ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  return call("cudaEventRecord", [&](Runtime& runtime, auto&) {
    const auto stream = runtime.stream(stream_handle);
    auto* const event = find_event(runtime, handle);
    if (stream == nullptr || event == nullptr || event->device != stream->device()) {
      return cudaErrorInvalidResourceHandle;
    }
    event->passed = std::make_shared<std::atomic<std::chrono::steady_clock::time_point>>();
    event->last = runtime.append(stream, [passed = event->passed] {
      passed->store(std::chrono::steady_clock::now());
      return cudaSuccess;
    });
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return call("cudaEventQuery", [&](Runtime& runtime, auto&) {
    const auto* const event = find_event(runtime, handle);
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    return event->last.reached() ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return call("cudaEventElapsedTime", [&](Runtime& runtime, auto&) {
    if (milliseconds == nullptr) return cudaErrorInvalidValue;
    const Event* const events[] = {find_event(runtime, from), find_event(runtime, to)};
    for (const Event* event : events) {
      if (event == nullptr || !event->timed || event->last.stream == nullptr)
        return cudaErrorInvalidResourceHandle;
    }
    for (const Event* event : events) {
      if (!event->last.reached()) return cudaErrorNotReady;
    }
    const std::chrono::duration<float, std::milli> elapsed =
        events[1]->passed->load() - events[0]->passed->load();
    *milliseconds = elapsed.count();
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return call("cudaEventSynchronize", [&](Runtime& runtime, auto& lock) {
    const auto* const event = find_event(runtime, handle);
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    const Point point = event->last;  // another thread may record or destroy the event meanwhile
    return runtime.wait(lock, point);
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return call("cudaMemcpyAsync", [&](Runtime& runtime, auto& lock) {
    return copy(runtime, lock, to, from, size, kind, stream);
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
  return call("cudaMemcpy", [&](Runtime& runtime, auto& lock) {
    const cudaError_t error = copy(runtime, lock, to, from, size, kind, nullptr);
    if (error != cudaSuccess) return error;
    const auto stream = runtime.stream(nullptr);
    return runtime.wait(lock, {stream, stream->enqueued()});
  });
}

cudaError_t cudaMemsetAsync(void* address, int value, std::size_t size, cudaStream_t handle) {
  return call("cudaMemsetAsync", [&](Runtime& runtime, auto&) {
    const auto stream = runtime.stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (size == 0) return cudaSuccess;
    const Side target = side(runtime, address, size, /*on_device=*/true);
    if (!target.valid()) return cudaErrorInvalidValue;
    runtime.append(stream, [target, value, size] {
      std::memset(target.bytes, value, size);
      return cudaSuccess;
    });
    return cudaSuccess;
  });
}

}  // extern "C"
