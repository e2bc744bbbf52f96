#include "storage_device.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <fstream>

namespace penstock::bench {

namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line.substr(0, line.find_last_not_of(' ') + 1);
}

/// A partition's disk; a mapped device's first disk.
fs::path whole_disk(fs::path device) {
  std::error_code error;
  if (fs::exists(device / "partition", error)) device = device.parent_path();
  for (const auto& below : fs::directory_iterator(device / "slaves", error)) {
    return whole_disk(fs::canonical(below.path(), error));
  }
  return device;
}

bool runs_under_a_hypervisor() {
  std::ifstream cpu("/proc/cpuinfo");
  for (std::string line; std::getline(cpu, line);) {
    if (line.starts_with("flags")) return line.find(" hypervisor") != std::string::npos;
  }
  return false;
}

}  // namespace

StorageDevice describe_storage(const fs::path& directory) {
  StorageDevice device;
  struct stat status {};
  std::error_code error;
  if (::stat(directory.c_str(), &status) != 0) return device;
  const std::string number =
      std::to_string(major(status.st_dev)) + ":" + std::to_string(minor(status.st_dev));
  fs::path disk = fs::canonical("/sys/dev/block/" + number, error);
  if (error) {
    device.virtual_because = "no block device of this machine's is behind the directory";
    return device;
  }
  disk = whole_disk(disk);
  device.name = disk.filename();
  device.model = first_line(disk / "device/model");
  const std::string driver = fs::read_symlink(disk / "device/driver", error).filename();
  if (device.model.empty()) device.model = driver;

  if (driver.starts_with("virtio") || device.name.starts_with("vd")) {
    device.virtual_because = "a virtio disk";
  } else if (driver == "vbd" || device.name.starts_with("xvd")) {
    device.virtual_because = "a Xen disk";
  } else if (device.name.starts_with("loop") || device.name.starts_with("zram") ||
             device.name.starts_with("ram")) {
    device.virtual_because = "not a drive but memory or another file";
  } else if (runs_under_a_hypervisor()) {
    device.virtual_because = "a disk of a virtual machine";
  }
  return device;
}

}  // namespace penstock::bench
