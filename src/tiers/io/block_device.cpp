#include "tiers/io/block_device.hpp"

#include <sys/sysmacros.h>
#include <string>
#include <system_error>

namespace penstock::tiers {

namespace {

namespace fs = std::filesystem;

fs::path whole_disk(fs::path device) {
  std::error_code error;
  if (fs::exists(device / "partition", error)) device = device.parent_path();
  for (const auto& below : fs::directory_iterator(device / "slaves", error)) {
    return whole_disk(fs::canonical(below.path(), error));
  }
  return device;
}

}  // namespace

std::optional<fs::path> drive_of(dev_t device, const fs::path& sysfs) {
  const std::string number = std::to_string(major(device)).append(":").append(std::to_string(minor(device)));
  std::error_code error;
  fs::path found = fs::canonical(sysfs / "dev/block" / number, error);
  if (error) return std::nullopt;
  return whole_disk(std::move(found));
}

}  // namespace penstock::tiers
