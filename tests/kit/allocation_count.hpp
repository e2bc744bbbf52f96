#pragma once

#include <cstdint>

namespace penstock::test {

/// How often operator new was called so far, on any thread.
[[nodiscard]] std::uint64_t allocation_count();

}  // namespace penstock::test
