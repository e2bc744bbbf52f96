#pragma once

#include <penstock/cpu_adam/adam.hpp>

#include <algorithm>
#include <cmath>

namespace penstock::test {

using namespace cpu_adam;

/// Adam (Kingma & Ba 2015, algorithm 1) and AdamW (Loshchilov & Hutter 2019, algorithm 2) of one element, in
/// double and in the papers' form; independent of the kernels.
struct AdamReference {
  double p = 0, m = 0, v = 0;
  /// The largest magnitude met on the way to each: what rounding errors are to be compared with.
  double p_scale = 0, m_scale = 0, v_scale = 0;

  void step(const AdamConfig& config, std::uint64_t number, double gradient) {
    const double t = static_cast<double>(number), lr = config.learning_rate;
    const double beta1 = config.beta1, beta2 = config.beta2, decay = config.weight_decay;
    double g = gradient;
    if (config.decay_mode == AdamDecay::l2) g += decay * p;
    m_scale =
        std::max({m_scale, std::abs(beta1 * m), std::abs((1 - beta1) * g), std::abs((1 - beta1) * gradient)});
    m = beta1 * m + (1 - beta1) * g;
    v_scale = std::max({v_scale, beta2 * v, (1 - beta2) * g * g, (1 - beta2) * gradient * gradient});
    v = beta2 * v + (1 - beta2) * g * g;
    const double m_hat = config.bias_correction ? m / (1 - std::pow(beta1, t)) : m;
    const double v_hat = config.bias_correction ? v / (1 - std::pow(beta2, t)) : v;
    const double update = lr * m_hat / (std::sqrt(v_hat) + config.epsilon);
    p_scale = std::max({p_scale, std::abs(p), std::abs(update)});
    if (config.decay_mode == AdamDecay::decoupled) p -= lr * decay * p;
    p -= update;
    p_scale = std::max(p_scale, std::abs(p));
    m_scale = std::max(m_scale, std::abs(m));
    v_scale = std::max(v_scale, v);
  }
};

/// The distance of `got` from `wanted` in fp32 ULPs of a value of magnitude `scale`.
inline double ulps(double got, double wanted, double scale) {
  const double magnitude = std::max(std::abs(scale), 0x1p-126);
  return std::abs(got - wanted) / std::ldexp(1.0, std::ilogb(magnitude) - 23);
}

}  // namespace penstock::test
