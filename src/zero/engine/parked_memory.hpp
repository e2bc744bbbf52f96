#pragma once

#include "tiers/memory/host_arena.hpp"
#include "tiers/store/block_table.hpp"
#include "zero/engine/engine_context.hpp"

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace penstock::zero {

/// Contents of device memory, kept in host memory of their own, with a checksum for each block. Move-only; used by the
/// trainer's thread. Its members that copy block until the copies have ended.
class ParkedMemory {
 public:
  /// A range of device memory. The name appears in messages.
  struct Range {
    std::string name;
    DeviceSpan bytes;
  };

  /// Copies `ranges`. Precondition: no operation writes them.
  ///
  /// Errors: no_space, where the machine lacks the memory; those of the device. After deadline_exceeded the engine has
  /// failed, and the host memory stays mapped.
  [[nodiscard]] static Result<ParkedMemory> copy(EngineContext& context, std::vector<Range> ranges);

  /// Verifies every block and copies it to `to(range)`, of the same size.
  ///
  /// Errors: corrupted, naming the range and its block; those of the device. They change nothing here.
  Result<void> copy_back(EngineContext& context, const std::function<DeviceSpan(const Range&)>& to);

  /// Host memory that it has allocated.
  [[nodiscard]] ByteCount size() const { return memory_.bytes().size(); }

 private:
  ParkedMemory(tiers::HostArena memory, std::vector<Range> ranges);
  struct Part {
    Range range;
    HostSpan copy;
    tiers::BlockTable blocks;
  };
  Result<void> copy_out(EngineContext& context);
  [[nodiscard]] Result<void> verify(EngineContext& context, const Part& part) const;
  /// Waits for what `stream` was given. A copy that does not end may use the host memory for ever.
  Result<void> finish(EngineContext& context, tiers::Stream& stream);

  tiers::HostArena memory_;
  std::vector<Part> parts_;
};

}  // namespace penstock::zero
