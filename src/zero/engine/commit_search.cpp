#include "zero/engine/commit_search.hpp"

#include "base/notes.hpp"
#include "base/utf8.hpp"
#include "zero/commit/durable_directories.hpp"

#include <algorithm>
#include <array>
#include <random>
#include <span>
#include <utility>

namespace penstock::zero {

namespace {

std::uint64_t random_number() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

/// What a rank tells its peers at each phase of a commit.
struct Verdict {
  RankDirectory::Run number{};  // random; that of rank 0 counts
  std::uint32_t code = 0, failed = 0;
  std::array<char, 512> cause{};  // of the failure, ends with 0
};

/// What each rank sees. `damaged`: see view_commits().
Result<std::vector<CommitView>> view_all(EngineContext& context, const char* operation,
                                         const RankDirectory::Options& where, std::uint32_t engine,
                                         std::vector<std::string>& damaged) {
  const auto mine = view_commits(where, engine, damaged);
  PENSTOCK_TRY(agree_on_outcome(context, operation, mine ? ok() : Result<void>(mine.error())));
  PENSTOCK_TRY_ASSIGN(auto manifests, exchange_lists(context, mine->manifests));
  PENSTOCK_TRY_ASSIGN(auto marks, exchange_lists(context, mine->marks));
  std::vector<CommitView> views(manifests.size());
  for (std::size_t rank = 0; rank < views.size(); ++rank)
    views[rank] = {std::move(manifests[rank]), std::move(marks[rank])};
  return views;
}

/// Those that any rank sees.
std::vector<FoundManifest> manifests_of(const std::vector<CommitView>& views) {
  std::vector<FoundManifest> all;
  for (const CommitView& view : views) all.insert(all.end(), view.manifests.begin(), view.manifests.end());
  return all;
}

}  // namespace

Result<void> agree_on_outcome(EngineContext& context, const char* operation, const Result<void>& mine,
                              RankDirectory::Run* number) {
  Verdict verdict{.number = {random_number(), random_number()},
                  .code = mine ? 0 : static_cast<std::uint32_t>(mine.error().code()),
                  .failed = mine ? 0u : 1u,
                  .cause = {}};
  if (!mine) first_line(mine.error()).copy(verdict.cause.data(), verdict.cause.size() - 1);
  std::vector<Verdict> all(context.communicator.size());
  PENSTOCK_TRY(context.exchange(ConstHostSpan(std::span(&verdict, 1)), HostSpan(std::span(all)),
                                CollectiveSignature::Subject::commit));
  PENSTOCK_TRY(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].failed == 0) continue;
    return Error(static_cast<ErrorCode>(all[rank].code), operation)
        .reason("it has failed on another rank")
        .object("rank " + std::to_string(rank))
        .note("cause   " + to_utf8(all[rank].cause.data()))
        .advice("look for that rank's error, which says what to do");
  }
  if (number != nullptr) *number = all.front().number;
  return ok();
}

Result<CommitSearch> search_commits(EngineContext& context, const char* operation,
                                    const RankDirectory::Options& where, std::uint32_t engine,
                                    CommitChoice choose) {
  CommitSearch search;
  std::vector<std::string> damaged;
  PENSTOCK_TRY_ASSIGN(const auto views, view_all(context, operation, where, engine, damaged));
  const std::filesystem::path& directory = where.directories.front();
  const auto chosen = choose(operation, directory, views, context.communicator.size());
  Result<void> mine = chosen ? ok() : Result<void>(with_damaged(chosen.error(), damaged));
  if (chosen && !*chosen && !damaged.empty()) {
    mine = with_damaged(
        Error(ErrorCode::corrupted, operation)
            .object(directory.string())
            .reason("no commit in the directory is whole")
            .advice("name another directory, for a new run or one that load_checkpoint() continues"),
        damaged);
  }
  PENSTOCK_TRY(agree_on_outcome(context, operation, mine));
  search.last = *chosen;
  for (const std::string& one : damaged) search.notes.push_back("not used: " + one);
  const auto lost = newest_missing_part(manifests_of(views));
  if (search.last && lost && lost->generation > search.last->generation)
    search.notes.push_back("not used: commit " + std::to_string(lost->generation) + " of " +
                           std::to_string(lost->ranks) + " ranks, which has no part of rank " +
                           std::to_string(lost->rank));
  return search;
}

Result<std::optional<FoundManifest>> whole_commit(EngineContext& context, const char* operation,
                                                  const RankDirectory::Options& where, std::uint32_t engine) {
  std::vector<std::string> damaged;
  PENSTOCK_TRY_ASSIGN(const auto views, view_all(context, operation, where, engine, damaged));
  Result<void> mine = ok();
  if (!damaged.empty()) {
    mine = Error(ErrorCode::corrupted, operation)
               .object(where.directories.front().string())
               .reason("a manifest there is damaged, and it may be a checkpoint")
               .note("not used: " + damaged.front())
               .advice("remove it, or name another directory");
  }
  PENSTOCK_TRY(agree_on_outcome(context, operation, mine));
  return choose_generation(manifests_of(views), where.directories.front().string());
}

Result<Manifest> manifest_of(const RankDirectory::Options& where, std::uint32_t engine,
                             const FoundManifest& commit) {
  return RankDirectory::read_of(where, std::min(where.rank, commit.ranks - 1), engine, commit.generation);
}

Result<CommittedStates> states_of(const EngineContext& context, const RankDirectory::Options& where,
                                  std::uint32_t engine, const FoundManifest& commit, Manifest manifest) {
  const auto load = [where, engine, commit](std::uint32_t rank) -> Result<Manifest> {
    PENSTOCK_TRY_ASSIGN(auto loaded, RankDirectory::read_of(where, rank, engine, commit.generation));
    if (loaded.attempt == commit.attempt && loaded.run == commit.run) return loaded;
    return Error(ErrorCode::corrupted, "states_of")
        .object("rank " + std::to_string(rank) + ", generation " + std::to_string(commit.generation))
        .reason("its manifest is of another commit");
  };
  return CommittedStates::open(*where.files, std::move(manifest), load, context.model,
                               context.config.optimizer.type, where.deadline);
}

}  // namespace penstock::zero
