#pragma once

#include <penstock/base/span.hpp>

#include <optional>

namespace penstock::tiers {

/// Bytes of `memory` that are on pages of 2 MiB, as the kernel counts them. `memory`: one whole mapping.
[[nodiscard]] ByteCount bytes_on_huge_pages(HostSpan memory);

/// The two ways to ask. The first takes time for `memory` alone and needs Linux 6.7; nullopt where the kernel refuses.
/// The second takes time for each page of the process whose address is lower, too.
[[nodiscard]] std::optional<ByteCount> scan_huge_pages(HostSpan memory);
[[nodiscard]] ByteCount huge_pages_in_smaps(HostSpan memory);

}  // namespace penstock::tiers
