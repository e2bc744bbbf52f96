#pragma once

#include <penstock/base/units.hpp>

#include <cstddef>
#include <mutex>

namespace penstock::tiers {

/// Held from check_memory() until the memory that was checked is populated: two ranks that allocate at the same time
/// must not both count the same memory as available.
[[nodiscard]] std::mutex& population_mutex();

/// Makes the kernel give pages to [address, address + size), so that later page faults cannot fail. The contents of
/// pages that it has given before stay or become zero. False, with errno, when it refuses.
[[nodiscard]] bool populate(std::byte* address, ByteCount size);

}  // namespace penstock::tiers
