#include "kit/run_program.hpp"
#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <filesystem>
#include <string>
#include <vector>

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

TEST(ResumeBench, GoesOnWithTheBitsOfTheRunThatNeverStopped) {
  for (const char* const device : {"cpu", "nvme"}) {
    for (const bool checkpoint : {false, true}) {
      SCOPED_TRACE(std::string(device) + (checkpoint ? " checkpoint" : " commit"));
      const ScratchDirectory directory;
      std::vector<std::string> words = {
          "--path", directory.path().string(), "--parameters", "200000", "--device", device};
      if (checkpoint) words.emplace_back("--checkpoint");
      const auto saved = run_program(RESUME_PROGRAM, words);
      words.emplace_back("--load");
      const auto loaded = run_program(RESUME_PROGRAM, words);

      EXPECT_EQ(saved.status, 0) << saved.err;
      EXPECT_EQ(loaded.status, 0) << loaded.err;
      EXPECT_EQ(saved.json()["digest"], loaded.json()["digest"]) << saved.out << loaded.out;
      EXPECT_GT(loaded.json()["load"].asDouble(), 0) << loaded.out;
    }
  }
}

}  // namespace
}  // namespace penstock::test
