#include "zero/commit/superseded_files.hpp"

#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::ScratchDirectory;
using Names = std::vector<std::string>;

/// Two durable directories, to which manifests and files alone are written.
class FormerRanks : public testing::Test {
 protected:
  RankDirectory::Options of_rank(std::uint32_t rank) const {
    return {.directories = {scratch_.path() / "a", scratch_.path() / "b"}, .rank = rank};
  }
  /// Makes the manifest, and the files beside it.
  void commit(std::uint32_t rank, std::uint64_t generation, std::uint32_t engine = 0, std::uint64_t run = 1) {
    Manifest made{.run = {run, 2}, .generation = generation, .rank = rank, .ranks = 9, .engine = engine};
    made.model.units = {{.name = "u", .parameters = {{"p", ElementCount(5), 0}}}};
    made.groups = {{}};
    const auto directory = RankDirectory::open(of_rank(rank)).value();
    ASSERT_TRUE(directory->write(made));
    std::ofstream(directory->path(0) / "swap0") << "bytes";
    std::ofstream(directory->path(1) / "swap1") << "bytes";
    std::ofstream(directory->path(1) / directory->copies_name(engine, 1)) << "bytes";
  }
  /// What is left in the first and the second directory of a rank.
  Names left(std::uint32_t rank) const {
    Names names;
    for (const char* directory : {"a", "b"}) {
      for (const auto& one :
           std::filesystem::directory_iterator(scratch_.path() / directory / rank_name(rank))) {
        const std::string name = one.path().filename().string();
        if (name != "penstock.lock") names.push_back(name);
      }
    }
    std::ranges::sort(names);
    return names;
  }
  /// By a rank of a run that now has two, whose last commit is number 7.
  Result<void> remove(std::uint32_t rank = 0, std::uint32_t ranks_of_last = 2) {
    return remove_former_ranks(of_rank(rank), 0, {.run = {1, 2}, .generation = 7, .ranks = ranks_of_last}, 2);
  }

  const ScratchDirectory scratch_;
};

TEST_F(FormerRanks, AreRemovedByOneOfTheRanksThatAreLeft) {
  for (const std::uint32_t rank : {0u, 1u, 2u, 3u}) commit(rank, 6);

  ASSERT_TRUE(remove(0));

  EXPECT_EQ(left(0).size(), 4u);
  EXPECT_EQ(left(1).size(), 4u);
  EXPECT_EQ(left(2), Names());
  EXPECT_EQ(left(3).size(), 4u);
  ASSERT_TRUE(remove(1));
  EXPECT_EQ(left(1).size(), 4u);
  EXPECT_EQ(left(3), Names());
}

TEST_F(FormerRanks, StayWhileTheLastCommitIsTheirs) {
  commit(2, 6);

  ASSERT_TRUE(remove(0, /*ranks_of_last=*/3));

  EXPECT_EQ(left(2).size(), 4u);
}

TEST_F(FormerRanks, KeepManifestsOfOthersAndTheirFiles) {
  commit(2, 6);
  commit(2, 8);
  commit(4, 6);
  commit(4, 6, /*engine=*/1);
  commit(6, 6, 0, /*run=*/5);

  ASSERT_TRUE(remove());

  EXPECT_EQ(left(2), (Names{"copies0-1", "engine0-000000000008.manifest", "swap0", "swap1"}))
      << "a later one";
  EXPECT_EQ(left(4), (Names{"copies0-1", "copies1-1", "engine1-000000000006.manifest", "swap0", "swap1"}))
      << "another engine";
  EXPECT_EQ(left(6).size(), 4u) << "another run";
}

TEST_F(FormerRanks, KeepFilesThatAreNotPenstocks) {
  commit(2, 6);
  for (const char* name : {"swap", "swap0.old", "copies0", "copies0-x", "copies-1", "notes.txt"})
    std::ofstream(scratch_.path() / "a" / "rank0002" / name) << "mine";

  ASSERT_TRUE(remove());

  EXPECT_EQ(left(2), (Names{"copies-1", "copies0", "copies0-x", "notes.txt", "swap", "swap0.old"}));
}

TEST_F(FormerRanks, StayWhileAProcessHasThem) {
  commit(2, 6);
  commit(4, 6);
  const auto held = RankDirectory::open(of_rank(2)).value();

  ASSERT_TRUE(remove());

  EXPECT_EQ(left(2).size(), 4u);
  EXPECT_EQ(left(4), Names());
}

TEST_F(FormerRanks, AreRemovedWhereARemovalHasStoppedBetweenFiles) {
  commit(2, 6);
  std::filesystem::remove(scratch_.path() / "a" / "rank0002" / manifest_name(0, 6));
  std::filesystem::remove(scratch_.path() / "b" / "rank0002" / "swap1");

  ASSERT_TRUE(remove());

  EXPECT_EQ(left(2), Names());
}

}  // namespace
}  // namespace penstock::zero::test
