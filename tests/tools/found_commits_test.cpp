#include "durable/found_commits.hpp"

#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <vector>

namespace penstock::tool {
namespace {

using zero::Manifest;
using zero::RankDirectory;

/// The durable directory of a run of two ranks, to which manifests alone are written.
class FoundCommitsTest : public testing::Test {
 protected:
  void commit(std::uint64_t generation, std::uint32_t ranks_of_it = 2, std::uint32_t engine = 0) {
    for (std::uint32_t rank = 0; rank < ranks_of_it; ++rank) {
      Manifest manifest{.run = {1, 2}, .generation = generation, .attempt = 7, .rank = rank, .ranks = 2};
      manifest.engine = engine;
      manifest.model.units = {{.name = "u", .parameters = {{"w", ElementCount(1)}}}};
      manifest.groups = manifest.model.groups;
      auto directory = RankDirectory::open({.directories = directories(), .rank = rank}).value();
      directory->write(manifest).value();
      directory->mark(engine, manifest.run).value();
    }
  }
  void remove(std::uint64_t generation) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) remove_of_rank(rank, generation);
  }
  void remove_of_rank(std::uint32_t rank, std::uint64_t generation) {
    RankDirectory::open({.directories = directories(), .rank = rank}).value()->remove(0, generation).value();
  }
  std::vector<std::filesystem::path> directories() const { return {scratch_.path() / "run"}; }

 private:
  penstock::test::ScratchDirectory scratch_;
};

TEST_F(FoundCommitsTest, TheLastOneOfWhichEveryRankHasItsPart) {
  commit(3);
  commit(4);
  commit(5, /*ranks_of_it=*/1);
  commit(9, 2, /*engine=*/1);
  const auto found = find_commits(directories()).value();

  EXPECT_EQ(last_commit(found, 0).value()->generation, 4u);
  EXPECT_EQ(last_commit(found, 1).value()->generation, 9u);
  EXPECT_EQ(last_commit(found, 2).error().code(), ErrorCode::not_found);
}

TEST_F(FoundCommitsTest, NoneWhereANewerOneHasLostAPart) {
  commit(4);
  commit(5);
  remove_of_rank(0, 4);
  remove_of_rank(1, 5);
  const auto found = find_commits(directories()).value();

  EXPECT_EQ(last_commit(found, 0).error().code(), ErrorCode::corrupted);
}

TEST_F(FoundCommitsTest, ACommitIsReplacedOnceItsManifestsAreGone) {
  commit(3);
  const auto found = find_commits(directories()).value();
  const FoundCommit& third = *last_commit(found, 0).value();
  EXPECT_FALSE(is_replaced(third, found));
  commit(4);
  EXPECT_FALSE(is_replaced(third, found)) << "its extents are still pinned";

  remove(3);

  EXPECT_TRUE(is_replaced(third, found));
}

}  // namespace
}  // namespace penstock::tool
