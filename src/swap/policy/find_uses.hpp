#pragma once

#include "swap/policy/next_uses.hpp"
#include "tiers/store/tensor_store.hpp"

#include <penstock/swap/access_trace.hpp>

#include <vector>

namespace penstock::swap {

/// The uses of the trace, by tensors of the store. Where several have one name, those of the trace and
/// those of the store follow each other in the same order.
///
/// Precondition: the trace passes check_trace(). Errors: invalid_argument, for a tensor that is not there, or that has
/// another size.
[[nodiscard]] Result<std::vector<NextUses::Use>> find_uses(const AccessTrace& trace,
                                                           const tiers::TensorStore& store);

}  // namespace penstock::swap
