// Jobs of several processes, started as a user starts them.
#include "kit/run_program.hpp"

#include <gtest/gtest.h>
#include <sys/uio.h>
#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace penstock::zero {
namespace {

using penstock::test::ProgramResult;

/// Some containers refuse the call with which Open MPI copies between processes.
bool can_copy_between_processes() {
  char from = 'x', to = ' ';
  const iovec local{&to, 1}, remote{&from, 1};
  return ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == 1;
}

class MpiRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(PENSTOCK_MPIEXEC))
      GTEST_SKIP() << "there is no mpirun (Debian: openmpi-bin) at " PENSTOCK_MPIEXEC;
    const auto set = [](const char* name, const char* value) { ::setenv(name, value, 1); };
    set("PENSTOCK_MPI", PENSTOCK_MPI_FILE);
    // Open MPI's mpirun refuses these without being asked.
    set("OMPI_ALLOW_RUN_AS_ROOT", "1");
    set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    set("OMPI_MCA_rmaps_base_oversubscribe", "1");
    set("OMPI_MCA_hwloc_base_binding_policy", "none");
    if (!can_copy_between_processes()) set("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
  }

  static ProgramResult start(const std::string& ranks, const std::string& name) {
    return penstock::test::run_program(PENSTOCK_MPIEXEC, {"-n", ranks, PENSTOCK_MPI_RANKS, name});
  }
  static void expect_success(const std::string& ranks, const std::string& name) {
    const ProgramResult result = start(ranks, name);
    EXPECT_EQ(result.status, 0) << name << " on " << ranks << " ranks\n" << result.out << result.err;
  }
};

TEST_F(MpiRanks, ExchangeBytesOfAnySize) {
  expect_success("2", "exchange");
  expect_success("4", "exchange");
}

TEST_F(MpiRanks, GoOnAfterInterruptions) {
  expect_success("2", "interrupt");
  expect_success("4", "interrupt");
}

TEST_F(MpiRanks, ReadEverythingThatARankWroteBeforeItLeft) {
  expect_success("2", "leave");
  expect_success("3", "leave");
}

TEST_F(MpiRanks, SendWhileTheyWaitForSomethingElse) {
  // Then the receiver cannot fetch a message without the sender.
  ::setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
  const ProgramResult result = start("2", "carry_on");
  EXPECT_NE(result.out.find("rank 1 has done its part"), std::string::npos) << result.out << result.err;
}

TEST_F(MpiRanks, EndWithoutARankThatIsLost) {
  const ProgramResult result = start("2", "lose");
  EXPECT_NE(result.status, 0) << "mpirun reports it";
  EXPECT_NE(result.out.find("rank 0 has done its part"), std::string::npos) << result.out << result.err;
}

TEST_F(MpiRanks, FulfilTheConformanceSuiteOfCommunicators) {
  for (const int ranks : {2, 3}) {
    const ProgramResult result =
        penstock::test::run_program(PENSTOCK_MPIEXEC, {"-n", std::to_string(ranks), PENSTOCK_MPI_CONFORMANCE,
                                                       "--gtest_filter=Everywhere/*", "--gtest_brief=1"});
    EXPECT_EQ(result.status, 0) << ranks << " ranks\n" << result.out << result.err;
    int passed = 0;
    for (std::size_t at = 0; (at = result.out.find("  PASSED  ", at)) != std::string::npos; ++at) ++passed;
    EXPECT_EQ(passed, ranks) << result.out;
  }
}

TEST_F(MpiRanks, WaitForOneThatDoesNotStartMpiUntilTheDeadline) {
  const ProgramResult result = start("2", "wait_in_vain");
  EXPECT_NE(result.out.find("rank 0 has done its part"), std::string::npos) << result.out << result.err;
}

TEST_F(MpiRanks, WaitNoLongerForOneThatHasFailedBeforeItStartsMpi) {
  const ProgramResult result = start("2", "wait_no_longer");
  EXPECT_NE(result.out.find("rank 0 has done its part"), std::string::npos) << result.out << result.err;
}

}  // namespace
}  // namespace penstock::zero
