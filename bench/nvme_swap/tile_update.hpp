#pragma once

#include <penstock/cpu_adam/adam.hpp>
#include <penstock/swap/disk_benchmark.hpp>
#include "tiers/memory/host_arena.hpp"
#include "tiers/store/block_table.hpp"

#include <memory>
#include <vector>

namespace penstock::bench {

/// What the optimizer does to a tile between its read and its write: the AdamW step, block by block, each
/// block verified before and sealed after it while it is in L2.
///
/// Owned by one thread, the one that runs the load.
class TileUpdate {
 public:
  struct Options {
    cpu_adam::StateFormat format = cpu_adam::StateFormat::fp32;
    ElementCount elements;                 ///< of a tile
    bool integrity = true;                 ///< verify and seal
    parallel::Workers* workers = nullptr;  ///< outlives it
  };

  /// Errors: those of tile_bytes and of HostArena::create.
  [[nodiscard]] static Result<std::unique_ptr<TileUpdate>> create(const Options& options);

  /// Makes `piece` the tile of step 0.
  [[nodiscard]] Result<void> initialize(const swap::DiskBenchmark::Piece& piece);
  /// Takes the tile one step further. Errors: corrupted, when a block is not what was sealed.
  [[nodiscard]] Result<void> update(const swap::DiskBenchmark::Piece& piece);

 private:
  struct Tile {
    tiers::BlockTable blocks;
    std::uint64_t step = 0;
  };

  TileUpdate(const Options& options, ByteCount tile, ByteCount block, tiers::HostArena arena);
  [[nodiscard]] Tile& tile_of(const swap::DiskBenchmark::Piece& piece);
  [[nodiscard]] cpu_adam::AdamTile view(const swap::DiskBenchmark::Piece& piece) const;

  Options options_;
  ByteCount tile_, block_;
  tiers::HostArena arena_;  // gradients, then parameters
  std::vector<float> initial_;
  std::vector<std::vector<Tile>> tiles_;  // by path, in file order
};

}  // namespace penstock::bench
