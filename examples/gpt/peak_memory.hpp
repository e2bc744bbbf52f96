#pragma once

#include <penstock/base/units.hpp>

namespace gpt {

/// Resets peak_resident_memory() to the current value. Has no effect where the kernel does not allow it.
void reset_peak_resident_memory();

/// The peak resident memory of this process (VmHWM of /proc/self/status).
[[nodiscard]] penstock::ByteCount peak_resident_memory();
/// The resident memory of this process now.
[[nodiscard]] penstock::ByteCount resident_memory();
/// The address space that this process uses now.
[[nodiscard]] penstock::ByteCount virtual_memory();

}  // namespace gpt
