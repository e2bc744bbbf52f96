#include "zero/commit/generations.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace penstock::zero {

namespace {

/// The ranks of each commit, which is described by its rank 0.
std::map<FoundManifest, std::set<std::uint32_t>> commits_of(std::span<const FoundManifest> found) {
  std::map<FoundManifest, std::set<std::uint32_t>> commits;
  for (const FoundManifest& one : found) {
    FoundManifest commit = one;
    commit.rank = 0;
    commits[commit].insert(one.rank);
  }
  return commits;
}

}  // namespace

FoundManifest found_of(const Manifest& manifest) {
  return {.run = manifest.run,
          .generation = manifest.generation,
          .attempt = manifest.attempt,
          .before_generation = manifest.before_generation,
          .before_attempt = manifest.before_attempt,
          .ranks = manifest.ranks,
          .rank = manifest.rank};
}

bool is_superseded(const Manifest& manifest, const Manifest& by) {
  return manifest.run == by.run &&
         (manifest.generation < by.before_generation ||
          (manifest.generation == by.before_generation && manifest.attempt != by.before_attempt));
}

Result<std::optional<FoundManifest>> choose_generation(std::span<const FoundManifest> found,
                                                       const std::string& directory) {
  std::optional<FoundManifest> chosen;
  for (const auto& [commit, ranks] : commits_of(found)) {
    if (ranks.size() != commit.ranks) continue;
    if (chosen && chosen->run != commit.run) {
      return Error::invalid_argument("Engine::create")
          .object(directory)
          .reason("the durable directory has commits of two runs")
          .advice("give each run a directory of its own; move the files of one of them away");
    }
    if (!chosen || commit.generation > chosen->generation) chosen = commit;
  }
  return chosen;
}

std::optional<MissingPart> newest_missing_part(std::span<const FoundManifest> found) {
  std::optional<MissingPart> newest;
  for (const auto& [commit, ranks] : commits_of(found)) {
    if (newest && newest->generation >= commit.generation) continue;
    for (std::uint32_t rank = 0; rank < commit.ranks; ++rank) {
      if (ranks.contains(rank)) continue;
      newest = MissingPart{.generation = commit.generation, .ranks = commit.ranks, .rank = rank};
      break;
    }
  }
  return newest;
}

}  // namespace penstock::zero
