#include "kit/mounted_file_system.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace penstock::test {

namespace {

/// Makes the file system of a type in a sparse image. XFS and btrfs have a least size.
std::string command_that_makes(const std::string& type, const std::string& image,
                               const std::string& ext_size) {
  const bool is_ext = type.starts_with("ext");
  const std::string size = is_ext ? ext_size : type == "xfs" ? "320M" : "192M";
  const char* const options = is_ext ? " -q -F -b 4096 " : " -q -f ";
  return std::string("truncate -s ").append(size) + " " + image + " && mkfs." + type + options + image +
         " && echo made";
}

/// Runs a command; its standard output without the newline, or nothing when it fails.
std::string output_of(const std::string& command) {
  std::string output;
  FILE* pipe = ::popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return {};
  std::array<char, 256> buffer;
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), count);
  }
  if (::pclose(pipe) != 0) return {};
  while (!output.empty() && output.back() == '\n') output.pop_back();
  return output;
}

}  // namespace

MountedFileSystem::MountedFileSystem(Kind kind, std::string ext_size)
    : ext_size_(std::move(ext_size)), path_(scratch_.path() / "mounted") {
  std::filesystem::create_directory(path_);
  switch (kind) {
    case Kind::directory: return;
    case Kind::ext4: mount_image("ext4", 512); return;
    case Kind::ext4_4k_sector: mount_image("ext4", 4096); return;
    case Kind::ext2: mount_image("ext2", 512); return;
    case Kind::xfs: mount_image("xfs", 512); return;
    case Kind::btrfs: mount_image("btrfs", 512); return;
    case Kind::tmpfs: mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=64m") == 0; break;
    case Kind::overlay: {
      std::string options;
      for (const char* layer : {"lowerdir", "upperdir", "workdir"}) {
        std::filesystem::create_directory(scratch_.path() / layer);
        if (!options.empty()) options += ',';
        options.append(layer).append("=").append((scratch_.path() / layer).string());
      }
      mounted_ = ::mount("overlay", path_.c_str(), "overlay", 0, options.c_str()) == 0;
      break;
    }
  }
  if (!mounted_) skip_reason_ = std::string("mounting is not allowed here: ") + std::strerror(errno);
}

void MountedFileSystem::mount_image(const std::string& type, int sector) {
  const std::string image = (scratch_.path() / "image").string();
  type_ = type;
  if (output_of(command_that_makes(type, image, ext_size_)).empty()) {
    skip_reason_ = "mkfs." + type + " is not to be had";
    return;
  }
  loop_device_ = output_of("losetup --find --show --sector-size " + std::to_string(sector) + " " + image);
  if (loop_device_.empty()) {
    skip_reason_ = "no loop device with sectors of " + std::to_string(sector) + " bytes is to be had";
    return;
  }
  mounted_ = ::mount(loop_device_.c_str(), path_.c_str(), type.c_str(), 0, nullptr) == 0;
  if (!mounted_) skip_reason_ = std::string("mounting is not allowed here: ") + std::strerror(errno);
}

std::string MountedFileSystem::cut_off() {
  const std::string image = (scratch_.path() / "image").string();
  if (type_ == "btrfs") {
    // It has no call for this; what its device holds now is copied.
    if (output_of("cp --sparse=always " + image + " " + image + ".cut && echo copied").empty())
      return "the image is not copied";
  } else {
    const int directory = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const std::uint32_t without_flush = 2;  // EXT4_GOING_FLAGS_NOLOGFLUSH, XFS_FSOP_GOING_FLAGS_NOLOGFLUSH
    const int stopped = ::ioctl(directory, _IOR('X', 125, std::uint32_t), &without_flush);
    const int cause = errno;
    ::close(directory);
    if (stopped != 0) return std::string("the file system is not stopped: ") + std::strerror(cause);
  }
  // The kernel closes the files of an io_uring some time after the process has ended.
  for (int attempt = 0; mounted_ && attempt < 500; ++attempt) {
    mounted_ = ::umount2(path_.c_str(), 0) != 0;
    if (mounted_) ::usleep(10'000);
  }
  if (mounted_) return std::string("not unmounted: ") + std::strerror(errno);
  if (type_ == "btrfs") {
    (void)output_of("losetup --detach " + loop_device_);
    loop_device_.clear();
    std::filesystem::rename(image + ".cut", image);
    loop_device_ = output_of("losetup --find --show " + image);
    if (loop_device_.empty()) return "no loop device";
  }
  mounted_ = ::mount(loop_device_.c_str(), path_.c_str(), type_.c_str(), 0, nullptr) == 0;
  return mounted_ ? "" : std::string("not mounted again: ") + std::strerror(errno);
}

MountedFileSystem::~MountedFileSystem() {
  if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  if (!loop_device_.empty()) (void)output_of("losetup --detach " + loop_device_);
}

const char* to_string(MountedFileSystem::Kind kind) {
  constexpr const char* names[] = {"Directory", "Tmpfs", "Ext4",  "Ext4With4KiBSectors",
                                   "Ext2",      "Xfs",   "Btrfs", "Overlay"};
  return names[static_cast<std::size_t>(kind)];
}

}  // namespace penstock::test
