#include "found_commits.hpp"

#include <map>
#include <tuple>
#include <utility>

namespace penstock::tool {

Result<FoundCommits> find_commits(const std::vector<std::filesystem::path>& directories) {
  const zero::RankDirectory::Options options{.directories = directories};
  PENSTOCK_TRY_ASSIGN(const auto ranks, zero::RankDirectory::ranks(options));
  FoundCommits found;
  // Manifests of one generation that come from different attempts are different commits.
  std::map<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>, FoundCommit> commits;
  for (const std::uint32_t rank : ranks) {
    PENSTOCK_TRY_ASSIGN(const auto engines, zero::RankDirectory::engines_of(options, rank));
    for (const std::uint32_t engine : engines) {
      PENSTOCK_TRY_ASSIGN(const auto generations, zero::RankDirectory::generations_of(options, rank, engine));
      for (const std::uint64_t generation : generations) {
        auto manifest = zero::RankDirectory::read_of(options, rank, engine, generation);
        if (!manifest) {
          found.damaged.push_back(manifest.error());
          continue;
        }
        FoundCommit& commit = commits[{engine, generation, manifest->attempt}];
        commit.engine = engine;
        commit.generation = generation;
        commit.manifests.push_back(*std::move(manifest));
      }
    }
  }
  for (auto& [key, commit] : commits) found.commits.push_back(std::move(commit));
  if (!found.commits.empty() || !found.damaged.empty()) return found;
  return Error::invalid_argument("find_commits")
      .object(directories.front().string())
      .reason("it has no commit of Penstock")
      .advice("name the directories that penstock.durable_directory of the run names, in any order");
}

}  // namespace penstock::tool
