#pragma once

#include "zero/engine/flat_state.hpp"

#include <penstock/cpu_adam/optimizers.hpp>
#include <penstock/parallel/workers.hpp>
#include <penstock/zero/config/config.hpp>
#include <penstock/zero/engine/update_segment.hpp>
#include "swap/runtime_internals.hpp"
#include "zero/layout/shard_layout.hpp"

#include <functional>
#include <span>
#include <vector>

namespace penstock::zero {

class CustomUpdate;
class DeviceUpdate;
class HostView;
class MuonUpdate;

/// The optimizer states of one rank in tiles. One pass unscales, clips, runs the optimizer and writes the 16-bit
/// parameter; here on the CPU, by CustomUpdate if it is a function of the caller, by MuonUpdate if it is a matrix's, by
/// DeviceUpdate on the device. Each block of a tile that is kept on disk is verified before its update and sealed after
/// it.
///
/// restore() and visit_states() are used by the trainer's thread, and block; the other members by the mover and, for
/// update_tile(), verify() and seal(), a worker, one at a time.
class OffloadedOptimizer {
 public:
  struct Options {
    swap::Runtime* runtime = nullptr;
    DeviceUpdate* device = nullptr;        ///< copies what is kept on the device
    const CustomUpdate* custom = nullptr;  ///< for a layout of a custom optimizer
    const MuonUpdate* muon = nullptr;      ///< for flats of matrices
    parallel::Workers* workers = nullptr;
    ElementNames names;  ///< of this rank's shard
    DType parameter_dtype = DType::bf16;
    DType gradient_dtype = DType::bf16;
    cpu_adam::TileLayout layout, matrix_layout;  ///< the second is that of flats of matrices
    std::uint32_t tiles_ahead = 4;               ///< maximum number of tiles read ahead within a flat
    std::uint32_t tiles_ahead_next_flats = 4;    ///< the same if some of them belong to later flats
    std::uint32_t tile_stores_max = 4;           ///< maximum number of tiles being written during an update
    Integrity integrity = Integrity::checksum;
    bool checks_finite = true;  ///< masters that become non-finite are an error
    bool shards_on_disk =
        false;  ///< parameter shards are on disk: a CPU computes their checksums after the update
  };
  explicit OffloadedOptimizer(const Options& options) : options_(options) {}

  /// Writes one state of elements [first, first + values.size()) of the flat into `values`, which contains zeros.
  using StateSource = std::function<Result<void>(const FlatLayout& flat, cpu_adam::StateKind kind,
                                                 ElementCount first, std::span<float> values)>;
  /// Sets all states from `source`, records that they are of step `step`, and writes the parameter shards. `rank`'s
  /// slice only. Of a frozen flat asks for the masters alone.
  Result<void> restore(std::span<FlatState> flats, std::uint32_t rank, std::uint64_t step,
                       const StateSource& source);

  struct Step {
    std::uint64_t number = 0;  ///< the step number of the tiles after the update
    float gradient_factor = 1;
    std::vector<GroupHyperparameters> settings;      ///< by group
    std::vector<cpu_adam::Hyperparameters> configs;  ///< the same for the optimizer's formula, if it has one
    /// Judges a flat's gradient before its update; none: all were judged together. Errors: as OptimizerStep::begin().
    std::function<Result<void>(const FlatState& flat)> check_gradient;
  };
  /// Updates one tile from the leased bytes of its state, of its flat's shard and of the flat's gradient.
  ///
  /// Errors, after which the tile is updated in part: corrupted and non_finite, naming tile and block; those of
  /// CustomUpdate.
  Result<void> update_tile(const FlatState& flat, const TileState& tile, HostSpan state,
                           const Step& step) const;
  /// For a tile that the device updates: whether the blocks are those that were sealed, if they are from disk.
  ///
  /// Errors: corrupted, naming the tile.
  Result<void> verify(const TileState& tile, ConstHostSpan state) const;
  /// After the update: seals the blocks of a tile that has_checksums().
  void seal(const TileState& tile, ConstHostSpan state, const Step& step) const;
  /// Records that the tile is of step `step`: by the mover, which reads it, once no worker uses the tile.
  void stamp(TileState& tile, std::uint64_t step) const;
  /// Whether verify() and seal() compute checksums.
  [[nodiscard]] bool has_checksums(const TileState& tile) const {
    return tile.place == TilePlace::disk && options_.integrity == Integrity::checksum;
  }
  /// For a tile with a master or a second moment that is not finite in `block`. Errors: non_finite, naming the
  /// parameters of the block; none without Options::checks_finite.
  [[nodiscard]] Result<void> check_finite(const TileState& tile, std::uint64_t block) const;
  /// The tile with its parts of the flat's shard and gradient.
  [[nodiscard]] cpu_adam::OptimizerTile view(const TileState& tile, HostSpan state, HostSpan shard,
                                             ConstHostSpan gradient) const;
  /// Records that the flat, which has no gradient, is of step `step` too.
  void advance(FlatState& flat, std::uint64_t step) const;
  /// Records that the flat's parameters are of step `step`.
  void stamp(FlatState& flat, std::uint64_t step) const;
  [[nodiscard]] bool is_at(const TileState& tile, std::uint64_t step) const;
  /// The tiles of the flat that are not of step `step` yet.
  [[nodiscard]] std::size_t tiles_before(const FlatState& flat, std::uint64_t step) const;
  /// Checks that the parameters are of the same step as the tiles, if they are a part of the masters. Errors:
  /// corrupted.
  [[nodiscard]] Result<void> check_same_step(const FlatState& flat) const;
  /// Whether an update reads the parameters: they are a part of the masters.
  [[nodiscard]] bool reads_parameters() const { return cpu_adam::shares_parameter(options_.layout.format); }
  [[nodiscard]] const Options& options() const { return options_; }

  /// Calls `visit` with each of `kinds` of each block of each tile, in order; of a frozen flat with the masters, which
  /// are its parameters. An error of `visit` ends it.
  using StateVisitor = std::function<Result<void>(const FlatState& flat, cpu_adam::StateKind kind,
                                                  ElementCount first, std::span<const float> values)>;
  Result<void> visit_states(std::span<FlatState> flats, std::span<const cpu_adam::StateKind> kinds,
                            const StateVisitor& visit);

 private:
  [[nodiscard]] Result<cpu_adam::UpdateOutcome> run(const FlatState& flat, const TileState& tile,
                                                    const cpu_adam::OptimizerTile& view, const Step& step,
                                                    const cpu_adam::UpdateExecution& execution) const;
  [[nodiscard]] cpu_adam::TileLayout layout_of(const FlatLayout& flat) const {
    return flat.has_matrices() ? options_.matrix_layout : options_.layout;
  }
  [[nodiscard]] swap::RuntimeInternals internals() const { return swap::RuntimeInternals(*options_.runtime); }
  [[nodiscard]] Result<HostView> host_view(const FlatState& flat, swap::Access access) const;
  [[nodiscard]] Result<HostView> host_view(const TileState& tile, swap::Access access) const;
  /// The elements of a tile from `first` on that one piece holds, without a gradient; without parameters if `shard` is
  /// null.
  [[nodiscard]] Result<cpu_adam::OptimizerTile> piece_of(const TileState& tile, ElementCount first,
                                                         HostView& state, HostView* shard) const;
  /// Of one piece, by kind.
  using StateValues = std::array<std::vector<float>, cpu_adam::all_states.size()>;
  Result<void> restore_tile(const FlatState& flat, TileState& tile, std::uint32_t rank, std::uint64_t step,
                            const StateSource& source, HostView& shard, StateValues& values);
  Result<void> visit_blocks(const FlatState& flat, const TileState& tile, ElementCount begin,
                            const cpu_adam::OptimizerTile& piece, std::span<const cpu_adam::StateKind> kinds,
                            const StateVisitor& visit) const;
  [[nodiscard]] std::uint64_t step_of(const TileState& tile) const;

  Options options_;
};

}  // namespace penstock::zero
