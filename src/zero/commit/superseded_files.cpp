#include "zero/commit/superseded_files.hpp"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace penstock::zero {

namespace {

bool is_swap_file(std::string_view name) {
  return number_of_file(name).has_value();
}

/// Errors: in_use, while another process has the directory.
Result<void> remove_of(const RankDirectory::Options& options, std::uint32_t engine,
                       const FoundManifest& last) {
  PENSTOCK_TRY_ASSIGN(const auto names, RankDirectory::names_of(options, options.rank));
  PENSTOCK_TRY_ASSIGN(const auto manifests, RankDirectory::manifests_of(options, options.rank));
  if (manifests.empty() && std::none_of(names.begin(), names.end(), is_swap_file)) return ok();
  PENSTOCK_TRY_ASSIGN(const auto directory, RankDirectory::open(options));
  PENSTOCK_TRY_ASSIGN(const auto generations, directory->generations(engine));
  for (const std::uint64_t generation : generations) {
    const auto manifest = directory->read(engine, generation);
    if (!manifest || manifest->run != last.run || generation > last.generation) continue;
    // First: where a mark is, a manifest must be.
    PENSTOCK_TRY(directory->unmark(engine));
    PENSTOCK_TRY(directory->remove(engine, generation));
  }
  PENSTOCK_TRY_ASSIGN(const auto left, RankDirectory::manifests_of(options, options.rank));
  return left.empty() ? directory->remove_files(is_swap_file) : ok();
}

}  // namespace

Result<void> remove_former_ranks(const RankDirectory::Options& options, std::uint32_t engine,
                                 const FoundManifest& last, std::uint32_t ranks) {
  PENSTOCK_TRY_ASSIGN(const auto found, RankDirectory::ranks(options));
  for (const std::uint32_t rank : found) {
    const bool is_former = rank >= std::max(last.ranks, ranks);
    if (!is_former || rank % ranks != options.rank) continue;
    RankDirectory::Options of_rank = options;
    of_rank.rank = rank;
    const auto removed = remove_of(of_rank, engine, last);
    if (!removed && removed.error().code() != ErrorCode::in_use) return removed;
  }
  return ok();
}

Result<void> remove_unused_files(RankDirectory& directory, std::uint32_t engine,
                                 const std::set<std::string>& open) {
  const RankDirectory::Options& options = directory.options();
  std::set<std::string> used = open;
  PENSTOCK_TRY_ASSIGN(const auto manifests, RankDirectory::manifests_of(options, options.rank));
  for (const auto& [of_engine, generation] : manifests) {
    PENSTOCK_TRY_ASSIGN(const Manifest manifest, directory.read(of_engine, generation));
    for (const std::string& file : manifest.files)
      used.insert(std::filesystem::path(file).filename().string());
  }
  const std::string own = "engine" + std::to_string(engine);
  return directory.remove_files([&](std::string_view name) {
    const bool is_own = name.starts_with(own + "-") || name.starts_with(own + ".");
    if (is_own && name.ends_with(".new")) return true;  // of a replacement that has failed
    const bool is_of_another =
        name.starts_with("copies") && !name.starts_with("copies" + std::to_string(engine) + "-");
    return is_swap_file(name) && !is_of_another && !used.contains(std::string(name));
  });
}

}  // namespace penstock::zero
