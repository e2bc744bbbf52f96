#pragma once

#include "zero/engine/flat_state.hpp"

#include <penstock/cpu_adam/adam.hpp>
#include <penstock/parallel/workers.hpp>
#include <penstock/zero/config/config.hpp>
#include "swap/runtime_internals.hpp"
#include "zero/layout/shard_layout.hpp"

#include <functional>
#include <span>
#include <vector>

namespace penstock::zero {

/// Updates the tiles of one rank on the CPU: a loop over leases. One pass unscales, clips, runs Adam and writes the
/// 16-bit parameter. Each block of a tile that is kept on disk is verified before its update and sealed after it.
///
/// Used by the trainer's thread. Every call blocks.
class OffloadedOptimizer {
 public:
  struct Options {
    swap::Runtime* runtime = nullptr;
    parallel::Workers* workers = nullptr;
    DType parameter_dtype = DType::bf16;
    DType gradient_dtype = DType::bf16;
    cpu_adam::StateFormat format = cpu_adam::StateFormat::fp32;
    std::uint32_t tiles_ahead = 4;             ///< maximum number of tiles read ahead within a flat
    std::uint32_t tiles_ahead_next_flats = 4;  ///< the same if some of them belong to later flats
    std::uint32_t tile_stores_max = 4;         ///< maximum number of tiles being written during an update
    Integrity integrity = Integrity::checksum;
    bool shards_on_disk =
        false;  ///< parameter shards are on disk: a CPU computes their checksums after the update
  };
  explicit OffloadedOptimizer(const Options& options) : options_(options) {}

  /// Writes one state of elements [first, first + values.size()) of the flat into `values`, which contains zeros.
  using StateSource = std::function<Result<void>(const FlatLayout& flat, cpu_adam::StateKind kind,
                                                 ElementCount first, std::span<float> values)>;
  /// Sets all states from `source`, records that they are of step `step`, and writes the parameter shards. `rank`'s
  /// slice only.
  Result<void> restore(std::span<FlatState> flats, std::uint32_t rank, std::uint64_t step,
                       const StateSource& source);

  struct Step {
    std::uint64_t number = 0;  ///< the step number of the tiles after the update
    float gradient_factor = 1;
    std::function<cpu_adam::AdamConfig(std::uint32_t group)> config;
  };
  /// Updates all tiles of the flats that have a gradient in the order in which the next forward needs the parameters.
  /// Skips tiles that are at `step.number` already, so that a failed update can be repeated.
  ///
  /// Errors: corrupted, truncated, io and budget_too_small, from the leases; corrupted, if parameters and tiles are of
  /// different steps; non_finite, naming the tile.
  Result<void> update(std::span<FlatState> flats, const Step& step);

  /// Calls `visit` with each of `kinds` of each block of each tile, in order. An error of `visit` ends it.
  using StateVisitor = std::function<Result<void>(const FlatState& flat, cpu_adam::StateKind kind,
                                                  ElementCount first, std::span<const float> values)>;
  Result<void> visit_states(std::span<FlatState> flats, std::span<const cpu_adam::StateKind> kinds,
                            const StateVisitor& visit);

 private:
  /// Where the parameter is a part of the master: checks that the parameters are of the same step as the tiles.
  [[nodiscard]] Result<void> check_same_step(const FlatState& flat) const;
  [[nodiscard]] swap::RuntimeInternals internals() const { return swap::RuntimeInternals(*options_.runtime); }
  Result<void> restore_tile(const FlatState& flat, TileState& tile, std::uint32_t rank, std::uint64_t step,
                            const StateSource& source, HostSpan shard);
  /// Records that the flat, which has no gradient, is of step `step` too.
  void advance(const FlatState& flat, std::uint64_t step) const;
  Result<void> update_tile(FlatState& flat, TileState& tile, const Step& step);
  void prefetch_from(std::span<FlatState> flats, std::size_t flat, std::size_t tile) const;
  [[nodiscard]] cpu_adam::AdamTile view(const TileState& tile, HostSpan state, HostSpan shard,
                                        ConstHostSpan gradient) const;

  Options options_;
};

}  // namespace penstock::zero
