#include "zero/commit/generations.hpp"

#include <gtest/gtest.h>
#include <vector>

namespace penstock::zero::test {
namespace {

FoundManifest manifest(std::uint64_t generation, std::uint32_t ranks, std::uint32_t rank,
                       std::uint64_t attempt = 0, std::uint64_t run = 1) {
  return {.run = {run, 0},
          .generation = generation,
          .attempt = attempt == 0 ? generation : attempt,
          .ranks = ranks,
          .rank = rank};
}

std::uint64_t chosen(const std::vector<FoundManifest>& found) {
  const auto choice = choose_generation(found, "the directory").value();
  return choice ? choice->generation : 0;
}

TEST(ChooseGeneration, TakesTheLastOneThatEveryRankHas) {
  EXPECT_EQ(chosen({}), 0u);
  EXPECT_EQ(chosen({manifest(1, 1, 0)}), 1u);
  EXPECT_EQ(chosen({manifest(1, 2, 0)}), 0u);
  EXPECT_EQ(chosen({manifest(1, 2, 0), manifest(1, 2, 1)}), 1u);
  EXPECT_EQ(chosen({manifest(1, 2, 0), manifest(1, 2, 1), manifest(2, 2, 1)}), 1u);
  EXPECT_EQ(chosen({manifest(2, 2, 0), manifest(1, 2, 1), manifest(2, 2, 1)}), 2u);
}

TEST(ChooseGeneration, CountsAManifestThatTwoRanksHaveFoundOnce) {
  EXPECT_EQ(chosen({manifest(1, 2, 0), manifest(1, 2, 0)}), 0u);
}

TEST(ChooseGeneration, JoinsNoManifestsOfDifferentAttempts) {
  EXPECT_EQ(chosen({manifest(1, 2, 0), manifest(1, 2, 1), manifest(2, 2, 0, 5), manifest(2, 2, 1, 6)}), 1u);
}

TEST(ChooseGeneration, KnowsHowManyRanksEachCommitHas) {
  EXPECT_EQ(chosen({manifest(1, 4, 0), manifest(1, 4, 1), manifest(1, 4, 2), manifest(1, 4, 3),
                    manifest(2, 2, 0), manifest(2, 2, 1)}),
            2u);
  EXPECT_EQ(chosen({manifest(1, 2, 0), manifest(1, 2, 1), manifest(2, 4, 0), manifest(2, 4, 1)}), 1u);
}

TEST(ChooseGeneration, RefusesTwoRunsInOneDirectory) {
  const std::vector<FoundManifest> found = {manifest(1, 1, 0), manifest(2, 1, 0, 0, /*run=*/2)};

  const auto choice = choose_generation(found, "the directory");

  ASSERT_FALSE(choice);
  EXPECT_EQ(choice.error().code(), ErrorCode::invalid_argument);
  EXPECT_NE(choice.error().message().find("the directory"), std::string::npos);
}

}  // namespace
}  // namespace penstock::zero::test
