// What the ranks go on from where each sees directories of its own.
#include "zero/commit/choose_commit.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

/// A commit of run 1, unless it says otherwise.
struct Commit {
  std::uint64_t generation;
  std::uint32_t ranks;
  std::uint64_t run = 1, attempt = 0;
  std::optional<std::uint64_t> before = {};  // not given: generation - 1
};

/// A machine: the parts in its directory, and the ranks in it that have the run's number.
struct Machine {
  std::vector<std::pair<Commit, std::vector<std::uint32_t>>> parts;
  std::map<std::uint32_t, std::uint64_t> marks;  // by rank: the run

  [[nodiscard]] CommitView view() const {
    CommitView view;
    for (const auto& [commit, ranks] : parts) {
      for (const std::uint32_t rank : ranks)
        view.manifests.push_back({.run = {commit.run, 0},
                                  .generation = commit.generation,
                                  .attempt = commit.attempt == 0 ? commit.generation : commit.attempt,
                                  .before_generation = commit.before.value_or(commit.generation - 1),
                                  .ranks = commit.ranks,
                                  .rank = rank});
    }
    for (const auto& [rank, run] : marks) view.marks.push_back({.run = {run, 0}, .rank = rank});
    return view;
  }
};

/// `machines`: of each rank.
Result<std::optional<FoundManifest>> choose(const std::vector<Machine>& machines) {
  std::vector<CommitView> views;
  for (const Machine& machine : machines) views.push_back(machine.view());
  return choose_commit("the test", "run", views, static_cast<std::uint32_t>(machines.size()));
}
std::uint64_t chosen(const std::vector<Machine>& machines) {
  const auto choice = choose(machines);
  EXPECT_TRUE(choice) << choice.error().message();
  return choice && *choice ? (*choice)->generation : 0;
}
void expect_refused(const std::vector<Machine>& machines, ErrorCode code,
                    const std::vector<std::string>& texts) {
  const auto refused = choose(machines);
  ASSERT_FALSE(refused) << ((*refused) ? std::to_string((*refused)->generation) : "none");
  EXPECT_EQ(to_string(refused.error().code()), to_string(code)) << refused.error().message();
  for (const std::string& text : texts)
    EXPECT_NE(refused.error().message().find(text), std::string::npos) << refused.error().message();
}

/// Ranks 0 and 1, and ranks 2 and 3, of a run that has made commit `generation`.
Machine first_two(std::uint64_t generation) {
  return {.parts = {{{generation, 4}, {0, 1}}}, .marks = {{0, 1}, {1, 1}}};
}
Machine last_two(std::uint64_t generation) {
  return {.parts = {{{generation, 4}, {2, 3}}}, .marks = {{2, 1}, {3, 1}}};
}
/// A machine with all of a run of `ranks`.
Machine all_of(Commit commit) {
  Machine machine{.parts = {{commit, {}}}};
  for (std::uint32_t rank = 0; rank < commit.ranks; ++rank) {
    machine.parts[0].second.push_back(rank);
    machine.marks[rank] = commit.run;
  }
  return machine;
}

TEST(ChooseCommit, TakesTheOneOfWhichEachRankSeesItsPart) {
  EXPECT_EQ(chosen({{}, {}}), 0u);
  const Machine a = first_two(10), b = last_two(10);
  EXPECT_EQ(chosen({a, a, b, b}), 10u);
}

TEST(ChooseCommit, NeedsThePartsOfAllForAnotherNumberOfRanks) {
  const Machine all = all_of({10, 4}), a = first_two(10), b = last_two(10);
  for (const std::size_t ranks : {1u, 2u, 3u, 5u, 8u}) EXPECT_EQ(chosen(std::vector(ranks, all)), 10u);

  expect_refused({a, a, b}, ErrorCode::not_found, {"start 4 ranks", "rank 0 of 3", "the part of rank 2"});
  expect_refused({a, a, b, b, {}}, ErrorCode::not_found, {"start 4 ranks", "rank 4 has no commit"});
  expect_refused({a, a}, ErrorCode::corrupted, {"no part of rank 2", "start 4 ranks"});
}

TEST(ChooseCommit, DropsAnIncompleteOne) {
  Machine a = first_two(10), b = last_two(10);
  a.parts.push_back({{11, 4}, {1}});
  b.parts.push_back({{11, 4}, {2}});
  EXPECT_EQ(chosen({a, a, b, b}), 10u);
  // The first one.
  EXPECT_EQ(chosen({{.parts = {{{1, 2}, {0}}}}, {}}), 0u);
  // The first one of more ranks: the additional ones have no number before it is complete.
  Machine all = all_of({10, 2});
  all.parts.push_back({{11, 4}, {0, 2, 3}});
  EXPECT_EQ(chosen({all, all, all, all}), 10u);
  // One of more ranks that was left when fewer went on: these parts still have the one before.
  Machine fewer = all_of({10, 4});
  fewer.parts = {{{10, 4}, {2, 3}}, {{11, 4}, {2, 3}}, {{11, 2, 1, /*attempt=*/99}, {0, 1}}};
  EXPECT_EQ(chosen({fewer, fewer}), 11u);
}

TEST(ChooseCommit, DropsFailedOnesWhoseManifestsStayed) {
  // The first one failed, and the next was not completed.
  EXPECT_EQ(chosen({{.parts = {{{2, 2, 1, 0, /*before=*/0}, {0}}}}, {}}), 0u);
  Machine a = first_two(10), b = last_two(10);
  b.parts.push_back({{11, 4}, {3}});
  b.parts.push_back({{12, 4, 1, 0, /*before=*/10}, {3}});
  b.parts.push_back({{13, 4, 1, 0, /*before=*/10}, {2, 3}});
  EXPECT_EQ(chosen({a, a, b, b}), 10u);
}

TEST(ChooseCommit, BlamesTheRankThatIsAway) {
  Machine a = first_two(14);
  a.parts.push_back({{15, 4}, {0}});
  expect_refused({a, a, {}, {}}, ErrorCode::corrupted, {"commit 14 of 4 ranks has no part of rank 2"});
  expect_refused({a, a, last_two(13), last_two(13)}, ErrorCode::corrupted,
                 {"commit 14 of 4 ranks has no part of rank 2, which has commit 13"});
}

TEST(ChooseCommit, FindsTheManifestOfARankThatHasTheNumberOfTheRun) {
  Machine all = all_of({5, 2});
  all.marks[2] = all.marks[3] = 1;  // their manifests of a later commit are damaged
  expect_refused({all, all, all, all}, ErrorCode::corrupted, {"rank0002", "no manifest that can be read"});
}

TEST(ChooseCheckpoint, IsTheWholeOneBesideAnother) {
  const auto choose_in = [](const std::vector<Machine>& machines) {
    std::vector<CommitView> views;
    for (const Machine& machine : machines) views.push_back(machine.view());
    return choose_checkpoint("the test", "run", views, static_cast<std::uint32_t>(machines.size()));
  };
  // Rank 0 had another machine when the first trial was killed.
  const Machine a{.parts = {{{15, 2, 1, /*attempt=*/7}, {0}}, {{15, 2, 1, 8}, {1}}}},
      b{.parts = {{{15, 2, 1, 8}, {0}}}};
  EXPECT_EQ(choose_in({b, a}).value()->attempt, 8u);
  EXPECT_FALSE(choose_in({{}, {}}).value());
  EXPECT_EQ(choose_in({b, {}}).error().code(), ErrorCode::corrupted);
  EXPECT_EQ(choose_in({a, b}).error().code(), ErrorCode::not_found);
}

TEST(ChooseCommit, RefusesAnOlderOneWhereTheLastHasLostParts) {
  const Machine a = first_two(10), b = last_two(10), none{};
  expect_refused({a, a, none, none}, ErrorCode::corrupted, {"commit 10 of 4 ranks has no part of rank 2"});
  expect_refused({first_two(1), first_two(1), none, none}, ErrorCode::corrupted,
                 {"commit 1 of 4 ranks has no part of rank 2"});
  expect_refused({a, a, last_two(9), last_two(9)}, ErrorCode::corrupted,
                 {"no part of rank 2, which has commit 9 of 4 ranks", "rank 0 has commit 10"});
  // Rank 0's machine has an older copy, of a time when the run had two ranks.
  const Machine old = all_of({5, 2});
  expect_refused({old, old, b, b}, ErrorCode::corrupted,
                 {"commit 10 of 4 ranks has no part of rank 0, which has commit 5 of 2 ranks"});
  // The same where each rank sees all.
  Machine all = old;
  all.parts.push_back({{10, 4}, {2, 3}});
  all.marks[2] = all.marks[3] = 1;
  expect_refused({all, all, all, all}, ErrorCode::corrupted, {"commit 10 of 4 ranks has no part of rank 0"});
  // Another continuation of the run.
  Machine other = b;
  other.parts = {{{10, 4, 1, /*attempt=*/77}, {2, 3}}};
  expect_refused({a, a, other, other}, ErrorCode::corrupted, {"rank 3 has commit 10 of 4 ranks"});
}

TEST(ChooseCommit, RefusesAnOlderOneWhereALaterOneTellsThatItIsOlder) {
  // Rank 0 could not remove the manifest of commit 10; rank 1 has a copy of then.
  const Machine copy = all_of({10, 2});
  Machine stayed = copy;
  stayed.parts.push_back({{12, 2}, {0}});
  expect_refused({stayed, copy}, ErrorCode::corrupted, {"commit 12 of 2 ranks has no part of rank 1"});
}

TEST(ChooseCommit, RefusesAnOlderOneWhereTheNumberOfTheRunTellsThatALaterOneWasComplete) {
  Machine all = all_of({10, 1});
  all.parts.push_back({{11, 2}, {1}});
  EXPECT_EQ(chosen({all, all}), 10u);
  all.marks[1] = 1;
  expect_refused({all, all}, ErrorCode::corrupted, {"commit 11 of 2 ranks has no part of rank 0"});
}

TEST(ChooseCommit, NamesAWholeOneThatTheRanksCannotRead) {
  // Copies of commit 10; a start of three ranks was killed in the next one, and the fourth machine is empty.
  const Machine a = all_of({10, 2});
  Machine c = a;
  c.parts.push_back({{11, 3}, {2}});
  expect_refused({a, a, c, {}}, ErrorCode::not_found, {"commit 10 of 2 ranks is whole", "start 2 ranks"});
}

TEST(ChooseCommit, RefusesPartsOfARunThatIsNotMarked) {
  Machine all = all_of({3, 2});
  all.parts.push_back({{11, 3, /*run=*/2}, {2}});
  expect_refused({all, all}, ErrorCode::invalid_argument, {"another run"});
}

TEST(SupersededManifest, IsBeforeTheLastCompleteOneOfALaterOne) {
  const auto of = [](std::uint64_t generation, std::uint64_t attempt, std::uint64_t before,
                     std::uint64_t before_attempt, std::uint64_t run = 1) {
    return Manifest{.run = {run, 0},
                    .generation = generation,
                    .attempt = attempt,
                    .before_generation = before,
                    .before_attempt = before_attempt};
  };
  const Manifest later = of(12, 5, 10, 4);
  EXPECT_TRUE(is_superseded(of(9, 1, 8, 1), later));
  EXPECT_TRUE(is_superseded(of(10, 3, 9, 1), later)) << "an attempt that was not completed";
  EXPECT_FALSE(is_superseded(of(10, 4, 9, 1), later)) << "the one before";
  EXPECT_FALSE(is_superseded(of(11, 9, 10, 4), later)) << "which may be complete elsewhere";
  EXPECT_FALSE(is_superseded(later, later));
  EXPECT_FALSE(is_superseded(of(9, 1, 8, 1, /*run=*/2), later));
}

TEST(ChooseCommit, DropsWhatAnotherPlacementOfTheRanksHasLeft) {
  // A first start was killed in its first commit; the next one has its ranks on the other machines.
  Machine a{.parts = {{{1, 4, /*run=*/7}, {0}}, {{1, 4}, {2, 3}}}, .marks = {{2, 1}, {3, 1}}};
  Machine b{.parts = {{{1, 4, /*run=*/7}, {2}}, {{1, 4}, {0, 1}}}, .marks = {{0, 1}, {1, 1}}};
  EXPECT_EQ(chosen({b, b, a, a}), 1u);
  // Of a run that was copied to both.
  a = {.parts = {{{11, 4, 1, 77}, {0, 1}}, {{11, 4}, {2, 3}}}, .marks = {{0, 1}, {1, 1}, {2, 1}, {3, 1}}};
  b = {.parts = {{{10, 2}, {0}}, {{11, 4, 1, 77}, {2}}, {{11, 4}, {0, 1}}}, .marks = {{0, 1}, {1, 1}}};
  EXPECT_EQ(chosen({b, b, a, a}), 11u);
  // Parts of another continuation count as older ones.
  Machine both = first_two(10);
  both.parts.push_back({{10, 4, 1, 77}, {2, 3}});
  EXPECT_EQ(chosen({both, both, last_two(10), last_two(10)}), 10u);
}

TEST(ChooseCommit, RefusesAnOlderOneWhereTheLastIsElsewhere) {
  // All is on both machines; the ranks went on in one half of each, and are started in the others.
  Machine a = all_of({10, 4}), b = all_of({10, 4});
  a.parts = {{{14, 4}, {0, 1}}, {{10, 4}, {2, 3}}};
  b.parts = {{{10, 4}, {0, 1}}, {{14, 4}, {2, 3}}};
  EXPECT_EQ(chosen({a, a, b, b}), 14u);
  expect_refused({b, b, a, a}, ErrorCode::not_found,
                 {"commit 14 of 4 ranks is whole", "its own part", "start each rank where its directory is"});
  const Machine whole = all_of({14, 4}), older = all_of({10, 4});
  expect_refused({whole, whole, older, older}, ErrorCode::not_found, {"rank 2 has commit 10"});
}

TEST(ChooseCommit, RefusesPartsOfTwoRuns) {
  const Machine a = first_two(10), b = last_two(10);
  for (const std::uint32_t ranks : {1u, 2u, 3u, 4u, 6u}) {
    for (const std::uint64_t generation : {3u, 10u, 20u}) {
      const Machine c = all_of({generation, ranks, /*run=*/2});
      expect_refused({c, c, b, b}, ErrorCode::invalid_argument, {"another run", "rank0000"});
      expect_refused({a, a, c, c}, ErrorCode::invalid_argument, {"another run", "rank0000"});
    }
  }
  // Leftovers beside the parts of the run.
  Machine beside = b;
  beside.parts.push_back({{10, 4, /*run=*/2}, {0}});
  beside.marks[0] = 2;
  expect_refused({a, a, beside, beside}, ErrorCode::invalid_argument, {"rank 2 finds another run"});
  // Copied over those of the run, where each rank sees all.
  Machine all = all_of({10, 4});
  all.parts = {{{6, 2, /*run=*/2}, {0, 1}}, {{10, 4}, {2, 3}}};
  all.marks[0] = all.marks[1] = 2;
  expect_refused({all, all, all, all}, ErrorCode::invalid_argument, {"another run"});
  expect_refused({all, all}, ErrorCode::invalid_argument, {"another run"});
}

TEST(ChooseCommit, BeginsNoRunBesideAnother) {
  const Machine other = all_of({10, 2, /*run=*/2});
  expect_refused({{}, {}, other, other}, ErrorCode::not_found, {"commit 10 of 2 ranks is whole"});
  const Machine left{.parts = {{{10, 6}, {4, 5}}}, .marks = {{4, 1}, {5, 1}}};
  expect_refused({{}, {}, left, left}, ErrorCode::corrupted,
                 {"commit 10 of 6 ranks", "rank 0 has no commit"});
  expect_refused({{.marks = {{3, 1}}}}, ErrorCode::corrupted, {"rank0003", "no manifest"});
}

/// A model of runs that are killed anywhere, of ranks that are started on any of some machines, in any number. Whatever
/// was killed, the choice is the last complete commit, or an error; and no error where that commit was made.
class Simulated {
 public:
  explicit Simulated(std::uint64_t seed) : random_(seed), machines_(1 + below(4)) {}

  void life() {
    Places places = any_places(1 + below(4));
    for (int start = 0; start < 12; ++start) {
      if (below(3) == 0)
        places = any_places(below(2) == 0 ? static_cast<std::uint32_t>(places.size()) : 1 + below(4));
      if (complete_ && below(3) == 0) places = home_;
      std::vector<Machine> views;
      for (const std::uint32_t machine : places) views.push_back(view(machine));
      // A run of which nothing is there cannot be found.
      if (complete_ &&
          std::none_of(views.begin(), views.end(), [&](const Machine& one) { return knows(one); }))
        continue;
      const auto last = choose(views);
      if (!last && complete_ && !has_what_it_needs(views)) continue;
      ASSERT_TRUE(last) << last.error().message();
      ASSERT_EQ(*last ? (*last)->generation : 0, complete_ ? complete_->generation : 0);
      if (*last) {
        ASSERT_EQ((*last)->attempt, complete_->attempt);
      }
      go_on(places);
      ++starts_;
    }
  }
  [[nodiscard]] std::uint64_t starts() const { return starts_; }

 private:
  using Places = std::vector<std::uint32_t>;  // the machine of each rank
  struct Part {
    std::map<std::uint64_t, Commit> commits;  // by generation
    bool is_marked = false;
  };
  /// Whether each rank sees the parts of the last complete commit that it needs.
  [[nodiscard]] bool has_what_it_needs(const std::vector<Machine>& views) const {
    const bool needs_all = complete_->ranks != views.size();
    for (std::uint32_t viewer = 0; viewer < views.size(); ++viewer) {
      std::set<std::uint32_t> parts;
      for (const auto& [commit, ranks] : views[viewer].parts) {
        if (commit.attempt == complete_->attempt) parts.insert(ranks.begin(), ranks.end());
      }
      if (needs_all ? parts.size() != complete_->ranks : !parts.contains(viewer)) return false;
    }
    return true;
  }
  /// Whether the machine has a rank's number of the run, or anything of the last complete commit. A first one that was
  /// killed before it was marked is like one that was not completed.
  [[nodiscard]] bool knows(const Machine& machine) const {
    const auto is_of_last = [&](const auto& part) {
      return part.first.attempt == complete_->attempt && complete_->before > 0;
    };
    return !machine.marks.empty() || std::any_of(machine.parts.begin(), machine.parts.end(), is_of_last);
  }
  std::uint32_t below(std::uint32_t end) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(random_ >> 33) % end;
  }
  Places any_places(std::uint32_t ranks) {
    Places places(ranks);
    for (std::uint32_t& machine : places) machine = below(machines_);
    return places;
  }
  /// Each operation of one rank is done, or the job was killed before.
  void each(const Places& places, const std::function<void(Part&, std::uint32_t)>& change) {
    for (std::uint32_t rank = 0; rank < places.size(); ++rank) {
      if (killed_ || below(12) == 0) killed_ = killed_ || below(2) == 0;
      if (!killed_ || below(2) == 0) change(parts_[places[rank]][rank], rank);
    }
  }
  void go_on(const Places& places) {
    killed_ = false;
    failed_ = 0;
    // As EngineCommits::open().
    each(places, [&](Part& part, std::uint32_t rank) {
      const bool has_last = complete_ && rank < complete_->ranks;
      if (!has_last) part.is_marked = false;
      if (killed_ && below(2) == 0) return;
      std::erase_if(part.commits,
                    [&](const auto& one) { return !has_last || one.second.attempt != complete_->attempt; });
      if (has_last) part.is_marked = true;
    });
    if (complete_) remove_former(places, *complete_);
    for (std::uint64_t commits = below(4); commits > 0 && !killed_; --commits) commit(places);
  }
  void commit(const Places& places) {
    const auto ranks = static_cast<std::uint32_t>(places.size());
    const std::uint64_t last = complete_ ? complete_->generation : 0;
    const Commit made{last + 1 + failed_, ranks, 1, ++attempts_, last};
    const bool fails = below(4) == 0;
    std::uint32_t written = 0;
    each(places, [&](Part& part, std::uint32_t rank) {
      if (fails && rank == ranks - 1) return;
      part.commits.insert_or_assign(made.generation, made);
      ++written;
    });
    const bool is_whole = written == ranks;
    const auto before = complete_;
    if (is_whole) {
      complete_ = made;
      home_ = places;
    }
    if (killed_) return;
    if (!is_whole) {
      ++failed_;
      each(places, [&](Part& part, std::uint32_t) {
        if (below(3) > 0) part.commits.erase(made.generation);  // or it cannot be removed
      });
      return;
    }
    failed_ = 0;
    each(places, [&](Part& part, std::uint32_t) {
      part.is_marked = true;
      if (killed_ && below(2) == 0) return;
      std::erase_if(part.commits, [&](const auto& one) {
        return one.second.attempt != made.attempt && below(16) > 0;  // or it cannot be removed
      });
    });
    if (before) remove_former(places, made);
  }
  /// Each rank on its machine.
  void remove_former(const Places& places, const Commit& last) {
    const auto ranks = static_cast<std::uint32_t>(places.size());
    for (std::uint32_t rank = std::max(ranks, last.ranks); rank < 4; ++rank) {
      killed_ = killed_ || below(8) == 0;
      if (killed_) return;
      Part& part = parts_[places[rank % ranks]][rank];
      const bool has_any = std::any_of(part.commits.begin(), part.commits.end(),
                                       [&](const auto& one) { return one.first <= last.generation; });
      if (has_any) part.is_marked = false;
      std::erase_if(part.commits, [&](const auto& one) { return one.first <= last.generation; });
    }
  }
  [[nodiscard]] Machine view(std::uint32_t of) const {
    Machine machine;
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      const Part& part = parts_[of][rank];
      for (const auto& [generation, one] : part.commits) machine.parts.push_back({one, {rank}});
      if (part.is_marked) machine.marks[rank] = 1;
    }
    return machine;
  }

  std::uint64_t random_;
  std::uint32_t machines_;
  bool killed_ = false;
  std::uint64_t attempts_ = 1000, failed_ = 0, starts_ = 0;
  Part parts_[4][4];  // by machine and rank
  std::optional<Commit> complete_;
  Places home_;  // where it was made, to start there more often
};

TEST(ChooseCommit, IsTheLastCompleteOneWhereverRunsWereKilled) {
  std::uint64_t starts = 0;
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    SCOPED_TRACE(seed);
    Simulated simulated(seed);
    simulated.life();
    if (HasFatalFailure()) return;
    starts += simulated.starts();
  }
  EXPECT_GT(starts, 30'000u);
}

}  // namespace
}  // namespace penstock::zero::test
