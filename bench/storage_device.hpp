#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace penstock::bench {

/// The block device under a directory, as far as the kernel tells.
struct StorageDevice {
  std::string name;   ///< "nvme0n1", "vda"; empty where no block device is behind the directory
  std::string model;  ///< the drive's own name, else its driver's; may be empty
  /// Why its figures may be the host's rather than a drive's; none for a drive of this machine's own.
  std::optional<std::string> virtual_because;
};

[[nodiscard]] StorageDevice describe_storage(const std::filesystem::path& directory);

}  // namespace penstock::bench
