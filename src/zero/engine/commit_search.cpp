#include "zero/engine/commit_search.hpp"

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
  std::uint64_t number = 0;  // random; that of rank 0 counts
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
      } else if (manifest.error().code() == ErrorCode::unsupported) {
        return manifest.error();
      } else if (manifest.error().code() != ErrorCode::not_found) {  // its rank may have removed it meanwhile
        notes.push_back("not used: " + manifest.error().message());
      }
    }
  }
  return found;
}

/// Those of all ranks.
Result<std::vector<FoundManifest>> exchange_found(EngineContext& context,
                                                  const std::vector<FoundManifest>& mine) {
  constexpr auto subject = CollectiveSignature::Subject::commit;
  const std::size_t ranks = context.communicator.size();
  const std::uint64_t count = mine.size();
  std::vector<std::uint64_t> counts(ranks);
  PENSTOCK_TRY(context.exchange(ConstHostSpan(std::span(&count, 1)), HostSpan(std::span(counts)), subject));
  const std::size_t most = *std::max_element(counts.begin(), counts.end());
  if (most == 0) return std::vector<FoundManifest>();
  std::vector<FoundManifest> padded = mine, all(ranks * most);
  padded.resize(most);
  PENSTOCK_TRY(
      context.exchange(ConstHostSpan(std::span(std::as_const(padded))), HostSpan(std::span(all)), subject));
  std::erase_if(all, [](const FoundManifest& one) { return one.generation == 0; });
  return all;
}

/// Those that any rank can see.
Result<std::vector<FoundManifest>> find_all(EngineContext& context, const char* operation,
                                            const RankDirectory::Options& where, std::uint32_t engine,
                                            std::vector<std::string>& notes) {
  const auto found = find_here(where, engine, notes);
  PENSTOCK_TRY(agree_on_outcome(context, operation, found ? ok() : Result<void>(found.error())));
  return exchange_found(context, *found);
}

}  // namespace

Result<void> agree_on_outcome(EngineContext& context, const char* operation, const Result<void>& mine,
                              std::uint64_t* number) {
  const Verdict verdict{.number = random_number(),
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
        .advice("look for that rank's error; then call it again on all ranks");
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
  if (mine && !search.last && lost && lost->generation > 1) {
    mine = Error(ErrorCode::corrupted, operation)
               .object((where.directories.front() / rank_name(lost->rank)).string())
               .reason("commit " + std::to_string(lost->generation) + " of " + std::to_string(lost->ranks) +
                       " ranks has no part of rank " + std::to_string(lost->rank))
               .advice("bring that directory back; or name another durable directory for a new run");
  }
  PENSTOCK_TRY(agree_on_outcome(context, operation, mine));
  return search;
}

Result<std::optional<FoundManifest>> whole_commit(EngineContext& context, const char* operation,
                                                  const RankDirectory::Options& where, std::uint32_t engine) {
  std::vector<std::string> notes;
  PENSTOCK_TRY_ASSIGN(const auto all, find_all(context, operation, where, engine, notes));
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
