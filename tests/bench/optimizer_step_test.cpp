#include "kit/run_program.hpp"
#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace penstock::test {
namespace {

TEST(OptimizerStep, ComparesChecksumsOnAndOffInTheGivenFormat) {
  const ScratchDirectory directory;

  const auto result =
      run_program(OPTIMIZER_STEP_PROGRAM,
                  {"--path", directory.path().string(), "--parameters", "1000000", "--unit-parameters",
                   "500000", "--rounds", "1", "--integrity", "both", "--format", "split_q8"});

  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* said :
       {"     1  split_q8, no checksums ", "     1  split_q8  ", "split_q8: 1 000 000 parameters",
        "(9.03 B a parameter)", "times as fast as split_q8, no checksums"}) {
    EXPECT_NE(result.out.find(said), std::string::npos) << said << " in\n" << result.out;
  }
  EXPECT_EQ(run_program(OPTIMIZER_STEP_PROGRAM, {"--integrity", "perhaps"}).status, 2);
  EXPECT_EQ(run_program(OPTIMIZER_STEP_PROGRAM, {"--unit-parameters", "0"}).status, 2);
  const auto too_many = run_program(OPTIMIZER_STEP_PROGRAM, {"--parameters", "18446744073709551615"});
  EXPECT_NE(too_many.status, 0);
  EXPECT_NE(too_many.err.find("--parameters"), std::string::npos) << too_many.err;
}

TEST(OptimizerStep, LetsStatesPassThroughASimulatedAccelerator) {
  const ScratchDirectory directory;
  std::vector<std::string> arguments = {"--path",
                                        directory.path().string(),
                                        "--parameters",
                                        "1000000",
                                        "--unit-parameters",
                                        "500000",
                                        "--rounds",
                                        "1",
                                        "--cpu-ratio",
                                        "0"};

  const auto result = run_program(OPTIMIZER_STEP_PROGRAM, arguments);

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("elements a step are updated by the simulated accelerator"), std::string::npos)
      << result.out;
  arguments.emplace_back("--simulate");
  const auto refused = run_program(OPTIMIZER_STEP_PROGRAM, arguments);
  EXPECT_NE(refused.status, 0);
  EXPECT_NE(refused.err.find("--cpu-ratio 1"), std::string::npos) << refused.err;
}

TEST(OptimizerStep, FailsWhereItCannotPrint) {
  const ScratchDirectory directory;

  expect_output_errors(OPTIMIZER_STEP_PROGRAM, {"--path", directory.path().string(), "--parameters", "100000",
                                                "--unit-parameters", "50000", "--rounds", "1"});
}

}  // namespace
}  // namespace penstock::test
