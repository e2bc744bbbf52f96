#pragma once

#include <penstock/base/units.hpp>

#include <cstdint>

namespace penstock::swap {

/// Of a tensor in a trace, so that the bytes of four million tensors can be added up.
inline constexpr ByteCount trace_tensor_bytes_max(std::uint64_t{1} << 42);

}  // namespace penstock::swap
