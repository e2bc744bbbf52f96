#include "storage_device.hpp"

#include <penstock/tiers/io/file_system.hpp>
#include "tiers/io/block_device.hpp"
#include "tiers/io/bounded_call.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <fstream>
#include <map>
#include <vector>

namespace penstock::measure {

namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line.substr(0, line.find_last_not_of(' ') + 1);
}

bool runs_under_a_hypervisor() {
  std::ifstream cpu("/proc/cpuinfo");
  for (std::string line; std::getline(cpu, line);) {
    if (line.starts_with("flags")) return line.find(" hypervisor") != std::string::npos;
  }
  return false;
}

/// The device number of the directory's file system; zero if stat fails.
dev_t device_of(const fs::path& directory) {
  struct stat status {};
  return ::stat(directory.c_str(), &status) == 0 ? status.st_dev : dev_t{};
}

/// "259:2"
std::string to_string(dev_t device) {
  return std::to_string(major(device)).append(":").append(std::to_string(minor(device)));
}

/// `disk` is the drive's directory in sysfs.
void describe_drive(StorageDevice& device, const fs::path& disk) {
  std::error_code error;
  device.id = device.name = disk.filename();
  device.model = first_line(disk / "device/model");
  const std::string driver = fs::read_symlink(disk / "device/driver", error).filename();
  if (device.model.empty()) device.model = driver;

  if (driver.starts_with("virtio") || device.name.starts_with("vd")) {
    device.virtual_because = "a virtio disk";
  } else if (driver == "vbd" || device.name.starts_with("xvd")) {
    device.virtual_because = "a Xen disk";
  } else if (device.name.starts_with("loop") || device.name.starts_with("zram") ||
             device.name.starts_with("ram")) {
    device.virtual_because = "memory or another file, not a drive";
  } else if (runs_under_a_hypervisor()) {
    device.virtual_because = "a disk of a virtual machine";
  }
  if (!device.cached_because && first_line(disk / "loop/dio") == "0") {
    device.cached_because = device.name + " is a loop device whose file goes through the page cache";
  }
}

Result<StorageDevice> examine(const fs::path& directory) {
  tiers::FileSystem& files = tiers::real_file_system();
  PENSTOCK_TRY_ASSIGN(const auto file, files.create_scratch(directory, 1_MiB, tiers::DirectIo::preferred));
  const dev_t number = device_of(directory);
  StorageDevice device{.id = to_string(number), .file_system = files.type_name(directory)};
  if (!file.properties().direct) {
    device.cached_because = file.properties().direct_note;
  } else if (device.file_system == "tmpfs") {  // accepts O_DIRECT although it consists of page cache only
    device.cached_because = "a tmpfs is in memory";
  }
  if (const auto disk = tiers::drive_of(number)) {
    describe_drive(device, *disk);
  } else {
    device.virtual_because = "the directory is on no block device of this machine";
  }
  return device;
}

/// A file system's free space, and the directories on it that share it.
struct Space {
  dev_t file_system{};
  ByteCount free;
  std::vector<fs::path> sharers;
};

Result<Space> space_of(const fs::path& directory) {
  PENSTOCK_TRY_ASSIGN(const auto free, tiers::real_file_system().free_space(directory));
  return Space{device_of(directory), free, {directory}};
}

}  // namespace

Result<StorageDevice> describe_storage(const fs::path& directory, TimePoint deadline) {
  return tiers::bounded_call<StorageDevice>("describe_storage", directory.string(), deadline,
                                            [directory] { return examine(directory); });
}

std::string to_string(const StorageDevice& device) {
  if (device.name.empty()) return device.file_system + " on no block device";
  return device.file_system + " on " + device.name + (device.model.empty() ? "" : " (" + device.model + ")");
}

Result<void> check_free_space(std::span<const fs::path> directories, ByteCount each, TimePoint deadline) {
  std::map<dev_t, Space> file_systems;
  for (const fs::path& directory : directories) {
    const auto ask = [directory] { return space_of(directory); };
    PENSTOCK_TRY_ASSIGN(const auto space,
                        tiers::bounded_call<Space>("check_free_space", directory.string(), deadline, ask));
    const auto [known, is_new] = file_systems.try_emplace(space.file_system, space);
    if (!is_new) known->second.sharers.push_back(directory);
  }
  for (const auto& [number, space] : file_systems) {
    const ByteCount needed = each * space.sharers.size();
    if (needed <= space.free) continue;
    std::string names;
    for (const fs::path& directory : space.sharers) names += (names.empty() ? "" : ", ") + directory.string();
    return Error(ErrorCode::no_space, "check_free_space")
        .reason("the measurement's files do not fit")
        .object(names)
        .wanted(needed)
        .got(space.free);
  }
  return ok();
}

}  // namespace penstock::measure
