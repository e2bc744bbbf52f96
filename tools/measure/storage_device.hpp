#pragma once

#include <penstock/base/result.hpp>

#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace penstock::measure {

/// The block device under a directory, as far as the kernel tells.
struct StorageDevice {
  std::string id;     ///< equal for directories on one drive; on one file system where no drive is known
  std::string name;   ///< "nvme0n1", "vda"; empty where no block device is behind the directory
  std::string model;  ///< the drive's own name, else its driver's; may be empty
  /// Why its figures may be the host's rather than a drive's; none for a drive of this machine's own.
  std::optional<std::string> virtual_because;
  /// Why direct I/O on it still ends in this machine's memory; none where it does not.
  std::optional<std::string> cached_because;
};

[[nodiscard]] StorageDevice describe_storage(const std::filesystem::path& directory);

/// "ext4 on vda (virtio_blk)".
[[nodiscard]] std::string to_string(const StorageDevice& device, const std::filesystem::path& directory);

/// Why what is read and written under `directory` is the page cache's and says nothing about a disk; none
/// where the page cache is bypassed. Makes a scratch file there, without a name.
///
/// Errors: those of FileSystem::create_scratch.
[[nodiscard]] Result<std::optional<std::string>> page_cache_because(const std::filesystem::path& directory);

/// Whether `each` more bytes can be written under every one of `directories`, some of which may share a file
/// system.
///
/// Errors: no_space, naming the directories that share it; those of FileSystem::free_space.
[[nodiscard]] Result<void> check_free_space(std::span<const std::filesystem::path> directories,
                                            ByteCount each);

}  // namespace penstock::measure
