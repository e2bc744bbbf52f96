#pragma once

#include "zero/estimate/model_presets.hpp"

#include <penstock/base/dtype.hpp>
#include <penstock/base/result.hpp>
#include <penstock/base/units.hpp>

#include <cstdint>

namespace penstock::zero::estimate {

/// The activations of `tokens` tokens, as the modules of Hugging Face transformers keep them for the backward in
/// PyTorch, with fused attention (SDPA), which keeps no matrix of tokens by tokens, and without dropout. The rotary
/// tables and the temporaries of an operation are not counted.
struct ActivationSizes {
  ByteCount block;       ///< that a block keeps, unless its backward repeats its forward
  ByteCount checkpoint;  ///< a block's input, from which its forward is repeated
  ByteCount head;        ///< of the last norm, the head and the loss at their peak
};
[[nodiscard]] ActivationSizes activations_of(const ModelShape& shape, DType dtype, std::uint64_t tokens);

/// Which blocks repeat their forward in the backward.
struct Recomputation {
  std::uint64_t blocks = 0;
  std::uint64_t kept =
      0;            ///< the last ones, which keep their activations: a backward has freed these when it needs
                    ///< room to repeat a forward
  ByteCount peak;   ///< of all activations of a micro-batch
  ByteCount room;   ///< that they may take
  ByteCount least;  ///< the peak if all blocks repeat their forward

  /// The part of the blocks' forwards that is repeated.
  [[nodiscard]] double repeated() const;
};
/// Keeps the activations of as many blocks as fit into what `taken` bytes leave of a device's `memory`. With n blocks,
/// A and C bytes for what a block keeps and for its input, and L for the head, k kept ones take at most
/// max(k A + (n - k) C + L, (n - k) C + A) bytes: at the end of the forward, and when the first forward is repeated.
///
/// Errors: budget_too_small, if not even the inputs of all blocks and the activations of one fit.
[[nodiscard]] Result<Recomputation> plan_recomputation(const ActivationSizes& sizes, std::uint64_t blocks,
                                                       ByteCount memory, ByteCount taken = {});

}  // namespace penstock::zero::estimate
