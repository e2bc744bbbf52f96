#include "zero/engine/commit_search.hpp"

#include "base/notes.hpp"
#include "zero/commit/durable_directories.hpp"

#include <algorithm>
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
};

/// The manifests of all ranks whose directories this one can see. The last two generations of a rank are enough: one
/// that is not complete can only be the last.
Result<std::vector<FoundManifest>> find_here(const RankDirectory::Options& options, std::uint32_t engine,
                                             std::vector<std::string>& notes) {
  std::vector<FoundManifest> found;
  const auto ranks = RankDirectory::ranks(options);
  if (!ranks && ranks.error().code() == ErrorCode::not_found) return found;
  PENSTOCK_TRY(ranks);
  for (const std::uint32_t rank : *ranks) {
    PENSTOCK_TRY_ASSIGN(auto generations, RankDirectory::generations_of(options, rank, engine));
    if (generations.size() > 2) generations.erase(generations.begin(), generations.end() - 2);
    for (const std::uint64_t generation : generations) {
      const auto manifest = RankDirectory::read_of(options, rank, engine, generation);
      if (manifest) {
        found.push_back({.run = manifest->run,
                         .generation = generation,
                         .attempt = manifest->attempt,
                         .ranks = manifest->ranks,
                         .rank = rank});
      } else if (is_damage(manifest.error())) {
        notes.push_back("not used: " + first_line(manifest.error()));
      } else if (manifest.error().code() != ErrorCode::not_found) {  // its rank may have removed it meanwhile
        return manifest.error();
      }
    }
  }
  return found;
}

/// Those that any rank can see.
Result<std::vector<FoundManifest>> find_all(EngineContext& context, const char* operation,
                                            const RankDirectory::Options& where, std::uint32_t engine,
                                            std::vector<std::string>& notes) {
  const auto found = find_here(where, engine, notes);
  PENSTOCK_TRY(agree_on_outcome(context, operation, found ? ok() : Result<void>(found.error())));
  return exchange_lists(context, *found);
}

}  // namespace

Result<void> agree_on_outcome(EngineContext& context, const char* operation, const Result<void>& mine,
                              RankDirectory::Run* number) {
  const Verdict verdict{.number = {random_number(), random_number()},
                        .code = mine ? 0 : static_cast<std::uint32_t>(mine.error().code()),
                        .failed = mine ? 0u : 1u};
  std::vector<Verdict> all(context.communicator.size());
  PENSTOCK_TRY(context.exchange(ConstHostSpan(std::span(&verdict, 1)), HostSpan(std::span(all)),
                                CollectiveSignature::Subject::commit));
  PENSTOCK_TRY(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].failed == 0) continue;
    return Error(static_cast<ErrorCode>(all[rank].code), operation)
        .reason("it has failed on another rank")
        .object("rank " + std::to_string(rank))
        .advice("look for that rank's error, which says what to do");
  }
  if (number != nullptr) *number = all.front().number;
  return ok();
}

Result<CommitSearch> search_commits(EngineContext& context, const char* operation,
                                    const RankDirectory::Options& where, std::uint32_t engine) {
  CommitSearch search;
  PENSTOCK_TRY_ASSIGN(const auto all, find_all(context, operation, where, engine, search.notes));
  const std::string directory = where.directories.front().string();
  PENSTOCK_TRY_ASSIGN(search.last, choose_generation(all, directory));
  Result<void> mine = ok();
  if (!search.last && !search.notes.empty()) {
    Error error =
        Error(ErrorCode::corrupted, operation)
            .object(directory)
            .reason("no commit in the directory is whole")
            .advice("name another directory, for a new run or one that load_checkpoint() continues");
    for (const std::string& note : search.notes) error = std::move(error).note(note);
    mine = error;
  }
  const auto lost = newest_missing_part(all);
  const auto marks = RankDirectory::marks_of(where, where.rank);
  if (mine && !marks) mine = marks.error();
  // A first commit that a killed run has left is incomplete, and its run is marked nowhere.
  if (mine && !search.last && lost && (lost->generation > 1 || marks->contains(engine))) {
    mine = missing_part(operation, where, *lost, search.notes);
  }
  PENSTOCK_TRY(agree_on_outcome(context, operation, mine));
  if (search.last && lost && lost->generation > search.last->generation)
    search.notes.push_back("not used: commit " + std::to_string(lost->generation) + " of " +
                           std::to_string(lost->ranks) + " ranks, which has no part of rank " +
                           std::to_string(lost->rank));
  return search;
}

Result<std::optional<FoundManifest>> whole_commit(EngineContext& context, const char* operation,
                                                  const RankDirectory::Options& where, std::uint32_t engine) {
  std::vector<std::string> notes;
  PENSTOCK_TRY_ASSIGN(const auto all, find_all(context, operation, where, engine, notes));
  Result<void> mine = ok();
  if (!notes.empty()) {
    mine = Error(ErrorCode::corrupted, operation)
               .object(where.directories.front().string())
               .reason("a manifest there is damaged, and it may be a checkpoint")
               .note(notes.front())
               .advice("remove it, or name another directory");
  }
  PENSTOCK_TRY(agree_on_outcome(context, operation, mine));
  return choose_generation(all, where.directories.front().string());
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
                               context.config.optimizer.type);
}

}  // namespace penstock::zero
