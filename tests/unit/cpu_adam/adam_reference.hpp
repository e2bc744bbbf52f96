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

  struct Scale {
    double p = 0, m = 0, v = 0;
  };
  /// The largest magnitude that p had, and that m and v and the two terms of their sums had: what golden/README.md
  /// counts ULPs of.
  Scale scale;
  /// The largest magnitude of any term: also of the change of p, and of gradients before L2 decay is added. Where terms
  /// cancel, it is larger than `scale`, and so are rounding errors.
  Scale scale_of_terms;

  void step(const AdamConfig& config, std::uint64_t number, double gradient) {
    const double t = static_cast<double>(number), lr = config.learning_rate;
    const double beta1 = config.beta1, beta2 = config.beta2, decay = config.weight_decay;
    double g = gradient;
    if (config.decay_mode == AdamDecay::l2) g += decay * p;
    raise(scale, {std::abs(p), std::max(std::abs(beta1 * m), std::abs((1 - beta1) * g)),
                  std::max(beta2 * v, (1 - beta2) * g * g)});
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    const double m_hat = config.bias_correction ? m / (1 - std::pow(beta1, t)) : m;
    const double v_hat = config.bias_correction ? v / (1 - std::pow(beta2, t)) : v;
    const double update = lr * m_hat / (std::sqrt(v_hat) + config.epsilon);
    if (config.decay_mode == AdamDecay::decoupled) p -= lr * decay * p;
    p -= update;
    raise(scale, {std::abs(p), std::abs(m), v});
    raise(scale_of_terms, scale);
    raise(scale_of_terms,
          {std::abs(update), std::abs((1 - beta1) * gradient), (1 - beta2) * gradient * gradient});
  }

 private:
  static void raise(Scale& scale, const Scale& by) {
    scale = {std::max(scale.p, by.p), std::max(scale.m, by.m), std::max(scale.v, by.v)};
  }
};

/// The distance of `got` from `wanted` in fp32 ULPs of a value of magnitude `scale`.
inline double ulps(double got, double wanted, double scale) {
  const double magnitude = std::max(std::abs(scale), 0x1p-126);
  return std::abs(got - wanted) / std::ldexp(1.0, std::ilogb(magnitude) - 23);
}

}  // namespace penstock::test
