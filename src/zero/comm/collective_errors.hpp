#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero {

/// The error of a rank whose peer has started another collective than itself.
[[nodiscard]] Error different_collectives(std::uint32_t rank, std::string own, std::uint32_t peer,
                                          std::string other);

/// "rank 1, rank 3".
[[nodiscard]] std::string names_of(const std::vector<std::uint32_t>& ranks);

/// The error at the deadline of a collective or a recovery, `what`, to which `missing` did not come. Empty, where this
/// rank does not know who is missing.
[[nodiscard]] Error ranks_missing(std::string what, const std::string& missing, TimePoint deadline);

/// An error of a peer or of the job, with the collective of this rank that it has ended.
[[nodiscard]] Error ended(Error cause, const std::string& collective);

}  // namespace penstock::zero
