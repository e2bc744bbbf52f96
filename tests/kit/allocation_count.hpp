#pragma once

#include <cstdint>

namespace penstock::test {

/// The number of calls of operator new so far, on all threads.
[[nodiscard]] std::uint64_t allocation_count();

}  // namespace penstock::test
