#include "kit/free_port.hpp"
#include "kit/run_program.hpp"

#include <gtest/gtest.h>

namespace penstock::test {
namespace {

TEST(CollectiveOrder, ComparesHopsWithDirectCallsInProcessAndOverTcp) {
  const auto result =
      run_program(COLLECTIVE_ORDER_PROGRAM, {"--flats", "48", "96", "--rounds", "2", "--seconds", "0.001",
                                             "--ranks", "3", "--port", std::to_string(free_port())});

  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* said : {" 3 ranks", "CPU ratio", "  in process    48.0 KiB ", "  in process    96.0 KiB ",
                           "  TCP    48.0 KiB ", "  TCP    96.0 KiB "}) {
    EXPECT_NE(result.out.find(said), std::string::npos) << said << " in\n" << result.out;
  }
  EXPECT_EQ(run_program(COLLECTIVE_ORDER_PROGRAM, {"--ranks", "1"}).status, 2);
}

}  // namespace
}  // namespace penstock::test
