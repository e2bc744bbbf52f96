#include <penstock/zero/config/config.hpp>

#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <vector>

namespace penstock::zero {

namespace {

/// Why files cannot be created in `directory`; empty if they can.
std::string why_not_usable(const std::filesystem::path& directory) {
  std::error_code error;
  const auto status = std::filesystem::status(directory, error);
  if (!std::filesystem::exists(status)) return "does not exist";
  if (!std::filesystem::is_directory(status)) return "is not a directory";
  if (::access(directory.c_str(), W_OK | X_OK) != 0)
    return std::string("cannot be written: ") + std::strerror(errno);
  return {};
}

}  // namespace

Result<void> Config::check_paths() const {
  std::vector<std::string> unusable;
  const auto check = [&](const OffloadConfig& offload, const std::string& key) {
    if (offload.device != OffloadDevice::nvme) return;
    for (const std::filesystem::path& directory : offload.nvme_paths) {
      if (const std::string why = why_not_usable(directory); !why.empty()) {
        unusable.push_back("zero_optimization." + key + ".nvme_path: " + directory.string() + " " + why);
      }
    }
  };
  check(offload_param, "offload_param");
  check(offload_optimizer, "offload_optimizer");
  if (unusable.empty()) return ok();

  Error error = Error::invalid_config("Config::check_paths")
                    .reason("swap files cannot be created on this machine")
                    .advice("create the directory on the drive for the swap files");
  for (const std::string& line : unusable) error = std::move(error).note(line);
  return error;
}

}  // namespace penstock::zero
