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

using kernels::AdamDecay;

/// Hyperparameters of one optimizer group at one step.
struct AdamConfig {
  float learning_rate = 1e-3f;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;
  AdamDecay decay_mode = AdamDecay::decoupled;  ///< none: weight_decay has no effect
  bool bias_correction = true;
};

/// Elements of a tile from the end of the segment before, and their hyperparameters.
struct AdamSegment {
  ElementCount end;
  AdamConfig config;
};

/// One tile in host memory, with its gradient and the parameter that comes out. Spans are owned by the
/// caller, do not overlap, and are aligned to their element (`state` to state_alignment). A whole number of
/// cache lines is fastest, anything else is equal in bits.
struct AdamTile {
  HostSpan state;  ///< tile_bytes(format, elements), in blocks; see state_format.hpp
  ConstHostSpan gradient;
  /// fp32: written, the master rounded to nearest even. The split formats: the upper half of the master,
  /// bf16, read and written; halfway cases go up in magnitude.
  HostSpan parameter;
  ElementCount elements;
  DType gradient_dtype = DType::bf16;
  DType parameter_dtype = DType::bf16;
  StateFormat format = StateFormat::fp32;
  /// The number of the tile's first element among all that one trainer updates. It and the step decide how
  /// split_bf16 and split_q8 round, so that a tile cut in two between blocks gives the same bits.
  std::uint64_t first_element = 0;
};

/// Sees each block of a tile's state just before and just after its update, on the worker that owns it and
/// while it is in that core's L2: the place to verify and to hash. Called from several threads at once, for
/// different blocks.
class BlockObserver {
 public:
  BlockObserver() = default;
  BlockObserver(const BlockObserver&) = delete;
  BlockObserver& operator=(const BlockObserver&) = delete;
  virtual ~BlockObserver() = default;

  /// `block` counts from the tile's start. False: this block is neither updated nor seen again, and its
  /// parameters are not written.
  virtual bool before_update(std::size_t block, ConstHostSpan bytes) noexcept = 0;
  virtual void after_update(std::size_t block, ConstHostSpan bytes) noexcept = 0;
};

/// How a step is run; none of it changes a bit of the result.
struct AdamExecution {
  parallel::Workers* workers = nullptr;  ///< null: inline on the caller
  BlockObserver* observer = nullptr;
  Isa isa = best_isa().isa;
  /// Writes the parameters with non-temporal stores, which avoids read-for-ownership: for parameters that no CPU
  /// reads soon. Of effect in format fp32, for parameters at multiples of 64 B.
  bool nontemporal_parameter = false;
};

struct AdamOutcome {
  std::size_t blocks_updated = 0;
  std::optional<std::size_t> first_rejected_block;  ///< the observer said no
  /// Updated, and now holds a master or a second moment that is not finite.
  std::optional<std::size_t> first_non_finite_block;
};

/// Updates a tile by one step in a single pass, block by block: unscale, decay, update m, v and master, emit
/// the parameter. fp32 arithmetic in which every operation is rounded once and none is fused: equal bits for
/// every Isa, thread count, cut into tiles (between blocks) and alignment, and for the CUDA kernel, of what
/// is finite. parallel::Workers run in round to nearest with subnormals, whatever mode the caller has set.
///
///     AdamTile tile{.state = state, .gradient = gradient, .parameter = parameter, .elements = count};
///     initialize_tile(initial_values, DType::fp32, tile).value();                     // step 0
///     AdamOutcome outcome = adam_step({.learning_rate = 1e-3f}, /*step=*/1, /*gradient_factor=*/1, tile).value();
///
/// Blocks. The step number is not checked against the tile: that is its owner's.
/// Errors, all before anything is written: invalid_argument, naming the argument, as adam_coefficients, and
/// for lengths that do not fit `elements`, spans that overlap or are misaligned, a parameter dtype that the
/// format does not take; unsupported, for an Isa that is_runnable denies.
[[nodiscard]] Result<AdamOutcome> adam_step(const AdamConfig& config, std::uint64_t step,
                                            float gradient_factor, const AdamTile& tile,
                                            const AdamExecution& execution = {});

/// The same for a tile whose elements differ in hyperparameters: segments in their order, of which the last
/// ends with the tile. Where they are cut changes no bit, but that a run of split_q8 has scales in common.
///
/// Errors: those above, naming the segment; invalid_argument, for a segment without elements, and where the
/// last does not end where the tile does.
[[nodiscard]] Result<AdamOutcome> adam_step_in_segments(std::span<const AdamSegment> segments,
                                                        std::uint64_t step, float gradient_factor,
                                                        const AdamTile& tile,
                                                        const AdamExecution& execution = {});

/// Fills a tile for step 0: master = initial, m = v = 0; and writes the parameter. `gradient` of the tile is
/// not looked at. `initial` holds tile.elements of `initial_dtype` and overlaps neither other span.
///
/// Blocks. Errors: as adam_step.
Result<void> initialize_tile(ConstHostSpan initial, DType initial_dtype, const AdamTile& tile,
                             parallel::Workers* workers = nullptr);

/// Writes masters [first, first + masters.size()) of a tile to `masters`; the gradient is not looked at, nor
/// the parameter in format fp32.
///
/// Errors: as adam_step; invalid_argument, beyond the tile's end.
Result<void> read_masters(const AdamTile& tile, ElementCount first, std::span<float> masters);

}  // namespace penstock::cpu_adam
