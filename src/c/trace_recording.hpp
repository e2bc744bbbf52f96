#pragma once

#include <penstock/swap/access_trace.hpp>
#include <penstock/swap/runtime.hpp>

#include <mutex>
#include <optional>

namespace penstock::c {

/// The trace of a runtime. What could not be saved is kept for a repeated call. Safe from any thread.
class TraceRecording {
 public:
  void begin(swap::Runtime& runtime) {
    const std::lock_guard lock(mutex_);
    unsaved_.reset();
    runtime.begin_trace();
  }
  Result<void> save(swap::Runtime& runtime, const char* label, const char* file) {
    const std::lock_guard lock(mutex_);
    if (!unsaved_) {
      PENSTOCK_TRY_ASSIGN(unsaved_, runtime.end_trace(label == nullptr ? "" : label));
    }
    PENSTOCK_TRY(swap::save_trace(*unsaved_, file));
    unsaved_.reset();
    return ok();
  }

 private:
  std::mutex mutex_;
  std::optional<swap::AccessTrace> unsaved_;
};

}  // namespace penstock::c
