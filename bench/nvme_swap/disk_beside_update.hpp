#pragma once

#include "swap_file_benchmark.hpp"
#include "tile_update.hpp"

#include <memory>

namespace penstock::bench {

/// The rates of a disk while tiles in memory are updated: the transfers of a swap share the cores with its updates, so
/// that a disk that is measured alone may be faster.
///
/// Owned by one thread.
class DiskBesideUpdate {
 public:
  /// `tile`: its bytes, padded for direct I/O. Errors: those of TileUpdate and of HostArena::create.
  [[nodiscard]] static Result<std::unique_ptr<DiskBesideUpdate>> create(const TileUpdate::Options& options,
                                                                        ByteCount tile);
  /// Each rate is measured for `duration`, during which updates take `share` of the time, above 0 and at most 1.
  /// Nothing else uses the workers. Errors: those of SwapFileBenchmark::measure() and of TileUpdate.
  [[nodiscard]] Result<swap::DiskRates> measure(SwapFileBenchmark& file, double share, TimePoint duration);
  [[nodiscard]] std::uint64_t updates() const { return update_->total().tiles; }  ///< so far

 private:
  DiskBesideUpdate(std::unique_ptr<TileUpdate> update, tiers::HostArena arena, ByteCount tile)
      : update_(std::move(update)), arena_(std::move(arena)), tile_(tile) {}
  [[nodiscard]] swap::DiskBenchmark::Piece piece(std::uint64_t number) const;
  Result<void> update_next(double share);

  std::unique_ptr<TileUpdate> update_;
  tiers::HostArena arena_;  // tiles
  ByteCount tile_;
  std::uint64_t next_ = 0;
};

}  // namespace penstock::bench
