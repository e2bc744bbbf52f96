#include <penstock/tiers/store/tensor.hpp>

#include <array>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace penstock::tiers {

std::uint64_t TensorKey::seed() const {
  const std::array<std::uint64_t, 6> fields = {owner, unit, group, static_cast<std::uint64_t>(role),
                                               first, count};
  return XXH3_64bits(fields.data(), sizeof fields);
}

std::string to_string(const TensorKey& key) {
  return "owner " + std::to_string(key.owner) + ", unit " + std::to_string(key.unit) + ", group " +
         std::to_string(key.group) + ", " + std::string(to_string(key.role)) + ", elements " +
         std::to_string(key.first) + " to " + std::to_string(key.first + key.count);
}

}  // namespace penstock::tiers
