#pragma once

#include "zero/engine/engine_context.hpp"

#include <penstock/swap/runtime.hpp>

#include <memory>
#include <string>
#include <vector>

namespace penstock::zero {

/// A range of an engine's memory, on the device or in host memory: one of the two is empty. The name appears in
/// messages.
struct MemoryRange {
  std::string name;
  DeviceSpan on_device;
  HostSpan in_host;

  [[nodiscard]] ByteCount size() const { return on_device.size() + in_host.size(); }
  /// Has the name of the whole, with its first byte.
  [[nodiscard]] MemoryRange part(ByteCount begin, ByteCount length) const;
};

/// The ranges in parts of at most `part_max`.
[[nodiscard]] std::vector<MemoryRange> divide(const std::vector<MemoryRange>& ranges, ByteCount part_max);

/// A runtime beside the engine's, for copies of its memory in files. If they have an idle handler, waiting for one of
/// them advances both. Move-only; the engine's runtime outlives it.
class SideRuntime {
 public:
  /// With the executor and the idle handler of the engine's runtime. Errors: those of Runtime::create().
  [[nodiscard]] static Result<SideRuntime> create(EngineContext& context, swap::RuntimeOptions options);

  SideRuntime(SideRuntime&&) = default;
  ~SideRuntime();

  [[nodiscard]] swap::Runtime& get() const { return *runtime_; }

 private:
  explicit SideRuntime(swap::Runtime& of_engine) : of_engine_(&of_engine) {}

  swap::Runtime* of_engine_;
  std::unique_ptr<swap::IdleHandler> idle_;  // null if the runtimes have threads
  std::unique_ptr<swap::Runtime> runtime_;   // null once it was moved from
};

/// Copy a range to or from the bytes of a lease of a SideRuntime, and end the lease. Used by the trainer's thread;
/// block.
///
/// Errors: those of the device. A device that hangs may use the leased bytes for ever; they stay leased.
Result<void> copy_out(EngineContext& context, const MemoryRange& range, swap::Lease lease);
Result<void> copy_back(EngineContext& context, const MemoryRange& range, swap::Lease lease);

}  // namespace penstock::zero
