#pragma once

#include <penstock/base/result.hpp>
#include <penstock/cpu_adam/optimizer_tile.hpp>
#include <penstock/kernels/variants.hpp>

#include <cstdint>
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

// Adam's names of the types of optimizer_tile.hpp.
using AdamTile = OptimizerTile;
using AdamExecution = UpdateExecution;
using AdamOutcome = UpdateOutcome;
using AdamStates = TileStates;

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
/// `elements`; spans that overlap or are misaligned; a parameter dtype that the format does not take; a tile of another
/// optimizer. unsupported: an Isa for which is_runnable() is false.
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

/// Adam's values in arrays of their own, of equal length, as PyTorch and DeepSpeed keep them. Spans are owned by the
/// caller, do not overlap, and are aligned to their elements.
struct AdamArrays {
  HostSpan parameter;  ///< the master
  ConstHostSpan gradient;
  HostSpan first_moment, second_moment;
  DType parameter_dtype = DType::fp32, gradient_dtype = DType::fp32, moment_dtype = DType::fp32;
};

/// Updates arrays by one step. The arithmetic is that of adam_step() on a tile; parameters and moments of 16 bits are
/// rounded to nearest. With fp32 arrays the bits are those of a tile in format moments. `execution`: its observer is
/// not called.
///
/// Errors, all before anything is written: those of adam_step(), naming the array.
[[nodiscard]] Result<AdamOutcome> adam_step_in_arrays(const AdamConfig& config, std::uint64_t step,
                                                      float gradient_factor, const AdamArrays& arrays,
                                                      const AdamExecution& execution = {});

}  // namespace penstock::cpu_adam
