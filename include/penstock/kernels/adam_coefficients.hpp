#pragma once

#include <cstdint>

namespace penstock::kernels {

/// Elements of a tile that stand side by side under one checksum; the last block of a tile may be shorter.
/// Reaches disk.
inline constexpr std::uint64_t adam_block_elements = 16384;

/// Where weight decay enters: in the gradient (L2), or on the parameter (Loshchilov & Hutter 2019). A decay of
/// zero is `none`, so that it costs nothing and adds no 0 × inf.
enum class AdamDecay : std::uint8_t { none, l2, decoupled };

/// One step of Adam as fp32 factors, each computed in double on the host and rounded once, so that CPU and
/// GPU multiply by the same bits. cpu_adam makes them from an AdamConfig.
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
