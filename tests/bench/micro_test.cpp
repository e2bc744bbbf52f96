#include "kit/run_program.hpp"

#include <gtest/gtest.h>
#include <set>
#include <string>

namespace penstock::test {
namespace {

TEST(Micro, RunsEachBenchmarkAtItsSmallestSizeWithoutAnError) {
  const auto result = run_program(MICRO_PROGRAM, {"--benchmark_min_time=0.001", "--benchmark_format=json",
                                                  "--benchmark_filter=-/(tiles:)?10000"});

  EXPECT_EQ(result.status, 0) << result.err;
  const Json::Value report = result.json();
  std::set<std::string> subjects;
  for (const Json::Value& benchmark : report["benchmarks"]) {
    const std::string name = benchmark["name"].asString();
    subjects.insert(name.substr(0, name.find('/')));
    EXPECT_FALSE(benchmark["error_occurred"].asBool()) << name << ": " << benchmark["error_message"];
    EXPECT_GT(benchmark["real_time"].asDouble(), 0) << name;
  }
  EXPECT_EQ(subjects, (std::set<std::string>{"cast", "checksum", "collectives", "extents", "ledger",
                                             "plan_memory", "policy", "residency", "store"}));
}

}  // namespace
}  // namespace penstock::test
