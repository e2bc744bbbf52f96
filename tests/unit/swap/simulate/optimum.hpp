#pragma once

#include <penstock/swap/access_trace.hpp>

namespace penstock::swap::test {

/// The least bytes, read and written, with which any decisions can serve the uses of the trace, one tensor after the
/// other, with `budget` bytes of memory, if all tensors are on disk at first and what was written is on disk at last.
/// By trying all: for few small tensors. Shares no code with the library's decisions.
[[nodiscard]] ByteCount optimum(const AccessTrace& trace, ByteCount budget);

}  // namespace penstock::swap::test
