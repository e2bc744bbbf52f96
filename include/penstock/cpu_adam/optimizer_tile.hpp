#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/cpu_adam/state_format.hpp>
#include <penstock/kernels/variants.hpp>
#include <penstock/parallel/workers.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace penstock::cpu_adam {

/// One tile in host memory, with its gradient and its output, the parameter. Spans are owned by the caller, do not
/// overlap, and are aligned to their element (`state` to state_alignment). Spans that start and end at cache lines
/// are fastest; the result does not depend on the alignment.
struct OptimizerTile {
  HostSpan state;  ///< tile_bytes(layout(), elements), in blocks; see state_format.hpp
  ConstHostSpan gradient;
  /// Format fp32: the master, rounded to nearest; written only. Split formats: the same in bf16, read and written; the
  /// state has the remainder, so that both together give the master. Ties are rounded to even, but in split_q8 away
  /// from zero. Formats moments and moments_bf16: read and written; it is the master, which a step rounds
  /// stochastically if it has 16 bits.
  HostSpan parameter;
  ElementCount elements;
  DType gradient_dtype = DType::bf16;
  DType parameter_dtype = DType::bf16;
  StateFormat format = StateFormat::fp32;
  /// The number that identifies the tile's first element; element i has the number first_element + i. Each element of
  /// the model has a number of its own, also across ranks. With the step it seeds the stochastic rounding of moments
  /// and of 16-bit masters. Dividing a tile at a block boundary does not change the result.
  std::uint64_t first_element = 0;
  Optimizer optimizer = Optimizer::adam;

  [[nodiscard]] TileLayout layout() const { return {format, optimizer}; }
};

/// Receives each block of a tile's state just before and just after its update, on the worker that updates it. The
/// block is in that core's L2 cache then, so that checksums can be verified and computed without reading memory
/// again. Called from several threads at once, for different blocks.
class BlockObserver {
 public:
  BlockObserver() = default;
  BlockObserver(const BlockObserver&) = delete;
  BlockObserver& operator=(const BlockObserver&) = delete;
  virtual ~BlockObserver() = default;

  /// `block` counts from the tile's start. Returning false rejects the block: it is not updated, its parameters are
  /// not written, and after_update() is not called for it.
  virtual bool before_update(std::size_t block, ConstHostSpan bytes) noexcept = 0;
  virtual void after_update(std::size_t block, ConstHostSpan bytes) noexcept = 0;
};

/// How a step is run. No field changes a bit of an updated block; an observer can prevent the update of a block.
struct UpdateExecution {
  parallel::Workers* workers = nullptr;  ///< null: runs on the calling thread
  BlockObserver* observer = nullptr;
  Isa isa = best_isa().isa;
  /// Writes the parameters with non-temporal stores, which avoid read-for-ownership: for parameters that no CPU
  /// reads soon. Has an effect only in format fp32 with parameters at a multiple of 64 B.
  bool nontemporal_parameter = false;
};

struct UpdateOutcome {
  std::size_t blocks_updated = 0;
  std::optional<std::size_t> first_rejected_block;  ///< before_update() returned false
  /// The first updated block with a master or a second moment that is now not finite, or a first moment of Lion or of
  /// a custom optimizer.
  std::optional<std::size_t> first_non_finite_block;
};

/// Fills a tile for step 0: master = initial, moments 0; and writes the parameter. tile.gradient is ignored.
/// `initial` holds tile.elements elements of `initial_dtype` and does not overlap state or parameter.
///
/// Returns when the tile is filled. Errors: as adam_step.
Result<void> initialize_tile(ConstHostSpan initial, DType initial_dtype, const OptimizerTile& tile,
                             parallel::Workers* workers = nullptr);

/// The states of a tile's elements in fp32, one value an element; empty for a state that the optimizer does not keep.
/// Spans are owned by the caller.
struct TileStates {
  std::span<const float> master, first_moment, second_moment;
  /// Moments of tiles that hold them in fp32 may be infinite or no numbers, as a step can leave them.
  bool may_be_non_finite = false;
};
/// Fills a tile with `states` and writes the parameter; tile.gradient is ignored. States that read_states() returned
/// for a tile of this format are restored exactly: read_states() returns them again, and every later step has the
/// same result (the encoded bytes of a split_q8 tile may differ). A moment, or a 16-bit master, that the format cannot
/// represent is rounded to nearest; one that becomes infinite is reported by the next step.
///
/// Returns when the tile is filled. Errors, before anything is written: as adam_step; invalid_argument, for a span that
/// does not hold tile.elements values (none, of a state that the optimizer does not keep), a moment that is not finite,
/// unless it may be so, or, unless is_custom(), a negative second moment.
Result<void> restore_tile(const TileStates& states, const OptimizerTile& tile,
                          parallel::Workers* workers = nullptr);

/// Writes one state of elements [first, first + values.size()) of a tile to `values`. tile.gradient is ignored;
/// tile.parameter is read for masters that share it only, see shares_parameter().
///
/// Errors: as adam_step; invalid_argument, for elements beyond the tile's end, or a state that the optimizer does not
/// keep.
Result<void> read_states(const OptimizerTile& tile, StateKind kind, ElementCount first,
                         std::span<float> values);

}  // namespace penstock::cpu_adam
