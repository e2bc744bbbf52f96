#include "zero/commit/generations.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace penstock::zero {

Result<std::optional<FoundManifest>> choose_generation(std::span<const FoundManifest> found,
                                                       const std::string& directory) {
  std::map<FoundManifest, std::set<std::uint32_t>>
      commits;  // the ranks of each, which is described by its rank 0
  for (const FoundManifest& one : found) {
    FoundManifest commit = one;
    commit.rank = 0;
    commits[commit].insert(one.rank);
  }
  std::optional<FoundManifest> chosen;
  for (const auto& [commit, ranks] : commits) {
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

}  // namespace penstock::zero
