#include "found_commits.hpp"

#include "zero/commit/generations.hpp"

#include <algorithm>
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

Result<const FoundCommit*> last_commit(const FoundCommits& found,
                                       const std::vector<std::filesystem::path>& directories,
                                       std::uint32_t engine) {
  std::vector<zero::FoundManifest> manifests;
  for (const FoundCommit& commit : found.commits) {
    if (commit.engine != engine) continue;
    for (const zero::Manifest& one : commit.manifests)
      manifests.push_back({one.run, one.generation, one.attempt, one.ranks, one.rank});
  }
  const std::string directory = directories.front().string();
  PENSTOCK_TRY_ASSIGN(const auto chosen, zero::choose_generation(manifests, directory));
  for (const FoundCommit& commit : found.commits) {
    if (chosen && commit.engine == engine && commit.generation == chosen->generation &&
        commit.manifests.front().attempt == chosen->attempt) {
      return &commit;
    }
  }
  return Error(ErrorCode::not_found, "last_commit")
      .object(directory)
      .reason("it has no commit of engine " + std::to_string(engine) + " of which every rank has its part")
      .got(std::to_string(manifests.size()) + " manifests of that engine")
      .advice("name the directories of all ranks, and --engine with one that penstock inspect prints");
}

bool is_replaced(const FoundCommit& commit, const std::vector<std::filesystem::path>& directories) {
  const auto now = find_commits(directories);
  if (!now) return false;
  return std::none_of(now->commits.begin(), now->commits.end(), [&](const FoundCommit& one) {
    return one.engine == commit.engine && one.generation == commit.generation && one.is_complete() &&
           one.manifests.front().attempt == commit.manifests.front().attempt;
  });
}

}  // namespace penstock::tool
