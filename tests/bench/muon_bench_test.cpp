#include "kit/run_program.hpp"

#include <gtest/gtest.h>

namespace penstock::test {
namespace {

TEST(MuonBench, ComparesAStepWithItsProducts) {
  const auto result = run_program(MUON_PROGRAM, {"--rows", "70", "--columns", "50", "--rounds", "2"});

  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* said : {"70 x 50, 2 threads, lib", "products by the BLAS", "GFLOP/s", "step of Muon"}) {
    EXPECT_NE(result.out.find(said), std::string::npos) << said << " in\n" << result.out;
  }
  EXPECT_EQ(run_program(MUON_PROGRAM, {"--rows", "0"}).status, 2);
}

}  // namespace
}  // namespace penstock::test
