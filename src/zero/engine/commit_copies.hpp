#pragma once

#include "zero/commit/manifest.hpp"
#include "zero/engine/range_copies.hpp"

#include <penstock/swap/runtime.hpp>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace penstock::zero {

/// Copies of the committed states that are in memory only, in files of the durable directories. A runtime of its own
/// writes them, in parts, through staging of `staging_max` bytes at most. Used by the trainer's thread.
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

  /// Copies everything and makes it durable. Errors: those of the device and of Runtime::sync(); the last commit is as
  /// it was.
  Result<void> copy(EngineContext& context);
  [[nodiscard]] swap::Runtime& runtime() const { return side_.get(); }
  /// The tensors of its runtime, with the step of what each is a copy of.
  struct Copy {
    tiers::TensorId tensor{};
    std::uint64_t step = 0;
  };
  [[nodiscard]] std::vector<Copy> copies(const EngineContext& context) const;

 private:
  struct Part {
    std::uint32_t flat, tile;  ///< tile: its number, or `of_shard`
    TileRange range;           ///< in the tile or shard
    ByteCount begin;           ///< of its bytes, there
    tiers::TensorId tensor{};
  };
  static constexpr std::uint32_t of_shard = ~0u;
  explicit CommitCopies(SideRuntime side) : side_(std::move(side)) {}

  Result<void> add_shard(const EngineContext& context, std::uint32_t flat, std::uint32_t engine);
  Result<void> add_tile(const EngineContext& context, std::uint32_t flat, std::uint32_t tile,
                        std::uint32_t engine);
  Result<void> add(const EngineContext& context, Part part, ElementCount first,
                   tiers::TensorDescription description);
  [[nodiscard]] MemoryRange range_of(const EngineContext& context, const Part& part) const;

  SideRuntime side_;
  std::vector<Part> parts_;
};

}  // namespace penstock::zero
