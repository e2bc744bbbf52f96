#include "kit/run_program.hpp"
#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <regex>
#include <string>
#include <vector>

namespace penstock::test {
namespace {

std::vector<std::string> arguments(const ScratchDirectory& directory) {
  return {"--path",      directory.path().string(),
          "--layers",    "1",
          "--width",     "64",
          "--heads",     "2",
          "--context",   "16",
          "--sequences", "1",
          "--steps",     "2",
          "--rounds",    "1"};
}

TEST(Zero3Step, ComparesARunOnDiskWithOneInMemoryAndWithTheDisk) {
  const ScratchDirectory directory;

  const auto result = run_program(ZERO3_STEP_PROGRAM, arguments(directory));

  EXPECT_EQ(result.status, 0) << result.err;
  // In memory, disk alone, on disk; ratios to both floors, cores and disk; stalls; bytes; simulated.
  const std::regex round(
      R"( +1( +[0-9]+\.[0-9]{3}){3}( +[0-9]+\.[0-9]{2}){4}( +[0-9]+\.[0-9]{3}){3}( +[1-9][0-9.]* [KMG]iB){2})"
      R"( +[0-9]+\.[0-9]{3} +[0-9]+\.[0-9]{2}( +[1-9][0-9.]* [KMG]iB){2}\n)");
  EXPECT_TRUE(std::regex_search(result.out, round)) << result.out;
  EXPECT_NE(result.out.find("stalled"), std::string::npos) << result.out;
}

TEST(Zero3Step, RefusesAModelThatIsNone) {
  const ScratchDirectory directory;
  auto wrong = arguments(directory);
  wrong[5] = "63";  // no multiple of the heads

  const auto result = run_program(ZERO3_STEP_PROGRAM, wrong);

  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.err.find("width"), std::string::npos) << result.err;
  EXPECT_EQ(run_program(ZERO3_STEP_PROGRAM, {"--rounds", "0"}).status, 2);
}

TEST(Zero3Step, FailsWhereItCannotPrint) {
  const ScratchDirectory directory;

  expect_output_errors(ZERO3_STEP_PROGRAM, arguments(directory));
}

}  // namespace
}  // namespace penstock::test
