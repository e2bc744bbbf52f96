#pragma once

#include <sys/types.h>
#include <filesystem>
#include <optional>

namespace penstock::tiers {

/// The drive behind block device `device` (stat's st_dev), as its directory in sysfs: of a partition the disk, of a
/// mapping (LVM, RAID) its first disk. Nothing where no block device is behind it, as in a tmpfs. `sysfs` may be a
/// directory that describes another machine.
[[nodiscard]] std::optional<std::filesystem::path> drive_of(dev_t device,
                                                            const std::filesystem::path& sysfs = "/sys");

}  // namespace penstock::tiers
