#pragma once

#include "zero/engine/parked_contents.hpp"

#include <penstock/swap/runtime.hpp>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace penstock::zero {

/// Contents of device and host memory, parked in swap files. A runtime of its own writes, reads and verifies them, in
/// parts, through staging of `staging_max` bytes at most. The files have no names: they end with the process.
class ParkedFiles final : public ParkedContents {
 public:
  static constexpr ByteCount part_max = 16_MiB;
  static constexpr ByteCount staging_max = part_max * 4;

  /// Stores `ranges` in files of `paths`, with the executor and the idle handler of `with`, the options of the engine's
  /// runtime. Precondition: no operation writes the ranges.
  ///
  /// Errors: those of Runtime::create(), naming the directory, before anything is copied; those of a store and of the
  /// device.
  [[nodiscard]] static Result<std::unique_ptr<ParkedFiles>> store(EngineContext& context,
                                                                  const std::vector<ParkedRange>& ranges,
                                                                  std::vector<swap::PathOptions> paths,
                                                                  swap::RuntimeOptions with);

  Result<void> copy_back(EngineContext& context,
                         const std::function<DeviceSpan(DeviceSpan)>& now_at) override;
  [[nodiscard]] ByteCount held(tiers::Tier tier) const override;
  [[nodiscard]] Traffic traffic() const override;
  [[nodiscard]] std::vector<std::string> take_messages() override { return runtime_->take_messages(); }

 private:
  struct Part {
    ParkedRange range;
    tiers::TensorId tensor{};
  };
  ParkedFiles(std::unique_ptr<swap::IdleHandler> idle, std::unique_ptr<swap::Runtime> runtime,
              std::vector<Part> parts)
      : idle_(std::move(idle)), runtime_(std::move(runtime)), parts_(std::move(parts)) {}

  Result<void> copy_out(EngineContext& context);
  /// Ends the lease when the stream has executed the copies from or to it. A device that hangs may use it for ever.
  static Result<void> finish(EngineContext& context, tiers::Stream& stream, swap::Lease lease);

  std::unique_ptr<swap::IdleHandler> idle_;  // of the runtime; null if it has threads
  std::unique_ptr<swap::Runtime> runtime_;
  std::vector<Part> parts_;
};

}  // namespace penstock::zero
