#include "zero/engine/digest.hpp"

#include <memory>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace penstock::zero {

namespace {

std::string to_hex(std::span<const unsigned char> bytes) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

}  // namespace

Result<std::string> compute_digest(EngineContext& context, OffloadedOptimizer& optimizer) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(), &XXH3_freeState);
  XXH3_128bits_reset(hash.get());
  PENSTOCK_TRY(optimizer.visit_masters(context.flats, [&](std::span<const float> masters) {
    XXH3_128bits_update(hash.get(), masters.data(), masters.size_bytes());
  }));

  XXH128_canonical_t mine;
  XXH128_canonicalFromHash(&mine, XXH3_128bits_digest(hash.get()));
  std::vector<XXH128_canonical_t> of_ranks(context.communicator.size());
  PENSTOCK_TRY(context.exchange(ConstHostSpan(std::span(&mine, 1)), HostSpan(std::span(of_ranks))));
  XXH128_canonical_t all;
  XXH128_canonicalFromHash(&all, XXH3_128bits(of_ranks.data(), of_ranks.size() * sizeof(of_ranks[0])));
  return to_hex(all.digest);
}

}  // namespace penstock::zero
