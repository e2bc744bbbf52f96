#include "storage_device.hpp"

#include <penstock/tiers/io/file_system.hpp>
#include "tiers/io/block_device.hpp"

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

}  // namespace

StorageDevice describe_storage(const fs::path& directory) {
  const dev_t number = device_of(directory);
  StorageDevice device{.id = number == 0 ? "" : to_string(number)};
  const auto drive = tiers::drive_of(number);
  if (!drive) {
    device.virtual_because = "the directory is on no block device of this machine";
    return device;
  }
  const fs::path& disk = *drive;
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
  if (first_line(disk / "loop/dio") == "0") {
    device.cached_because = device.name + " is a loop device whose file goes through the page cache";
  }
  return device;
}

std::string to_string(const StorageDevice& device, const fs::path& directory) {
  std::string text = tiers::real_file_system().type_name(directory);
  if (device.name.empty()) return text + " on no block device";
  text += " on " + device.name;
  if (!device.model.empty()) text += " (" + device.model + ")";
  return text;
}

Result<std::optional<std::string>> page_cache_because(const fs::path& directory) {
  PENSTOCK_TRY_ASSIGN(const auto file,
                      tiers::real_file_system().create_scratch(directory, 1_MiB, tiers::DirectIo::preferred));
  if (!file.properties().direct) return std::optional(file.properties().direct_note);
  // tmpfs accepts O_DIRECT although it consists of page cache only.
  if (tiers::real_file_system().type_name(directory) == "tmpfs") {
    return std::optional<std::string>("a tmpfs is in memory");
  }
  return describe_storage(directory).cached_because;
}

Result<void> check_free_space(std::span<const fs::path> directories, ByteCount each) {
  std::map<dev_t, std::vector<fs::path>> file_systems;
  for (const fs::path& directory : directories) file_systems[device_of(directory)].push_back(directory);
  for (const auto& [number, shared] : file_systems) {
    PENSTOCK_TRY_ASSIGN(const auto free, tiers::real_file_system().free_space(shared.front()));
    const ByteCount needed = each * shared.size();
    if (needed <= free) continue;
    std::string names;
    for (const fs::path& directory : shared) names += (names.empty() ? "" : ", ") + directory.string();
    return Error(ErrorCode::no_space, "check_free_space")
        .reason("the measurement's files do not fit")
        .object(names)
        .wanted(needed)
        .got(free);
  }
  return ok();
}

}  // namespace penstock::measure
