#pragma once

#include <penstock/kernels/variants.hpp>

namespace penstock::kernels {

/// The fp32 factors of one step of Adam; Lion and Adagrad use some of them. Each is computed in double on the host and
/// rounded once, so that CPU and GPU use the same bits. cpu_adam computes them from the hyperparameters.
struct AdamCoefficients {
  float gradient_factor;  ///< (1 / loss scale) × clip factor
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float denominator_factor;  ///< 1 / sqrt(1 - β2^t)
  float epsilon;
  float decay;        ///< l2: weight decay; decoupled: -learning rate × weight decay
  float step_factor;  ///< -learning rate / (1 - β1^t)
  AdamDecay decay_mode;
};

}  // namespace penstock::kernels
