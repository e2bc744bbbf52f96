#include "kit/run_program.hpp"

#include <gtest/gtest.h>

namespace penstock::test {
namespace {

ProgramResult run_bandwidth(std::vector<std::string> arguments) {
  for (const char* small : {"--total=1MiB", "--elements=5000", "--launches=2", "--rounds=3"}) {
    arguments.emplace_back(small);
  }
  return run_program(FAKE_CUDA_BANDWIDTH_PROGRAM, arguments);
}

TEST(CudaBandwidth, ReportsEachDirectionSizeAndKernelWithPositiveFigures) {
  const auto result = run_bandwidth({"--json"});

  ASSERT_EQ(result.status, 0) << result.err;
  const Json::Value json = result.json();
  std::vector<std::string> rows;
  for (const Json::Value& row : json["copies"]) {
    rows.push_back(row["direction"].asString() + " " + row["bytes"].asString());
    for (const char* figure : {"bare_gb_per_s", "penstock_gb_per_s", "ratio"}) {
      EXPECT_GT(row[figure].asDouble(), 0) << rows.back() << " " << figure;
    }
  }
  for (const Json::Value& row : json["kernels"]) {
    rows.push_back(row["name"].asString() + " " + std::to_string(row["bytes_per_element"].asInt()));
    for (const char* figure : {"gb_per_s", "copy_gb_per_s", "to_copy"}) {
      EXPECT_GT(row[figure].asDouble(), 0) << rows.back() << " " << figure;
    }
  }
  EXPECT_EQ(rows,
            (std::vector<std::string>{
                "to device 262144", "to device 1048576", "to host 262144", "to host 1048576",
                "both at once 262144", "both at once 1048576", "adam fp32 28", "adam moments 26",
                "adam split 26", "adam split_bf16 18", "adam split_q8 15", "accumulate bf16 into fp32 10",
                "cast fp32 to bf16 6", "cast bf16 to fp32 6", "scale fp32 8", "scale bf16 4",
                "mean of two, bf16 6", "square sums of fp32 4", "square sums of bf16 2"}));
}

TEST(CudaBandwidth, PrintsATableOfThePartsThatWereAskedFor) {
  const auto result = run_bandwidth({"--only=copies"});

  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* said : {"penstock GB/s", "to device        256.0 KiB", "both at once       1.0 MiB"}) {
    EXPECT_NE(result.out.find(said), std::string::npos) << said << " in\n" << result.out;
  }
  EXPECT_EQ(result.out.find("adam"), std::string::npos) << result.out;
}

TEST(CudaBandwidth, RefusesWhatItCannotMeasure) {
  EXPECT_EQ(run_bandwidth({"--only=kernel"}).status, 2);
  EXPECT_EQ(run_program(CUDA_BANDWIDTH_PROGRAM, {"--total=4KiB"}).status, 2);
}

}  // namespace
}  // namespace penstock::test
