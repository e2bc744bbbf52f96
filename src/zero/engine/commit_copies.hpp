#pragma once

#include "zero/engine/commit_hop.hpp"
#include "zero/engine/range_copies.hpp"

#include <penstock/swap/runtime.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::zero {

/// Copies of the committed states that are in memory only, in files of the durable directories. A runtime of its own
/// writes them in parts, behind the trainer: from host memory where they are, from the device through staging of
/// `staging_max` bytes at most.
///
///     copies.begin();
///     …                                 // the states do not change
///     PENSTOCK_TRY(copies.finish());    // blocks until they may change, and every copy is written
///
/// Used by the trainer's thread.
class CommitCopies {
 public:
  static constexpr ByteCount staging_max = 64_MiB;

  struct Options {
    std::uint32_t engine = 0;
    ByteCount size;                          ///< MemoryPlan::committed_copies
    std::vector<swap::PathOptions> paths;    ///< with the files' names
    std::vector<swap::PinnedExtent> pinned;  ///< of the last commit
  };
  /// Allocates the copies of what `context.flats` keep in memory. Errors: those of Runtime::create() and
  /// Runtime::add().
  [[nodiscard]] static Result<std::unique_ptr<CommitCopies>> open(EngineContext& context, Options options);

  ~CommitCopies() { give_up(); }
  CommitCopies(const CommitCopies&) = delete;
  CommitCopies& operator=(const CommitCopies&) = delete;

  /// Starts to copy everything. Precondition: no earlier copies are under way.
  void begin();
  /// Blocks until everything is written. Errors: those of the device and of Runtime::flush(); nothing is copied any
  /// more then.
  Result<void> finish();
  /// Blocks until nothing is copied any more.
  void give_up();
  [[nodiscard]] swap::Runtime& runtime() const { return side_.get(); }
  /// The tensors of its runtime, with the step of what each is a copy of.
  struct Copy {
    tiers::TensorId tensor{};
    std::uint64_t step = 0;
  };
  [[nodiscard]] std::vector<Copy> copies() const;

 private:
  struct Part {
    std::uint32_t flat, tile;  ///< tile: its number, or `of_shard`
    TileRange range;           ///< in the tile or shard
    ByteCount begin;           ///< of its bytes, there
    bool on_device;
    tiers::TensorId tensor{};
    std::uint64_t step = 0;  ///< of what begin() has started to copy
  };
  static constexpr std::uint32_t of_shard = ~0u;
  CommitCopies(EngineContext& context, SideRuntime side) : context_(context), side_(std::move(side)) {}

  Result<void> add_shard(std::uint32_t flat, std::uint32_t engine);
  Result<void> add_tile(std::uint32_t flat, std::uint32_t tile, std::uint32_t engine);
  Result<void> add(Part part, ElementCount first, tiers::TensorDescription description);
  [[nodiscard]] MemoryRange range_of(const Part& part) const;
  [[nodiscard]] std::uint64_t step_of(const Part& part) const;
  void start(std::vector<DeviceCopy> copies);
  Result<void> wait();

  EngineContext& context_;
  SideRuntime side_;
  std::vector<Part> parts_;
  // Of the hop that copies from the device.
  std::atomic<bool> copying_{false}, stop_{false};
  std::optional<Error> device_error_;  // set by the mover before it clears copying_
};

}  // namespace penstock::zero
