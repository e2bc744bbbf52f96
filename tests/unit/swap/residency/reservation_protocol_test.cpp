// The protocol by which requests and reading ahead share host memory, searched exhaustively: two threads that run short
// programs of leases, hints, and transfers that end in any order. Every state that some interleaving reaches is visited
// once, and checked. HostResidency cannot be copied, so that a state is reached by repeating its calls.
#include "unit/swap/residency/reservation_world.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ranges>
#include <set>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

namespace penstock::swap {
namespace {

using test::Choice;
using test::Operation;
using test::Program;
using test::program_of;
using test::Scenario;
using test::text_of;
using test::threads;
using test::World;

struct Found {
  std::set<std::string> outcomes;
  std::size_t states = 0;
  std::string violation;  // with the calls that lead to it
};

class Search {
 public:
  /// Without merging, a state that is reached in two ways is searched twice.
  explicit Search(const Scenario& scenario, bool merges = true) : scenario_(scenario), merges_(merges) {}
  Found run() {
    visit(begin());
    found_.states = seen_.size();
    return std::move(found_);
  }

 private:
  std::unique_ptr<World> begin() {
    auto world = std::make_unique<World>(scenario_, ids_);
    for (const Choice& choice : path_) world->apply(choice);
    return world;
  }
  void visit(std::unique_ptr<World> world) {
    if (!world->violation().empty()) return fail(world->violation());
    const std::string state = world->state();
    if (on_path_.contains(state)) return fail("it goes round without an end");
    if (!seen_.insert(state).second && merges_) return;
    const std::vector<Choice> choices = world->choices();
    if (choices.empty()) found_.outcomes.insert(world->outcome());
    on_path_.insert(state);
    for (std::size_t i = 0; i < choices.size() && found_.violation.empty(); ++i) {
      if (!world) world = begin();
      path_.push_back(choices[i]);
      world->apply(choices[i]);
      visit(std::move(world));
      world.reset();
      path_.pop_back();
    }
    on_path_.erase(state);
  }
  void fail(const std::string& reason) {
    if (!found_.violation.empty()) return;
    found_.violation = reason + "\n after";
    for (const Choice& choice : path_) {
      static constexpr std::array names{" thread ", " transfer ", " hint "};
      found_.violation += names[static_cast<std::size_t>(choice.kind)] + std::to_string(choice.index);
    }
  }

  const Scenario& scenario_;
  const bool merges_;
  const std::array<std::thread::id, threads> ids_ = test::two_thread_ids();
  std::vector<Choice> path_;
  std::unordered_set<std::string> seen_, on_path_;
  Found found_;
};

/// All programs of so many uses of tensors below `tensors`, after each other or held together.
std::vector<Program> programs(std::size_t uses, std::size_t tensors, const std::vector<Access>& accesses) {
  std::vector<std::vector<std::pair<std::size_t, Access>>> all(1);
  for (std::size_t i = 0; i < uses; ++i) {
    std::vector<std::vector<std::pair<std::size_t, Access>>> longer;
    for (const auto& one : all) {
      for (std::size_t tensor = 0; tensor < tensors; ++tensor) {
        for (const Access access : accesses) {
          longer.push_back(one);
          longer.back().emplace_back(tensor, access);
        }
      }
    }
    all = std::move(longer);
  }
  std::vector<Program> made;
  for (const auto& one : all) {
    made.push_back(program_of(one, false));
    std::set<std::size_t> different;
    for (const auto& [tensor, access] : one) different.insert(tensor);
    if (uses > 1 && different.size() == uses) made.push_back(program_of(one, true));
  }
  return made;
}

const std::vector<Access> accesses{Access::read, Access::modify};

/// Uses of the first thread, then those of the second.
std::vector<std::size_t> uses_of(const std::array<Program, threads>& of) {
  std::vector<std::size_t> uses;
  for (const Program& program : of) {
    for (const Operation& operation : program) {
      if (operation.kind == Operation::Kind::acquire) uses.push_back(operation.tensor);
    }
  }
  return uses;
}

// Equal texts of states mean equal futures: nothing more is found where they are not merged.
TEST(ReservationProtocol, IsSearchedWhereStatesAreMerged) {
  for (const Program& one : programs(1, 2, accesses)) {
    for (const Program& other : programs(1, 2, accesses)) {
      const Scenario scenario{.pages = {1, 1, 1}, .programs = {one, other}, .hints = {2}};
      const Found merged = Search(scenario).run(), all = Search(scenario, /*merges=*/false).run();
      EXPECT_EQ(merged.states, all.states);
      EXPECT_EQ(merged.outcomes, all.outcomes);
      EXPECT_EQ(all.violation, "");
    }
  }
}

/// Searches without reading ahead, with a hint, with a prediction, and with both, of which the hint says Hint::next.
std::array<Found, 4> search(Scenario scenario) {
  std::array<Found, 4> found;
  for (std::size_t i = 0; i < found.size(); ++i) {
    scenario.hints = i % 2 == 1 ? std::vector<std::size_t>{2} : std::vector<std::size_t>{};
    scenario.hint = i == 3 ? Hint::next : Hint::soon;
    scenario.expected = i >= 2 ? uses_of(scenario.programs) : std::vector<std::size_t>{};
    found[i] = Search(scenario).run();
    EXPECT_EQ(found[i].violation, "") << text_of(scenario);
  }
  return found;
}

/// The requests that fail in the worst outcome.
std::size_t most_failures(const Found& found) {
  std::size_t most = 0;
  for (const std::string& outcome : found.outcomes)
    most = std::max(most, static_cast<std::size_t>(std::ranges::count(outcome, 'n')));
  return most;
}

/// What scenarios have in common.
struct Summary {
  std::size_t scenarios = 0, states = 0;
  std::size_t changed = 0;  // scenarios that have other outcomes when tensors are read ahead
  std::size_t worse = 0;    // of these, those in which more requests fail with a hint or a prediction
  std::size_t worse_with_both = 0;
};
/// With all programs.
Summary search(Scenario scenario, const std::vector<Program>& first, const std::vector<Program>& second) {
  Summary summary;
  for (const Program& one : first) {
    for (const Program& other : second) {
      scenario.programs = {one, other};
      const auto found = search(scenario);
      ++summary.scenarios;
      for (const Found& of_one : found) summary.states += of_one.states;
      const auto& [plain, hinted, predicted, both] = found;
      summary.changed += std::ranges::any_of(
          found, [&plain = plain](const Found& of_one) { return of_one.outcomes != plain.outcomes; });
      summary.worse += std::max(most_failures(hinted), most_failures(predicted)) > most_failures(plain);
      summary.worse_with_both += most_failures(both) > most_failures(plain);
      if (testing::Test::HasFailure()) return summary;
    }
  }
  return summary;
}

/// `states_min`: so that the search has searched.
void expect_no_change(const Summary& summary, std::size_t scenarios, std::size_t states_min) {
  EXPECT_EQ(summary.scenarios, scenarios);
  EXPECT_GE(summary.states, states_min);
  EXPECT_EQ(summary.changed, 0u);
}

TEST(ReservationProtocol, HoldsForTensorsOfOneSize) {
  expect_no_change(search({.pages = {1, 1, 1}}, programs(2, 3, accesses), programs(1, 3, accesses)), 360,
                   100'000);
}

TEST(ReservationProtocol, HoldsForTensorsThatAreWrittenBehind) {
  expect_no_change(search({.pages = {1, 1, 1}, .write_behind = true}, programs(2, 3, {Access::modify}),
                          programs(1, 3, accesses)),
                   90, 50'000);
}

TEST(ReservationProtocol, HoldsForTwoThreadsThatHoldLeases) {
  expect_no_change(
      search({.pages = {1, 1, 1}}, programs(2, 3, {Access::read}), programs(2, 3, {Access::modify})), 225,
      150'000);
}

TEST(ReservationProtocol, HoldsInMemoryForOneTensor) {
  expect_no_change(
      search({.pages = {1, 1, 1}, .budget = 1}, programs(2, 2, accesses), programs(1, 3, accesses)), 144,
      30'000);
}

// What is read ahead may lie where its lease leaves other gaps, so that another request fails, but not one more; seldom
// one more with a hint and a prediction. An engine's budget is enough wherever its leases lie.
TEST(ReservationProtocol, HoldsForTensorsOfSeveralSizes) {
  struct Sizes {
    std::vector<std::uint64_t> pages;
    std::uint64_t budget;
  };
  std::size_t worse_with_both = 0;
  for (const auto& [pages, budget] : {Sizes{{1, 2, 1}, 3},
                                      {{2, 1, 1}, 3},
                                      {{1, 1, 2}, 3},
                                      {{1, 2, 2}, 4},
                                      {{1, 2, 3}, 5},
                                      {{3, 2, 1}, 5}}) {
    const Summary found =
        search({.pages = pages, .budget = budget}, programs(2, 3, {Access::read}), programs(1, 3, accesses));
    EXPECT_EQ(found.scenarios, 90u);
    EXPECT_GE(found.states, 25'000u);
    EXPECT_EQ(found.worse, 0u);
    worse_with_both += found.worse_with_both;
  }
  EXPECT_EQ(worse_with_both, 12u);
}

TEST(ReservationProtocol, HoldsForTwoThreadsThatHoldLeasesOfSeveralSizes) {
  const Summary found = search({.pages = {1, 2, 3}, .budget = 5}, programs(2, 3, {Access::read}),
                               programs(2, 3, {Access::modify}));
  EXPECT_EQ(found.scenarios, 225u);
  EXPECT_GE(found.states, 100'000u);
  EXPECT_EQ(found.worse, 0u);
  EXPECT_EQ(found.worse_with_both, 2u);
}

}  // namespace
}  // namespace penstock::swap
