#pragma once

#include <sys/types.h>
#include <filesystem>
#include <optional>

namespace penstock::tiers {

/// The sysfs directory of the drive that contains block device `device` (st_dev): for a partition its disk, for a
/// mapping (LVM, RAID) its first disk. Nothing if there is no block device, as for a tmpfs. `sysfs` may be a copy from
/// another machine.
[[nodiscard]] std::optional<std::filesystem::path> drive_of(dev_t device,
                                                            const std::filesystem::path& sysfs = "/sys");

}  // namespace penstock::tiers
