#include "zero/commit/choose_commit.hpp"

#include "zero/commit/rank_directory.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace penstock::zero {

namespace {

constexpr std::size_t ranks_in_message_max = 16;

FoundManifest part_of(const FoundManifest& commit, std::uint32_t rank) {
  FoundManifest part = commit;
  part.rank = rank;
  return part;
}

std::string name_of(const FoundManifest& commit) {
  return "commit " + std::to_string(commit.generation) + " of " + std::to_string(commit.ranks) + " ranks";
}

std::string number(std::uint32_t rank) {
  return std::to_string(rank);
}

/// The views of all ranks, and the commits in them.
class Views {
 public:
  Views(const char* operation, const std::filesystem::path& directory, std::span<const CommitView> views,
        std::uint32_t ranks)
      : operation_(operation), directory_(directory), ranks_(ranks) {
    for (const CommitView& view : views) {
      seen_.push_back({{view.manifests.begin(), view.manifests.end()}, {}, {}});
      for (const CommitView::Mark& mark : view.marks)
        seen_.back().marks.emplace(static_cast<std::uint32_t>(mark.rank), mark.run);
      for (const FoundManifest& one : view.manifests) {
        commits_[part_of(one, 0)].insert(one.rank);
        std::uint64_t& oldest = seen_.back().oldest.try_emplace(one.rank, one.generation).first->second;
        oldest = std::min(oldest, one.generation);
      }
    }
  }

  /// Errors: invalid_argument. A first commit that was never complete is marked nowhere, and has none before it.
  [[nodiscard]] Result<void> check_one_run() const {
    std::optional<Place> first;
    for (std::uint32_t viewer = 0; viewer < seen_.size(); ++viewer) {
      for (const auto& [rank, run] : seen_[viewer].marks) {
        const Place place{viewer, rank, run};
        if (first && first->run != run) return two_runs(*first, place);
        if (!first) first = place;
      }
    }
    for (const auto& [commit, parts] : commits_) {
      if (parts.size() != commit.ranks && commit.before_generation == 0) continue;
      const Place place{viewer_of(part_of(commit, *parts.begin())), *parts.begin(), commit.run};
      if (first && first->run != commit.run) return two_runs(*first, place);
      if (!first) first = place;
    }
    return ok();
  }

  [[nodiscard]] std::optional<FoundManifest> last_usable() const {
    std::optional<FoundManifest> last;
    for (const auto& [commit, parts] : commits_) {
      if (unseen_part(commit)) continue;
      if (!last || commit.generation > last->generation) last = commit;
    }
    return last;
  }

  /// Errors: not_found, corrupted.
  [[nodiscard]] Result<void> check_newer(const std::optional<FoundManifest>& last) const {
    const std::uint64_t generation = last ? last->generation : 0;
    const auto lost = complete_after(generation);
    for (const FoundManifest& commit : newest_first()) {
      if (commit.generation < (lost ? lost->generation : generation + 1)) break;
      if (commits_.at(commit).size() == commit.ranks) return unreadable(commit);
    }
    if (lost) return missing_part(*lost, "name another directory for a new run");
    return check_marks();
  }
  /// Errors: corrupted, for a commit that lacks a part.
  [[nodiscard]] Result<void> check_any(const std::optional<FoundManifest>& last) const {
    if (last || commits_.empty()) return ok();
    const std::vector<FoundManifest> commits = newest_first();
    for (const FoundManifest& commit : commits) {
      if (commits_.at(commit).size() == commit.ranks) return unreadable(commit);
    }
    return missing_part(commits.front(), "load another checkpoint");
  }

 private:
  struct Seen {
    std::set<FoundManifest> manifests;
    std::map<std::uint32_t, RankDirectory::Run> marks;  // by rank
    std::map<std::uint32_t, std::uint64_t> oldest;      // generation of a manifest, by rank
  };
  struct Place {
    std::uint32_t viewer, rank;
    RankDirectory::Run run;
  };
  struct Unseen {
    std::uint32_t viewer, rank;
  };

  [[nodiscard]] const Seen& view_of(std::uint32_t rank) const {
    return seen_.size() == 1 ? seen_.front() : seen_.at(rank);
  }
  [[nodiscard]] std::uint32_t viewer_of(const FoundManifest& part) const {
    const auto sees = [&](const Seen& seen) { return seen.manifests.contains(part); };
    return static_cast<std::uint32_t>(std::find_if(seen_.begin(), seen_.end(), sees) - seen_.begin());
  }
  /// A part that a rank needs to go on from the commit and does not see.
  [[nodiscard]] std::optional<Unseen> unseen_part(const FoundManifest& commit) const {
    for (std::uint32_t viewer = 0; viewer < ranks_; ++viewer) {
      const bool has_all = commit.ranks != ranks_;
      for (std::uint32_t rank = has_all ? 0 : viewer; rank < (has_all ? commit.ranks : viewer + 1); ++rank) {
        if (!view_of(viewer).manifests.contains(part_of(commit, rank))) return Unseen{viewer, rank};
      }
    }
    return std::nullopt;
  }
  [[nodiscard]] std::vector<FoundManifest> newest_first() const {
    std::vector<FoundManifest> commits;
    for (const auto& [commit, parts] : commits_) commits.push_back(commit);
    std::stable_sort(commits.begin(), commits.end(),
                     [](const auto& a, const auto& b) { return a.generation > b.generation; });
    return commits;
  }
  /// A commit after `generation` that was complete once, as a later one or the mark of a rank tells; the newest one of
  /// which a rank has nothing older, and else any.
  [[nodiscard]] std::optional<FoundManifest> complete_after(std::uint64_t generation) const {
    std::uint64_t complete = generation;  // the newest that is certain
    for (const auto& [commit, parts] : commits_) complete = std::max(complete, commit.before_generation);
    bool is_marked = false;  // a rank that has nothing older
    for (const Seen& seen : seen_) {
      for (const auto& [rank, run] : seen.marks) {
        const auto oldest = seen.oldest.find(rank);
        is_marked |= oldest != seen.oldest.end() && oldest->second > generation;
      }
    }
    if (complete == generation && !is_marked) return std::nullopt;
    std::optional<FoundManifest> lost;
    for (const FoundManifest& commit : newest_first()) {
      if (commit.generation <= generation) break;
      if (has_nothing_older(commit)) return commit;
      if (!lost || commit.generation >= complete) lost = commit;
    }
    return lost;
  }
  /// Whether a marked rank has the commit and none before it: once a commit is complete, its ranks remove the one
  /// before.
  [[nodiscard]] bool has_nothing_older(const FoundManifest& commit) const {
    return std::any_of(seen_.begin(), seen_.end(), [&](const Seen& seen) {
      return std::any_of(seen.marks.begin(), seen.marks.end(), [&](const auto& mark) {
        const std::uint32_t rank = mark.first;
        return seen.manifests.contains(part_of(commit, rank)) && seen.oldest.at(rank) == commit.generation;
      });
    });
  }
  /// Where a number is, a manifest must be.
  [[nodiscard]] Result<void> check_marks() const {
    for (std::uint32_t viewer = 0; viewer < seen_.size(); ++viewer) {
      for (const auto& [rank, run] : seen_[viewer].marks) {
        if (seen_[viewer].oldest.contains(rank)) continue;
        return with_ranks(
            Error(ErrorCode::corrupted, operation_)
                .object(part_name(rank))
                .reason("it has the number of a run, and no manifest that can be read")
                .advice("bring back what was removed or damaged; for a new run, name another directory"));
      }
    }
    return ok();
  }

  [[nodiscard]] std::string part_name(std::uint32_t rank) const {
    return (directory_ / rank_name(rank)).string();
  }
  /// "commit 9 of 4 ranks": the newest that a rank has of its own.
  [[nodiscard]] std::string has_of(std::uint32_t rank) const {
    const std::set<FoundManifest>& manifests = view_of(rank).manifests;
    std::optional<FoundManifest> newest;
    for (const FoundManifest& one : manifests) {
      if (one.rank == rank && (!newest || one.generation > newest->generation)) newest = one;
    }
    return newest ? name_of(*newest) : "no commit";
  }
  /// The same beside `commit`.
  [[nodiscard]] std::string has_of(std::uint32_t rank, const FoundManifest& commit) const {
    const std::string has = has_of(rank);
    return has == name_of(commit) ? has + " of another start" : has;
  }
  /// With a line for each rank, as many as a message may have.
  [[nodiscard]] Error with_ranks(Error error) const {
    const std::uint32_t shown = std::min<std::uint32_t>(ranks_, ranks_in_message_max);
    for (std::uint32_t rank = 0; rank < shown; ++rank)
      error = std::move(error).note("rank " + number(rank) + " has " + has_of(rank));
    return error;
  }
  [[nodiscard]] Error two_runs(const Place& a, const Place& b) const {
    const std::string reason = seen_.size() == 1
                                   ? "it belongs to another run than " + part_name(a.rank)
                                   : "rank " + number(b.viewer) + " finds another run there than rank " +
                                         number(a.viewer) + " in " + part_name(a.rank);
    return with_ranks(
        Error::invalid_argument(operation_)
            .object(part_name(b.rank))
            .reason(reason)
            .advice("give each run a directory of its own; move the parts of one of them away"));
  }
  [[nodiscard]] Error unreadable(const FoundManifest& commit) const {
    const Unseen unseen = *unseen_part(commit);
    const bool is_own = unseen.viewer == unseen.rank;
    return with_ranks(
        Error(ErrorCode::not_found, operation_)
            .object(part_name(unseen.rank))
            .reason(name_of(commit) + " is whole, but rank " + number(unseen.viewer) + " of " +
                    number(ranks_) + " does not find " +
                    (is_own ? "its own part" : "the part of rank " + number(unseen.rank)))
            .advice(commit.ranks == ranks_
                        ? "start each rank where its directory is, or bring the directory there"
                        : "start " + number(commit.ranks) +
                              " ranks where they were; another number of ranks needs the directories of all, "
                              "or a checkpoint, where each rank can read them"));
  }
  [[nodiscard]] Error missing_part(const FoundManifest& commit, const std::string& otherwise) const {
    const std::set<std::uint32_t>& parts = commits_.at(commit);
    std::uint32_t missing = 0;
    while (parts.contains(missing)) ++missing;
    std::string reason = name_of(commit) + " has no part of rank " + number(missing);
    if (missing < ranks_) reason += ", which has " + has_of(missing, commit);
    return with_ranks(
        Error(ErrorCode::corrupted, operation_)
            .object(part_name(missing))
            .reason(reason)
            .advice(
                "bring the directories of all ranks together as they were at one time" +
                (commit.ranks == ranks_ ? std::string() : ", and start " + number(commit.ranks) + " ranks") +
                "; or " + otherwise));
  }

  const char* operation_;
  const std::filesystem::path& directory_;
  std::uint32_t ranks_;
  std::vector<Seen> seen_;                                    // by rank, or one for all
  std::map<FoundManifest, std::set<std::uint32_t>> commits_;  // by their rank 0: the ranks with a part
};

}  // namespace

Result<std::optional<FoundManifest>> choose_commit(const char* operation,
                                                   const std::filesystem::path& directory,
                                                   std::span<const CommitView> views, std::uint32_t ranks) {
  const Views seen(operation, directory, views, ranks);
  PENSTOCK_TRY(seen.check_one_run());
  const auto last = seen.last_usable();
  PENSTOCK_TRY(seen.check_newer(last));
  return last;
}

Result<std::optional<FoundManifest>> choose_checkpoint(const char* operation,
                                                       const std::filesystem::path& directory,
                                                       std::span<const CommitView> views,
                                                       std::uint32_t ranks) {
  const Views seen(operation, directory, views, ranks);
  PENSTOCK_TRY(seen.check_one_run());
  const auto last = seen.last_usable();
  PENSTOCK_TRY(seen.check_any(last));
  return last;
}

}  // namespace penstock::zero
