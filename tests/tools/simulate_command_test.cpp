#include "kit/scratch_directory.hpp"
#include "run_penstock.hpp"

#include <penstock/swap/access_trace.hpp>

#include <gtest/gtest.h>
#include <fstream>

namespace penstock::test {
namespace {

using swap::Access;

class SimulateCommand : public testing::Test {
 protected:
  SimulateCommand() {
    swap::AccessTrace trace{.label = "train"};
    for (std::uint32_t i = 0; i < 2; ++i) {
      trace.tensors.push_back(
          {.name = "tile " + std::to_string(i), .size = 1_MiB, .purpose = tiers::Purpose::optimizer_tile});
      trace.uses.push_back({i, Access::modify});
    }
    save_trace(trace, file("trace")).value();
    // A tile is read in 1 s, written in 2 s and updated in 0.5 s.
    std::ofstream(file("machine")) << R"({"disk": {"read": "1 MiB", "write": "0.5 MiB", "mixed": "0.5 MiB",
      "endurance": "1 GiB"}, "use": {"optimizer_tiles": "2 MiB"}})";
  }
  [[nodiscard]] std::string file(const char* name) const { return (scratch_.path() / name).string(); }
  [[nodiscard]] ProgramResult run(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"simulate", file("trace"), "--machine", file("machine")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_penstock(arguments);
  }

 private:
  ScratchDirectory scratch_;
};

TEST_F(SimulateCommand, PrintsWhatAStepTakesAndWhatWouldHelp) {
  const auto result = run({"--host-budget", "1MiB"});

  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* said :
       {"trace train: 2 uses of 2 tensors, 2.0 MiB; host budget 1MiB, planned",
        "time                    5.000 s      7.000 s  100 %",
        "waits for room        2.000 s      4.000 s  57 %", "endurance of 1.0 GiB is 512 such steps",
        "a disk twice as fast                    4.000 s  -43 %"})
    EXPECT_NE(result.out.find(said), std::string::npos) << said << " in\n" << result.out;
}

TEST_F(SimulateCommand, PrintsJson) {
  const auto result =
      run({"--host-budget", "1MiB", "--json", "--lookahead", "0", "--eviction", "lru", "--steps", "2"});

  EXPECT_EQ(result.status, 0) << result.err;
  const Json::Value json = result.json();
  EXPECT_DOUBLE_EQ(json["steady"]["seconds"].asDouble(), 7);
  EXPECT_EQ(json["steady"]["read"].asUInt64(), 2u << 20);
  EXPECT_EQ(json["changes"][0]["what"], "a disk twice as fast");
  EXPECT_DOUBLE_EQ(json["steps_of_endurance"].asDouble(), 512);
}

TEST_F(SimulateCommand, TakesADistanceForReuseDistanceOnly) {
  EXPECT_EQ(
      run({"--host-budget", "4MiB", "--eviction", "reuse_distance", "--reuse-distance-max", "8MiB"}).status,
      0);
  for (const auto& wrong :
       {std::vector<std::string>{"--eviction", "reuse_distance"}, {"--reuse-distance-max", "8MiB"}}) {
    std::vector<std::string> arguments = {"--host-budget", "4MiB"};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    const auto result = run(arguments);
    EXPECT_EQ(result.status, 2);
    EXPECT_NE(result.err.find("--reuse-distance-max"), std::string::npos) << result.err;
  }
}

TEST_F(SimulateCommand, RefusesWhatItCannotUse) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"simulate", file("machine"), "--machine", file("machine"), "--host-budget", "1MiB"},
       "first line of a trace"},
      {{"simulate", file("trace"), "--machine", file("trace"), "--host-budget", "1MiB"},
       "the machine cannot be used"},
      {{"simulate", file("none"), "--machine", file("machine"), "--host-budget", "1MiB"}, "none"},
      {{"simulate", file("trace"), "--machine", file("machine"), "--host-budget", "1KiB"}, "too small"},
      {{"simulate", file("trace"), "--machine", file("machine"), "--host-budget", "much"}, "--host-budget"},
      {{"simulate", file("trace"), "--machine", file("machine"), "--host-budget", "1MiB", "--lookahead", "x"},
       "--lookahead"},
      {{"simulate", file("trace"), "--host-budget", "1MiB"}, "--machine"}};
  for (const auto& [arguments, said] : cases) {
    const auto result = run_penstock(arguments);
    EXPECT_NE(result.status, 0) << said;
    EXPECT_NE(result.err.find(said), std::string::npos) << said << " in\n" << result.err;
    EXPECT_EQ(result.out, "");
  }
}

}  // namespace
}  // namespace penstock::test
