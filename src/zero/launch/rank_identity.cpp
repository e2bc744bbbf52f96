#include <penstock/zero/launch/rank_identity.hpp>

#include <string>

namespace penstock::zero {

Result<void> RankIdentity::validate() const {
  const auto below = [](const char* name, std::uint32_t number, std::uint32_t count) -> Result<void> {
    if (number < count) return ok();
    const std::string counted = std::string("identity.") + name + "s";
    if (count == 0)
      return Error::invalid_argument("Rank::create").object(counted).wanted("1 or more").got(0u);
    return Error::invalid_argument("Rank::create")
        .object(std::string("identity.") + name)
        .wanted("below " + std::to_string(count) + ", " + counted)
        .got(number);
  };
  PENSTOCK_TRY(below("rank", rank, ranks));
  PENSTOCK_TRY(below("local_rank", local_rank, local_ranks));
  return ok();
}

}  // namespace penstock::zero
