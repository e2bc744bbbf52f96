#pragma once

#include <penstock/base/result.hpp>

#include <cstdint>

namespace penstock::zero {

/// The number of a rank in the data-parallel group and on its machine.
struct RankIdentity {
  std::uint32_t rank = 0, ranks = 1;
  std::uint32_t local_rank = 0,
                local_ranks = 1;  ///< local ranks share the machine's host budget and its disks

  /// For ranks that are all on this machine, such as threads of one process.
  [[nodiscard]] static RankIdentity local(std::uint32_t rank, std::uint32_t ranks) {
    return {.rank = rank, .ranks = ranks, .local_rank = rank, .local_ranks = ranks};
  }
  /// Errors: invalid_argument, for a count of zero or a rank that is not below its count.
  [[nodiscard]] Result<void> validate() const;
};

}  // namespace penstock::zero
