#pragma once

#include "zero/commit/choose_commit.hpp"
#include "zero/commit/committed_states.hpp"
#include "zero/commit/rank_directory.hpp"
#include "zero/engine/engine_context.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace penstock::zero {

/// Returns this rank's error, or one that names a rank which has failed, and its cause. `number`: set to a random
/// number, equal on all ranks. Collective.
Result<void> agree_on_outcome(EngineContext& context, const char* operation, const Result<void>& mine,
                              RankDirectory::Run* number = nullptr);

/// The list of each rank, by rank; of structs without padding that is copied. `exchange(mine, all)` gives every rank's
/// bytes, of equal sizes, to all.
template <class T, class Exchange>
[[nodiscard]] Result<std::vector<std::vector<T>>> exchange_lists(std::size_t ranks,
                                                                 const std::vector<T>& mine,
                                                                 const Exchange& exchange) {
  static_assert(std::has_unique_object_representations_v<T>);
  const std::uint64_t count = mine.size();
  std::vector<std::uint64_t> counts(ranks);
  PENSTOCK_TRY(exchange(ConstHostSpan(std::span(&count, 1)), HostSpan(std::span(counts))));
  const std::size_t most = *std::max_element(counts.begin(), counts.end());
  // Ranks that are processes exchange 1 MiB of all together at most.
  constexpr std::size_t part = (8_KiB).value() / sizeof(T);
  std::vector<std::vector<T>> lists(ranks);
  std::vector<T> padded = mine, all(ranks * part);
  padded.resize(round_up(most, part));
  for (std::size_t first = 0; first < most; first += part) {
    PENSTOCK_TRY(exchange(ConstHostSpan(std::span(std::as_const(padded)).subspan(first, part)),
                          HostSpan(std::span(all))));
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::size_t rest = counts[rank] - std::min<std::size_t>(counts[rank], first);
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * part);
      lists[rank].insert(lists[rank].end(), begin, begin + static_cast<std::ptrdiff_t>(std::min(part, rest)));
    }
  }
  return lists;
}
/// Of the ranks of the engine. Collective.
template <class T>
[[nodiscard]] Result<std::vector<std::vector<T>>> exchange_lists(EngineContext& context,
                                                                 const std::vector<T>& mine) {
  return exchange_lists(context.communicator.size(), mine, [&context](ConstHostSpan bytes, HostSpan all) {
    return context.exchange(bytes, all, CollectiveSignature::Subject::commit);
  });
}

/// The last commit that the ranks can go on from, and what is wrong with others, one line each.
struct CommitSearch {
  std::optional<FoundManifest> last;
  std::vector<std::string> notes;
};
/// choose_commit() or choose_checkpoint().
using CommitChoice = decltype(&choose_commit);
/// Agrees with the peers on the last commit of `engine`: `choose`, of what each rank sees in its directories, `where`.
/// Collective.
///
/// Errors, on all ranks: those of `choose`; unsupported, for a manifest of another version; corrupted, if
/// manifests are damaged and no commit is whole; those of the files and of the peers.
[[nodiscard]] Result<CommitSearch> search_commits(EngineContext& context, const char* operation,
                                                  const RankDirectory::Options& where, std::uint32_t engine,
                                                  CommitChoice choose);

/// The last commit that all ranks which made it have; none where there is no directory yet. Collective.
///
/// Errors, on all ranks: as above, but corrupted if a manifest is damaged.
[[nodiscard]] Result<std::optional<FoundManifest>> whole_commit(EngineContext& context, const char* operation,
                                                                const RankDirectory::Options& where,
                                                                std::uint32_t engine);

/// The manifest of a commit that was found, of this rank if the run had it. Errors: those of RankDirectory::read().
[[nodiscard]] Result<Manifest> manifest_of(const RankDirectory::Options& where, std::uint32_t engine,
                                           const FoundManifest& commit);
/// The states of all ranks. Errors: those of CommittedStates::open().
[[nodiscard]] Result<CommittedStates> states_of(const EngineContext& context,
                                                const RankDirectory::Options& where, std::uint32_t engine,
                                                const FoundManifest& commit, Manifest manifest);

}  // namespace penstock::zero
