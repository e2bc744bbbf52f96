#include "gpt/tier_bytes.hpp"

#include <array>

namespace gpt {

using penstock::ByteCount;
using penstock::tiers::Purpose;
using penstock::tiers::Tier;

std::vector<TierBytes> tier_bytes(std::span<penstock::swap::Runtime* const> ranks) {
  std::vector<TierBytes> all;
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    ByteCount kept;
    for (std::size_t p = 0; p < penstock::tiers::purpose_count; ++p) {
      TierBytes one{.tier = tier, .purpose = Purpose(p), .predicted = {}, .actual = {}, .used = {}};
      for (penstock::swap::Runtime* const rank : ranks) {
        const auto line = rank->ledger().line(tier, one.purpose);
        one.predicted += line.predicted;
        one.actual += line.peak;
      }
      if (one.purpose != Purpose::staging) kept += one.actual;
      if (!one.predicted.is_zero() || !one.actual.is_zero()) all.push_back(one);
    }
    if (tier != Tier::host || all.empty() || all.back().purpose != Purpose::staging) continue;
    ByteCount allocated;
    for (penstock::swap::Runtime* const rank : ranks) allocated += rank->host_memory().size();
    all.back().used = all.back().actual;
    all.back().actual = allocated - kept;
  }
  return all;
}

}  // namespace gpt
