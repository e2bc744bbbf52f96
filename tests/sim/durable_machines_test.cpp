// Durable runs whose ranks are on several machines, each with durable directories of its own: what a start refuses, and
// that a refusal loses nothing.
#include "kit/cluster.hpp"
#include "kit/scratch_directory.hpp"
#include "sim/saving_runs.hpp"

#include <gtest/gtest.h>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::ScratchDirectory;
namespace fs = std::filesystem;

/// Machines A, B, C in a scratch directory.
class Machines {
 public:
  explicit Machines(OffloadDevice to) : to_(to) {}

  /// Starts a rank on each machine that `layout` names, "AABB": begins a run, or goes on, to `steps` steps in all, with
  /// a commit after the last one.
  [[nodiscard]] RunResult run(const std::string& layout, std::uint32_t steps) const {
    RunOptions options{
        .ranks = static_cast<std::uint32_t>(layout.size()), .micro_batches = 1, .steps = steps};
    options.config.offload_optimizer.device = to_;
    options = durable(std::move(options), directory('A'));
    for (const char machine : layout) options.machines.push_back(directory(machine));
    options.after_steps = [](Engine& engine) -> Result<void> {
      PENSTOCK_TRY(engine.commit());
      return ok();
    };
    bool is_fresh = true;
    for (const auto& [name, text] : commits())
      is_fresh &= !name.ends_with(".run") || layout.find(name.front()) == std::string::npos;
    return train(is_fresh ? options : resuming(options));
  }
  [[nodiscard]] fs::path directory(char machine) const { return scratch_.path() / std::string(1, machine); }
  [[nodiscard]] fs::path part(char machine, std::uint32_t rank) const {
    return directory(machine) / ("rank000" + std::to_string(rank));
  }
  void copy(char from, char to) const {
    fs::remove_all(directory(to));
    fs::copy(directory(from), directory(to), fs::copy_options::recursive);
  }
  /// The manifests and the numbers of runs on all machines, with their contents.
  [[nodiscard]] std::map<std::string, std::string> commits() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(scratch_.path())) {
      const auto extension = entry.path().extension();
      if (extension == ".manifest" || extension == ".run")
        files.emplace(fs::relative(entry.path(), scratch_.path()).string(), text_of(entry.path()));
    }
    return files;
  }
  /// The start is refused, and every commit stays.
  void expect_refused(const std::string& layout, ErrorCode code, const std::string& text) const {
    SCOPED_TRACE(layout);
    const auto before = commits();
    const RunResult refused = run(layout, 9);
    ASSERT_TRUE(refused.error);
    EXPECT_EQ(to_string(refused.error->code()), to_string(code)) << refused.error->message();
    EXPECT_NE(refused.error->message().find(text), std::string::npos) << refused.error->message();
    EXPECT_EQ(commits(), before);
  }
  void expect_goes_on(const std::string& layout, std::uint32_t steps) const {
    const RunResult again = run(layout, steps);
    EXPECT_FALSE(again.error) << layout << ": " << again.error->message();
  }

 private:
  ScratchDirectory scratch_;
  OffloadDevice to_;
};

class DurableMachines : public ::testing::TestWithParam<OffloadDevice> {
 protected:
  Machines machines{GetParam()};
};

TEST_P(DurableMachines, GoOnWhereEachRankFindsItsPart) {
  const ScratchDirectory together;
  RunOptions once{.ranks = 4, .micro_batches = 1, .steps = 3};
  once.config.offload_optimizer.device = GetParam();
  const RunResult expected = train(durable(std::move(once), together.path() / "run"));
  ASSERT_FALSE(machines.run("AABB", 1).error);
  ASSERT_FALSE(machines.run("AABB", 2).error);

  const RunResult result = machines.run("AABB", 3);

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.parameters, expected.parameters);
}

TEST_P(DurableMachines, GoOnBesideWhatAStartElsewhereHasLeft) {
  ASSERT_FALSE(machines.run("AABB", 1).error);
  // As if it had been killed in its first commit, when ranks 0 and 2 had their manifests.
  for (const char machine : {'A', 'B'}) {
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      fs::remove(machines.part(machine, rank) / "engine0.run");
      if (rank % 2 != 0) fs::remove(machines.part(machine, rank) / "engine0-000000000001.manifest");
    }
  }
  ASSERT_FALSE(machines.run("BBAA", 1).error);

  machines.expect_goes_on("BBAA", 2);
}

TEST_P(DurableMachines, GoOnBesideCopiesOfOtherRanks) {
  ASSERT_FALSE(machines.run("A", 1).error);
  machines.copy('A', 'B');
  ASSERT_FALSE(machines.run("AB", 2).error);

  machines.expect_goes_on("AB", 3);
}

TEST_P(DurableMachines, RefuseOneOfAnotherRun) {
  ASSERT_FALSE(machines.run("AABB", 2).error);
  for (const std::string other : {"C", "CC", "CCC", "CCCC", "CCCCC"}) {
    ASSERT_FALSE(machines.run(other, other.size() % 2 == 0 ? 1 : 4).error);
    machines.expect_refused("CCBB", ErrorCode::invalid_argument, "another run");
    machines.expect_refused("AACC", ErrorCode::invalid_argument, "another run");
    fs::remove_all(machines.directory('C'));
  }
  machines.expect_goes_on("AABB", 3);
}

TEST_P(DurableMachines, RefusePartsOfAnotherRunThatAreCopiedOverTheirs) {
  ASSERT_FALSE(machines.run("AAAA", 3).error);
  ASSERT_FALSE(machines.run("CC", 2).error);
  machines.copy('A', 'B');
  for (const std::uint32_t rank : {0u, 1u}) {
    fs::remove_all(machines.part('A', rank));
    fs::rename(machines.part('C', rank), machines.part('A', rank));
  }
  fs::remove_all(machines.directory('C'));

  machines.expect_refused("AAAA", ErrorCode::invalid_argument, "another run");
  machines.expect_refused("AA", ErrorCode::invalid_argument, "another run");
  machines.expect_goes_on("BBBB", 4);
}

TEST_P(DurableMachines, RefuseAnOlderCopyOfOne) {
  ASSERT_FALSE(machines.run("AA", 1).error);
  machines.copy('A', 'C');
  ASSERT_FALSE(machines.run("AAAA", 2).error);
  fs::create_directory(machines.directory('B'));
  for (const std::uint32_t rank : {2u, 3u}) fs::rename(machines.part('A', rank), machines.part('B', rank));
  ASSERT_FALSE(machines.run("AABB", 3).error);

  machines.expect_refused("CCBB", ErrorCode::corrupted, "no part of rank 0, which has commit 1 of 2 ranks");
  machines.copy('B', 'C');
  machines.expect_goes_on("AABB", 4);
  machines.expect_refused("AACC", ErrorCode::corrupted, "no part of rank 2, which has commit 3 of 4 ranks");
  machines.expect_goes_on("AABB", 5);
}

TEST_P(DurableMachines, RefuseRanksThatAreStartedElsewhere) {
  ASSERT_FALSE(machines.run("AAAA", 1).error);
  machines.copy('A', 'B');
  ASSERT_FALSE(machines.run("AABB", 2).error);

  machines.expect_refused("BBAA", ErrorCode::not_found, "start each rank where its directory is");
  machines.expect_goes_on("AABB", 3);
}

TEST_P(DurableMachines, RefuseAnotherNumberOfRanksThatSeeNotAll) {
  ASSERT_FALSE(machines.run("AABB", 2).error);
  for (const std::string layout : {"AAB", "AABBB", "AABBC"})
    machines.expect_refused(layout, ErrorCode::not_found, "start 4 ranks where they were");
  machines.expect_refused("AA", ErrorCode::corrupted, "start 4 ranks");
  machines.expect_refused("BB", ErrorCode::corrupted, "start 4 ranks");
  machines.expect_goes_on("AABB", 3);
}

TEST_P(DurableMachines, BeginNoRunBesideAnother) {
  ASSERT_FALSE(machines.run("BB", 2).error);
  machines.expect_refused("AABB", ErrorCode::not_found, "commit 1 of 2 ranks is whole");
  fs::remove_all(machines.directory('B'));
  machines.expect_goes_on("AABB", 1);
}

INSTANTIATE_TEST_SUITE_P(, DurableMachines, ::testing::Values(OffloadDevice::nvme, OffloadDevice::cpu),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace penstock::zero::test
