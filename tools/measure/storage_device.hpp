#pragma once

#include <penstock/base/result.hpp>

#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace penstock::measure {

/// The block device of a directory, as far as the kernel reports it.
struct StorageDevice {
  std::string id;     ///< equal for directories on one drive, or on one file system if the drive is unknown
  std::string name;   ///< "nvme0n1", "vda"; empty if the directory is on no block device
  std::string model;  ///< the drive's model name, else its driver's name; may be empty
  /// Why the drive is virtual, so that its figures may be those of the host; none for a physical drive.
  std::optional<std::string> virtual_because;
  /// Why direct I/O on it still uses this machine's page cache; none if it does not.
  std::optional<std::string> cached_because;
};

[[nodiscard]] StorageDevice describe_storage(const std::filesystem::path& directory);

/// "ext4 on vda (virtio_blk)".
[[nodiscard]] std::string to_string(const StorageDevice& device, const std::filesystem::path& directory);

/// Why reads and writes under `directory` use the page cache, so that their figures do not measure a disk; none if
/// the page cache is bypassed. Creates an unnamed scratch file there.
///
/// Errors: those of FileSystem::create_scratch.
[[nodiscard]] Result<std::optional<std::string>> page_cache_because(const std::filesystem::path& directory);

/// Checks that `each` more bytes can be written under every one of `directories`, of which several may be on one file
/// system.
///
/// Errors: no_space, naming the directories on the full file system; those of FileSystem::free_space.
[[nodiscard]] Result<void> check_free_space(std::span<const std::filesystem::path> directories,
                                            ByteCount each);

}  // namespace penstock::measure
