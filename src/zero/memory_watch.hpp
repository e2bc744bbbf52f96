#pragma once

#include <penstock/base/units.hpp>

#include <cstdint>

namespace penstock::zero {

/// Chooses how much of its host memory a rank uses, so that others have the reserve. Pure.
struct MemoryWatch {
  ByteCount reserve;
  ByteCount least, budget;  ///< of the rank
  std::uint32_t ranks = 1;  ///< of the machine, which do the same

  /// What the rank uses next, after `limit`, where so much memory is available: less where the reserve is not, down to
  /// `least`; more, up to the budget, where an eighth of it is available beyond the reserve, half of which stays so.
  [[nodiscard]] ByteCount next(ByteCount limit, ByteCount available) const;
};

}  // namespace penstock::zero
