#pragma once

#include <penstock/base/units.hpp>

namespace gpt {

/// From now on peak_resident_memory() counts anew. Where the kernel does not allow that, it keeps counting.
void reset_peak_resident_memory();

/// The most memory of this process that was resident at one time (VmHWM of /proc/self/status).
[[nodiscard]] penstock::ByteCount peak_resident_memory();

}  // namespace gpt
