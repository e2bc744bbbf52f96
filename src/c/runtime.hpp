#pragma once

#include "c/handles.hpp"
#include "c/trace_recording.hpp"

#include <penstock/c/runtime.h>
#include <penstock/swap/runtime.hpp>

#include <atomic>
#include <cstdint>
#include <memory>

struct penstock_runtime {
  std::shared_ptr<penstock::swap::Runtime> runtime;  // of its leases and requests too
  std::atomic<std::uint64_t> added = 0;              // the keys of its tensors
  penstock::c::TraceRecording recording = {};
  penstock::c::HandleProcess process = {};
};
