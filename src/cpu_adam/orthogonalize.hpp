#pragma once

#include "cpu_adam/matrix_product.hpp"

#include <penstock/base/span.hpp>
#include <penstock/parallel/workers.hpp>

#include <span>

namespace penstock::cpu_adam {

/// The scratch of muon_step(): the matrix, a copy that the iterations alternate with, and two squares of its shorter
/// side.
struct MuonScratch {
  std::span<float> matrix, next, gram, polynomial;

  /// Precondition: `bytes` has at least muon_scratch_bytes(shape), aligned to float.
  static MuonScratch of(MatrixShape shape, HostSpan bytes);
};

/// Makes the singular values of scratch.matrix, whose Frobenius norm is `norm`, about 1 (0.7 to 1.2) by 5 Newton-Schulz
/// iterations; see MuonConfig. Returns the result, a part of the scratch. `workers` may be null.
[[nodiscard]] std::span<const float> orthogonalize(const MatrixProduct& product, MatrixShape shape,
                                                   double norm, MuonScratch scratch,
                                                   parallel::Workers* workers);

}  // namespace penstock::cpu_adam
