#pragma once

#include "zero/commit/committed_states.hpp"
#include "zero/commit/generations.hpp"
#include "zero/commit/rank_directory.hpp"
#include "zero/engine/engine_context.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero {

/// Returns this rank's error, or one that names a rank which has failed. `number`: set to a random number, equal on all
/// ranks. Collective.
Result<void> agree_on_outcome(EngineContext& context, const char* operation, const Result<void>& mine,
                              RankDirectory::Run* number = nullptr);

/// What all ranks have, those of rank 0 first; of structs without padding that is copied. Collective.
template <class T>
[[nodiscard]] Result<std::vector<T>> exchange_lists(EngineContext& context, const std::vector<T>& mine) {
  constexpr auto subject = CollectiveSignature::Subject::commit;
  const std::size_t ranks = context.communicator.size();
  const std::uint64_t count = mine.size();
  std::vector<std::uint64_t> counts(ranks);
  PENSTOCK_TRY(context.exchange(ConstHostSpan(std::span(&count, 1)), HostSpan(std::span(counts)), subject));
  const std::size_t most = *std::max_element(counts.begin(), counts.end());
  std::vector<T> padded = mine, all(ranks * most), list;
  if (most == 0) return list;
  padded.resize(most);
  PENSTOCK_TRY(
      context.exchange(ConstHostSpan(std::span(std::as_const(padded))), HostSpan(std::span(all)), subject));
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * most);
    list.insert(list.end(), begin, begin + static_cast<std::ptrdiff_t>(counts[rank]));
  }
  return list;
}

/// The last commit that all ranks which made it have, and what is wrong with others, one line each.
struct CommitSearch {
  std::optional<FoundManifest> last;
  std::vector<std::string> notes;
};
/// Agrees with the peers on the last commit of `engine` that each rank finds in its directories, `where`. Collective.
///
/// Errors, on all ranks: unsupported, for a manifest of another version; corrupted, if there are commits but none that
/// is whole, unless the first one of a run is incomplete; invalid_argument, for directories of several runs; those of
/// the files and of the peers.
[[nodiscard]] Result<CommitSearch> search_commits(EngineContext& context, const char* operation,
                                                  const RankDirectory::Options& where, std::uint32_t engine);

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
