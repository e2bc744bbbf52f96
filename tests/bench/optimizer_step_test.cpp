#include "kit/run_program.hpp"
#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>

namespace penstock::test {
namespace {

TEST(OptimizerStep, PutsChecksumsOnAndOffSideBySide) {
  const ScratchDirectory directory;

  const auto result = run_program(OPTIMIZER_STEP_PROGRAM,
                                  {"--path", directory.path().string(), "--parameters", "1000000",
                                   "--unit-parameters", "500000", "--rounds", "1", "--integrity", "both"});

  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* said : {"checksums both", "     1        on", "     1       off", "of the rate without"}) {
    EXPECT_NE(result.out.find(said), std::string::npos) << said << " in\n" << result.out;
  }
  EXPECT_EQ(run_program(OPTIMIZER_STEP_PROGRAM, {"--integrity", "perhaps"}).status, 2);
}

}  // namespace
}  // namespace penstock::test
