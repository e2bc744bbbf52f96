#include "kit/run_program.hpp"

#include <gtest/gtest.h>
#include <algorithm>

namespace penstock::test {
namespace {

TEST(CpuAdamBench, MeasuresFormatsAndTailsAgainstFloorAndPasses) {
  const auto result = run_program(CPU_ADAM_PROGRAM, {"--elements", "20000", "--threads", "1", "--rounds", "2",
                                                     "--format", "split_q8", "--tail", "--optimizers"});

  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* said :
       {"  floor  ", "  plain loop  ", " 28.00 ", "  split_q8  ", " 15.02 ", "  tail fp32  ", " 30.00 ",
        "  passes  ", " 50.00 ", " passes  ", "  one-moment floor  ", "  lion  ", "  adagrad  ", " 20.00 "}) {
    EXPECT_NE(result.out.find(said), std::string::npos) << said << " in\n" << result.out;
  }
  EXPECT_EQ(run_program(CPU_ADAM_PROGRAM, {"--format", "fp8"}).status, 2);
}

TEST(CpuAdamBench, MeasuresARoundForEachLineOfItsInput) {
  const auto result =
      run_program("/bin/sh", {"-c", "printf 'go\\ngo\\n' | " CPU_ADAM_PROGRAM
                                    " --turns --tail --elements 20000 --threads 1 --format split_bf16"});

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 2) << result.out;
  for (const char* said : {"\"split_bf16\":", "\"tail split_bf16\":", "\"passes\":"}) {
    EXPECT_NE(result.out.find(said), std::string::npos) << said << " in " << result.out;
  }
}

}  // namespace
}  // namespace penstock::test
