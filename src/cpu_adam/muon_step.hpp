#pragma once

#include "cpu_adam/matrix_product.hpp"

#include <penstock/cpu_adam/optimizer_tile.hpp>

namespace penstock::cpu_adam {

/// Hyperparameters of Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) for one matrix of R rows
/// and C columns. With g the gradient times gradient_factor, Nesterov's momentum, and 5 Newton-Schulz iterations:
///   m = m + (1 - momentum) (g - m),  u = m + (1 - momentum) (g - m)
///   X = u / (|u| + 1e-7), then 5 times:  A = X X',  B = -4.775 A + 2.0315 A A,  X = 3.4445 X + B X
///   p = p - learning_rate (weight_decay p + sqrt(max(1, R / C)) X)
/// |u| is the Frobenius norm. The coefficients, and the matrix's scale, are those of DeepSpeed too, which computes the
/// iterations in 16 bits; here they are in fp32.
struct MuonConfig {
  float learning_rate = 0.02f;
  float momentum = 0.95f;
  float weight_decay = 0.0f;
};

/// Bytes of memory for muon_step() of a matrix: twice the matrix in fp32, and two squares of its shorter side.
[[nodiscard]] ByteCount muon_scratch_bytes(MatrixShape shape);

/// Updates a tile that holds one whole matrix, and after it at most padding, whose states and parameters stay as they
/// are. In two passes over the tile, between which the momentum is orthogonalized: the observer gets each block's
/// before_update() in the first, and its after_update() in the second. A block that is rejected ends the step: the
/// momentum is changed in part then, nothing else. The result depends on the BLAS, not on the workers.
///
///     OptimizerTile tile{.state = state, .gradient = gradient, .parameter = parameter, .elements = rows * columns,
///                        .optimizer = Optimizer::muon};
///     UpdateOutcome outcome = muon_step({.learning_rate = 0.02f}, {rows, columns}, /*gradient_factor=*/1, tile,
///                                       scratch, **MatrixProduct::instance()).value();
///
/// `scratch` is the caller's memory of muon_scratch_bytes(shape), aligned to 64 bytes; its contents are undefined
/// before and after. Errors: those of optimizer_step() that concern the tile; invalid_argument, for a tile of another
/// optimizer or of fewer elements than the matrix, a side of 2^31 or more, and too little scratch; unsupported, for
/// 16-bit parameters that are the masters. Nothing has changed then.
[[nodiscard]] Result<UpdateOutcome> muon_step(const MuonConfig& config, MatrixShape shape,
                                              float gradient_factor, const OptimizerTile& tile,
                                              HostSpan scratch, const MatrixProduct& product,
                                              const UpdateExecution& execution = {});

}  // namespace penstock::cpu_adam
