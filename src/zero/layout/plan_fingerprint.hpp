#pragma once

#include <penstock/zero/config/config.hpp>
#include <penstock/zero/layout/model_layout.hpp>

#include <cstdint>

namespace penstock::zero {

/// A hash, never 0, of everything that a memory plan depends on but the rank: an engine refuses the plan of another
/// configuration, layout or number of ranks. It is the same on all ranks. Settings that need no memory, such as the
/// learning rate, are not part of it.
[[nodiscard]] std::uint64_t plan_fingerprint(const Config& config, const ModelLayout& model,
                                             std::uint32_t ranks);

}  // namespace penstock::zero
