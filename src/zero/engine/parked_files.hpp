#pragma once

#include "zero/engine/parked_contents.hpp"
#include "zero/engine/range_copies.hpp"

#include <penstock/swap/runtime.hpp>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero {

/// Contents of device and host memory, parked in swap files. A runtime of its own writes, reads and verifies them, in
/// parts, through staging of `staging_max` bytes at most. The files have no names: they end with the process.
class ParkedFiles final : public ParkedContents {
 public:
  static constexpr ByteCount part_max = 16_MiB;
  static constexpr ByteCount staging_max = part_max * 4;

  /// Stores `ranges` in files of `paths`. Precondition: no operation writes the ranges.
  ///
  /// Errors: those of Runtime::create(), naming the directory, before anything is copied; those of a store and of the
  /// device.
  [[nodiscard]] static Result<std::unique_ptr<ParkedFiles>> store(EngineContext& context,
                                                                  const std::vector<MemoryRange>& ranges,
                                                                  std::vector<swap::PathOptions> paths);

  Result<void> copy_back(EngineContext& context,
                         const std::function<DeviceSpan(DeviceSpan)>& now_at) override;
  [[nodiscard]] ByteCount held(tiers::Tier tier) const override;
  [[nodiscard]] Traffic traffic() const override;
  [[nodiscard]] std::vector<std::string> take_messages() override { return runtime().take_messages(); }

 private:
  struct Part {
    MemoryRange range;
    tiers::TensorId tensor{};
  };
  ParkedFiles(SideRuntime side, std::vector<Part> parts) : side_(std::move(side)), parts_(std::move(parts)) {}

  [[nodiscard]] swap::Runtime& runtime() const { return side_.get(); }
  Result<void> copy_all_out(EngineContext& context);

  SideRuntime side_;
  std::vector<Part> parts_;
};

}  // namespace penstock::zero
