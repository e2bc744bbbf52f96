#pragma once

#include "sim/one_rank.hpp"

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {

// What durable runs leave in their directories.

/// The files below `directory`, by their paths from there, and their sizes.
inline std::set<std::pair<std::string, std::uintmax_t>> files_below(const std::filesystem::path& directory) {
  namespace fs = std::filesystem;
  std::set<std::pair<std::string, std::uintmax_t>> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    files.emplace(fs::relative(entry.path(), directory).string(),
                  entry.is_regular_file() ? entry.file_size() : 0);
  return files;
}

/// Those among them that commits are: a start that is refused may have lengthened swap files.
inline std::set<std::pair<std::string, std::uintmax_t>> manifests_below(
    const std::filesystem::path& directory) {
  auto files = files_below(directory);
  std::erase_if(files, [](const auto& file) { return file.first.find("/swap") != std::string::npos; });
  return files;
}

inline Config config_of(std::vector<std::filesystem::path> directories,
                        OffloadDevice to = OffloadDevice::nvme) {
  Config config = durable_config(directories.front(), to);
  config.penstock.durable_directories = std::move(directories);
  return config;
}

/// Continues the run, or begins it, and commits after one step. Returns the digest.
inline std::string go_on(const Config& config, const ModelLayout& model = two_units()) {
  const OneRank run = OneRank::create(config, model).value();
  if (!run.engine().resume().value()) run.initialize();
  run.train();
  (void)run.engine().commit().value();
  return run.engine().digest().value();
}

}  // namespace penstock::zero::test
