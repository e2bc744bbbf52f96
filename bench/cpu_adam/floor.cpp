#include "floor.hpp"

#include <algorithm>

namespace penstock::bench {

#if defined(__x86_64__)
#define PENSTOCK_WIDEST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PENSTOCK_WIDEST
#endif

PENSTOCK_WIDEST
void scale_gradient(float* x, std::size_t count, float factor) {
  for (std::size_t i = 0; i < count; ++i) x[i] *= factor;
}

PENSTOCK_WIDEST
void scale_block(float* state, const std::uint16_t* gradient, std::uint16_t* parameter, std::size_t count,
                 float factor, std::uint16_t increment) {
  float* __restrict p = state;
  float* __restrict m = state + count;
  float* __restrict v = state + 2 * count;
  std::uint16_t* __restrict out = parameter;
  constexpr std::size_t strip = 64, ahead = 512;  // the kernel's own distance
  for (std::size_t first = 0; first < count; first += strip) {
    for (std::size_t i = first + ahead; i < first + ahead + strip; i += 16) {
      __builtin_prefetch(p + i, 1);
      __builtin_prefetch(m + i, 1);
      __builtin_prefetch(v + i, 1);
    }
    for (std::size_t i = first + ahead; i < first + ahead + strip; i += 32) {
      __builtin_prefetch(gradient + i, 0);
      __builtin_prefetch(out + i, 1);
    }
    const std::size_t last = std::min(first + strip, count);
    for (std::size_t i = first; i < last; ++i) {
      // Loads before stores: p[i], m[i] and v[i] are 64 KiB apart, and a load waits for an earlier store
      // whose address has the same low 12 bits.
      const float new_p = p[i] * factor, new_m = m[i] * factor, new_v = v[i] * factor;
      const auto new_out = static_cast<std::uint16_t>(gradient[i] + increment);
      p[i] = new_p;
      m[i] = new_m;
      v[i] = new_v;
      out[i] = new_out;
    }
  }
}

}  // namespace penstock::bench
