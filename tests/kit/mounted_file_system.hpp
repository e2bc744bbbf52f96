#pragma once

#include "kit/scratch_directory.hpp"

#include <filesystem>
#include <string>

namespace penstock::test {

/// A small file system of a given kind, mounted for a test and unmounted after it.
class MountedFileSystem {
 public:
  enum class Kind {
    directory,  ///< none: a directory of the file system that the tests run on
    tmpfs,
    ext4,            ///< in a file, through a loop device with sectors of 512 bytes
    ext4_4k_sector,  ///< the same with 4096
    ext2,            ///< the same as the first, without extents: nothing can be reserved
    xfs,             ///< the same as the first, with reflinks
    btrfs,           ///< the same
    overlay,         ///< over the tests' own
  };

  /// `ext_size`: of ext2 and ext4, as the command truncate takes it.
  explicit MountedFileSystem(Kind kind, std::string ext_size = "64M");
  MountedFileSystem(const MountedFileSystem&) = delete;
  MountedFileSystem& operator=(const MountedFileSystem&) = delete;
  ~MountedFileSystem();

  /// Why it could not be mounted; empty when it is.
  [[nodiscard]] const std::string& skip_reason() const { return skip_reason_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Of ext4, XFS and btrfs: stops the file system as when its device is gone, so that what it has not written is
  /// lost, and mounts what the device holds. Returns what fails, or nothing. No file of it is open.
  [[nodiscard]] std::string cut_off();

 private:
  void mount_image(const std::string& type, int sector);

  const std::string ext_size_;
  ScratchDirectory scratch_;
  std::filesystem::path path_;
  std::string type_, loop_device_, skip_reason_;
  bool mounted_ = false;
};

[[nodiscard]] const char* to_string(MountedFileSystem::Kind kind);

}  // namespace penstock::test
