#pragma once

#include "tiers/memory/host_arena.hpp"
#include "tiers/store/block_table.hpp"
#include "zero/engine/parked_contents.hpp"
#include "zero/engine/range_copies.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace penstock::zero {

/// Contents of device memory, parked in host memory of their own.
class ParkedMemory final : public ParkedContents {
 public:
  /// Copies `ranges`, which are on the device. Precondition: no operation writes them.
  ///
  /// Errors: no_space, where the machine lacks the memory; those of the device. After deadline_exceeded the engine has
  /// failed, and the host memory stays mapped.
  [[nodiscard]] static Result<std::unique_ptr<ParkedMemory>> copy(EngineContext& context,
                                                                  const std::vector<MemoryRange>& ranges);

  Result<void> copy_back(EngineContext& context,
                         const std::function<DeviceSpan(DeviceSpan)>& now_at) override;
  [[nodiscard]] ByteCount held(tiers::Tier tier) const override {
    return tier == tiers::Tier::host ? memory_.bytes().size() : ByteCount();
  }

 private:
  ParkedMemory(tiers::HostArena memory, std::vector<MemoryRange> ranges);
  struct Part {
    MemoryRange range;
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
