#include "kit/run_program.hpp"
#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <filesystem>

namespace penstock::test {
namespace {

TEST(CommitBench, ComparesCommitsWithStepsAndTheDisk) {
  const ScratchDirectory directory;
  const auto result = run_program(
      COMMIT_PROGRAM, {"--path", directory.path().string(), "--parameters", "200000", "--rounds", "2"});

  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* said : {"200000 parameters", "states on disk", "in memory, GB/s", "median"}) {
    EXPECT_NE(result.out.find(said), std::string::npos) << said << " in\n" << result.out;
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << "it leaves files";
  EXPECT_EQ(run_program(COMMIT_PROGRAM, {"--parameters", "0"}).status, 2);
}

}  // namespace
}  // namespace penstock::test
