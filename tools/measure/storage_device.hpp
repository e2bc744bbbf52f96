#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>
#include <penstock/swap/runtime_options.hpp>

#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace penstock::measure {

/// A directory's file system and block device, as far as the kernel reports them.
struct StorageDevice {
  std::string id;  ///< equal for directories on one drive, or on one file system if the drive is unknown
  std::string file_system;  ///< its type: "ext4"
  std::string name;         ///< "nvme0n1", "vda"; empty if the directory is on no block device
  std::string model;        ///< the drive's model name, else its driver's name; may be empty
  /// Why the drive is virtual, so that its figures may be those of the host; none for a physical drive.
  std::optional<std::string> virtual_because;
  /// Why reads and writes use the page cache, so that their figures do not measure a disk; none if they bypass it.
  std::optional<std::string> cached_because;
};

/// Examines a directory, once and with an unnamed scratch file. Blocks, but not longer than `deadline`.
///
/// Errors: those of FileSystem::create_scratch; deadline_exceeded, where the file system does not answer.
[[nodiscard]] Result<StorageDevice> describe_storage(const std::filesystem::path& directory,
                                                     TimePoint deadline = swap::PathOptions().deadline);

/// "ext4 on vda (virtio_blk)".
[[nodiscard]] std::string to_string(const StorageDevice& device);

/// Checks that `each` more bytes can be written under every one of `directories`, of which several may be on one file
/// system. Blocks, but not longer than `deadline` for each directory.
///
/// Errors: no_space, naming the directories on the full file system; those of FileSystem::free_space;
/// deadline_exceeded, where a file system does not answer.
[[nodiscard]] Result<void> check_free_space(std::span<const std::filesystem::path> directories,
                                            ByteCount each,
                                            TimePoint deadline = swap::PathOptions().deadline);

}  // namespace penstock::measure
