#include "zero/engine/parameter_digest.hpp"

#include "base/splitmix64.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace penstock::zero {

ParameterDigest::ParameterDigest(const ModelLayout& model) {
  std::uint64_t number = 0;
  for (const UnitLayout& unit : model.units) {
    auto& seeds = seeds_.emplace_back();
    for (const ParameterLayout& parameter : unit.parameters) {
      seeds.push_back(XXH3_64bits_withSeed(parameter.name.data(), parameter.name.size(), number++));
    }
  }
}

void ParameterDigest::add(ParameterId id, std::uint64_t first, std::span<const float> values) {
  PENSTOCK_CHECK(first % chunk == 0);
  const std::uint64_t seed = seeds_[id.unit][id.index];
  for (std::uint64_t at = 0; at < values.size(); at += chunk) {
    const auto part = values.subspan(at, std::min<std::uint64_t>(chunk, values.size() - at));
    const std::uint64_t number = (first + at) / chunk;
    const XXH128_hash_t hash = XXH3_128bits_withSeed(part.data(), part.size_bytes(),
                                                     splitmix64_mix(seed + number * splitmix64_step));
    add({.low = hash.low64, .high = hash.high64});
  }
}

void ParameterDigest::add(const Sum& sum) {
  sum_.low += sum.low;
  sum_.high += sum.high + (sum_.low < sum.low ? 1 : 0);
}

std::string ParameterDigest::to_string() const {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint64_t half : {sum_.high, sum_.low}) {
    for (int shift = 60; shift >= 0; shift -= 4) text += digits[half >> shift & 15];
  }
  return text;
}

}  // namespace penstock::zero
