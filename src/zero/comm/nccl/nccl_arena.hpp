#pragma once

#include "zero/comm/nccl/nccl_library.hpp"

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>

#include <memory>

namespace penstock::zero {

/// Memory of the CUDA device `ordinal` that NCCL can register, see NcclConnection::register_arena(). Its last owner
/// frees it. `nccl` outlives it.
///
/// Errors: those of NCCL, with `size`.
[[nodiscard]] Result<std::shared_ptr<const DeviceSpan>> allocate_nccl_arena(const NcclLibrary& nccl,
                                                                            int ordinal, ByteCount size);

}  // namespace penstock::zero
