#include "kit/scratch_directory.hpp"
#include "run_penstock.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <set>

namespace penstock::test {
namespace {

TEST(Doctor, SaysWhatThisMachineCanDoAndWhatFollowsWhereItCannot) {
  ScratchDirectory directory;

  const auto result = run_penstock({"doctor", "--json", "--path", directory.path().string()});

  EXPECT_EQ(result.status, 0) << result.out << result.err;
  const Json::Value findings = result.json();
  std::set<std::string> capabilities;
  for (const Json::Value& finding : findings) {
    capabilities.insert(finding["capability"].asString());
    EXPECT_NE(finding["found"].asString(), "") << finding;
    EXPECT_EQ(finding["consequence"].asString().empty(), finding["state"] == "used") << finding;
  }
  for (const std::string& each :
       {std::string("io_uring"), std::string("memlock limit"), std::string("huge pages"), std::string("SIMD"),
        std::string("CUDA"), std::string("NCCL"), std::string("MPI"),
        "direct I/O of " + directory.path().string(), "free space of " + directory.path().string()}) {
    EXPECT_TRUE(capabilities.contains(each)) << each;
  }
  EXPECT_EQ(directory.entry_count(), 0u);
}

TEST(Doctor, FailsWhenAPathCannotHoldSwapFiles) {
  const auto result = run_penstock({"doctor", "--path", "/nonexistent/penstock"});

  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.out.find("unusable  swap files of /nonexistent/penstock"), std::string::npos)
      << result.out;
}

TEST(Doctor, GivesEachCapabilityOneLine) {
  ScratchDirectory directory;
  const std::vector<std::string> path{"--path", directory.path().string()};

  const auto lines = run_penstock({"doctor", path[0], path[1]});
  const auto json = run_penstock({"doctor", path[0], path[1], "--json"});

  EXPECT_EQ(static_cast<Json::ArrayIndex>(std::count(lines.out.begin(), lines.out.end(), '\n')),
            json.json().size());
}

}  // namespace
}  // namespace penstock::test
