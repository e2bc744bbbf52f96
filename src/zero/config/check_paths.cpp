#include <penstock/zero/config/config.hpp>

#include "base/duration_text.hpp"
#include "base/start_thread.hpp"
#include "tiers/io/bounded_call.hpp"
#include "tiers/io/file_errors.hpp"
#include "zero/commit/small_files.hpp"

#include <penstock/tiers/io/file_system.hpp>

#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <system_error>

namespace penstock::zero {

namespace {

/// Why files cannot be created in a directory, and what to do about it; empty if they can.
struct Refusal {
  std::string why, advice;
  bool is_missing = false;
};

Refusal refusal(const std::string& what, int errno_value) {
  const std::string advice = tiers::advice_for(errno_value);
  return {what + ": " + std::strerror(errno_value), advice.empty() ? "name another directory" : advice};
}

Refusal examine(const std::filesystem::path& directory, bool must_last) {
  const char* const create = "create the directory on the drive for the swap files";
  std::error_code error;
  const auto status = std::filesystem::status(directory, error);
  if (status.type() == std::filesystem::file_type::not_found)
    return {"does not exist", create, /*is_missing=*/true};
  // Not "does not exist": a parent directory may be closed to this user, or the drive may have failed.
  if (error) return refusal("cannot be examined", error.value());
  if (!std::filesystem::is_directory(status))
    return {"is not a directory", "name a directory on the drive for the swap files"};
  if (must_last && tiers::real_file_system().type_name(directory) == "tmpfs")
    return {"is on a tmpfs, in memory, which loses a run with the machine's power",
            "name a directory on a drive as penstock.durable_directory"};
  // Only an attempt tells: procfs grants the permission to write and creates no file.
  const auto file = tiers::real_file_system().create_scratch(directory, 4_KiB, tiers::DirectIo::off);
  if (file) return {};
  if (const int failure = file.error().os_error(); failure != 0) return refusal("cannot be written", failure);
  return {"is on a file system that creates no files", "name a directory on a drive"};
}

Refusal refusal_of(const std::filesystem::path& directory, bool must_last, TimePoint deadline) {
  auto refused =
      tiers::bounded_call<Refusal>("Config::check_paths", directory.string(), deadline,
                                   [directory, must_last] { return examine(directory, must_last); });
  if (refused) return *refused;
  if (refused.error().code() == ErrorCode::deadline_exceeded) {
    return {"did not answer within " + duration_text(deadline),
            "check the kernel log (dmesg) and the drive or network behind it"};
  }
  return {"cannot be examined: no thread can be started", std::string("raise the limit on ") + thread_limits};
}

}  // namespace

Result<void> Config::check_paths() const {
  Error error =
      Error::invalid_config("Config::check_paths").reason("swap files cannot be created on this machine");
  std::set<std::string> advice;
  std::map<std::filesystem::path, Refusal>
      examined;  // once, because one that does not answer takes the deadline
  const auto refusal_of_known = [&](const std::filesystem::path& directory) -> const Refusal& {
    const auto [found, is_new] = examined.try_emplace(directory);
    if (is_new)
      found->second = refusal_of(directory, is_durable(), std::chrono::seconds(penstock.io_deadline_seconds));
    return found->second;
  };
  // `named`: by the key, where the run makes that in `directory`.
  const auto check = [&](const std::string& key, const std::filesystem::path& directory,
                         const std::filesystem::path& named = {}) {
    const Refusal& refused = refusal_of_known(directory);
    if (refused.why.empty()) return;
    const std::string cannot = named.empty() ? "" : named.string() + " cannot be made: ";
    error = std::move(error).note(key + ": " + cannot + directory.string() + " " + refused.why);
    advice.insert(refused.advice);
  };
  const auto check_offload = [&](const OffloadConfig& offload, const std::string& key) {
    if (offload.device != OffloadDevice::nvme || is_durable()) return;
    for (const std::filesystem::path& directory : offload.nvme_paths)
      check("zero_optimization." + key + ".nvme_path", directory);
  };
  check_offload(offload_param, "offload_param");
  check_offload(offload_optimizer, "offload_optimizer");
  for (const std::filesystem::path& directory : penstock.durable_directories) {
    const std::string key = "penstock.durable_directory";
    if (refusal_of_known(directory).is_missing) {
      check(key, directory_above(directory), directory);
    } else {
      check(key, directory);
    }
  }
  if (advice.empty()) return ok();
  std::string all;
  for (const std::string& one : advice) all += (all.empty() ? "" : "; ") + one;
  return std::move(error).advice(all);
}

}  // namespace penstock::zero
