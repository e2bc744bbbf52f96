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
  /// Added to the root of v. A value below 2^-64 (5.4e-20) is replaced by 2^-64, which changes no root of 2^-39 or
  /// more. With 0, an element whose gradients have all been 0 therefore changes by its weight decay only. (In
  /// DeepSpeed and PyTorch it becomes NaN.)
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;
  AdamDecay decay_mode = AdamDecay::decoupled;  ///< none: weight_decay has no effect
  bool bias_correction = true;
};

/// The elements of a tile from the previous segment's end (or the tile's start) up to `end`, and their
/// hyperparameters.
struct AdamSegment {
  ElementCount end;
  AdamConfig config;
};

/// One tile in host memory, with its gradient and its output, the parameter. Spans are owned by the caller, do not
/// overlap, and are aligned to their element (`state` to state_alignment). Spans that start and end at cache lines
/// are fastest; the result does not depend on the alignment.
struct AdamTile {
  HostSpan state;  ///< tile_bytes(format, elements), in blocks; see state_format.hpp
  ConstHostSpan gradient;
  /// The master, rounded to nearest. Ties are rounded to even, but in split_q8 away from zero. Format fp32: written
  /// only. Format moments: read and written, in fp32; it is the master. Split formats: read and written, in bf16; the
  /// state has the remainder, so that both together give the master.
  HostSpan parameter;
  ElementCount elements;
  DType gradient_dtype = DType::bf16;
  DType parameter_dtype = DType::bf16;
  StateFormat format = StateFormat::fp32;
  /// The number that identifies the tile's first element; element i has the number first_element + i. Each element of
  /// the model has a number of its own, also across ranks. With the step it seeds the stochastic rounding of
  /// split_bf16 and split_q8. Dividing a tile at a block boundary does not change the result.
  std::uint64_t first_element = 0;
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
struct AdamExecution {
  parallel::Workers* workers = nullptr;  ///< null: runs on the calling thread
  BlockObserver* observer = nullptr;
  Isa isa = best_isa().isa;
  /// Writes the parameters with non-temporal stores, which avoid read-for-ownership: for parameters that no CPU
  /// reads soon. Has an effect only in format fp32 with parameters at a multiple of 64 B.
  bool nontemporal_parameter = false;
};

struct AdamOutcome {
  std::size_t blocks_updated = 0;
  std::optional<std::size_t> first_rejected_block;  ///< before_update() returned false
  /// The first updated block with a master or a second moment that is now not finite.
  std::optional<std::size_t> first_non_finite_block;
};

/// Updates a tile by one step in a single pass, block by block: unscale, decay, update m, v and master, write the
/// parameter. The arithmetic is fp32; every operation is rounded once and none is fused. Finite results have the
/// same bits for every Isa, thread count, division into tiles (between blocks) and alignment, and for the CUDA
/// kernel. Rounds to nearest and keeps subnormals, whatever floating-point mode the caller has set.
///
///     AdamTile tile{.state = state, .gradient = gradient, .parameter = parameter, .elements = count};
///     initialize_tile(initial_values, DType::fp32, tile).value();                     // step 0
///     AdamOutcome outcome = adam_step({.learning_rate = 1e-3f}, /*step=*/1, /*gradient_factor=*/1, tile).value();
///
/// Returns when the tile is updated. A tile does not contain its step number: the caller records it.
/// Errors, all before anything is written: invalid_argument, naming the argument: step 0; a beta outside [0, 1),
/// a negative learning rate, epsilon or weight decay, a value that is not finite; lengths that do not fit
/// `elements`; spans that overlap or are misaligned; a parameter dtype that the format does not take.
/// unsupported: an Isa for which is_runnable() is false.
[[nodiscard]] Result<AdamOutcome> adam_step(const AdamConfig& config, std::uint64_t step,
                                            float gradient_factor, const AdamTile& tile,
                                            const AdamExecution& execution = {});

/// The same for a tile whose elements differ in hyperparameters. Segments are in order and the last one ends with
/// the tile. An element's result depends only on the hyperparameters of its own segment. Exception: in split_q8, 256
/// consecutive elements share scales, so that those of another segment in the same 256 elements affect it too.
///
/// Errors: those above, naming the segment; invalid_argument, for a segment without elements, or when the last one
/// does not end with the tile.
[[nodiscard]] Result<AdamOutcome> adam_step_in_segments(std::span<const AdamSegment> segments,
                                                        std::uint64_t step, float gradient_factor,
                                                        const AdamTile& tile,
                                                        const AdamExecution& execution = {});

/// Fills a tile for step 0: master = initial, m = v = 0; and writes the parameter. tile.gradient is ignored.
/// `initial` holds tile.elements elements of `initial_dtype` and does not overlap state or parameter.
///
/// Returns when the tile is filled. Errors: as adam_step.
Result<void> initialize_tile(ConstHostSpan initial, DType initial_dtype, const AdamTile& tile,
                             parallel::Workers* workers = nullptr);

/// The states of a tile's elements in fp32, one value an element. Spans are owned by the caller.
struct AdamStates {
  std::span<const float> master, first_moment, second_moment;
};
/// Fills a tile with `states` and writes the parameter; tile.gradient is ignored. States that read_states() returned
/// for a tile of this format are restored exactly: read_states() returns them again, and every later step has the
/// same result (the encoded bytes of a split_q8 tile may differ). A moment that the format cannot represent is
/// rounded to nearest.
///
/// Returns when the tile is filled. Errors, before anything is written: as adam_step; invalid_argument, for a span that
/// does not hold tile.elements values, a moment that is not finite or a negative second moment.
Result<void> restore_tile(const AdamStates& states, const AdamTile& tile,
                          parallel::Workers* workers = nullptr);

/// Writes one state of elements [first, first + values.size()) of a tile to `values`. tile.gradient is ignored;
/// tile.parameter is read for the masters of split formats only.
///
/// Errors: as adam_step; invalid_argument, for elements beyond the tile's end.
Result<void> read_states(const AdamTile& tile, StateKind kind, ElementCount first, std::span<float> values);

}  // namespace penstock::cpu_adam
