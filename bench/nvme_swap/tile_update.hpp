#pragma once

#include <penstock/cpu_adam/adam.hpp>
#include <penstock/swap/disk_benchmark.hpp>
#include "tiers/memory/host_arena.hpp"
#include "tiers/store/block_table.hpp"

#include <memory>
#include <vector>

namespace penstock::bench {

/// The optimizer's work on a tile between its read and its write: the AdamW step, block by block. Each block's
/// checksum is verified before and computed after the step, while the block is in L2.
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

  /// Writes the state of step 0 into `piece`.
  [[nodiscard]] Result<void> initialize(const swap::DiskBenchmark::Piece& piece);
  /// Updates the tile by one step. Errors: corrupted, when a block does not match its checksum.
  [[nodiscard]] Result<void> update(const swap::DiskBenchmark::Piece& piece);

  /// Of all updates so far.
  struct Total {
    double seconds = 0;
    std::uint64_t tiles = 0;
  };
  [[nodiscard]] Total total() const { return total_; }

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
  Total total_;
  std::vector<std::vector<Tile>> tiles_;  // by path, in file order
};

}  // namespace penstock::bench
