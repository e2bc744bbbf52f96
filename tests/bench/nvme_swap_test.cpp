#include "kit/run_program.hpp"
#include "kit/scratch_directory.hpp"
#include "measure/storage_device.hpp"

#include <penstock/tiers/io/file_system.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <sstream>

namespace penstock::test {
namespace {

using Words = std::vector<std::string>;

/// Runs it briefly on small files.
ProgramResult run_nvme_swap(const std::filesystem::path& directory, const Words& more) {
  Words words{"--path",          directory.string(),
              "--file-size",     "8MiB",
              "--request-size",  "256KiB",
              "--seconds",       "0.05",
              "--rounds",        "1",
              "--tile-elements", "16384"};
  // The small sizes can be given anew: a flag that is given twice is an error.
  for (const std::string& word : more) {
    const auto given = std::find(words.begin(), words.end(), word);
    if (given != words.end()) words.erase(given, given + 2);
  }
  if (std::find(more.begin(), more.end(), "--in-flight") == more.end()) {
    words.insert(words.end(), {"--in-flight", "1MiB"});
  }
  words.insert(words.end(), more.begin(), more.end());
  return run_program(NVME_SWAP_PROGRAM, words);
}

class NvmeSwap : public testing::Test {
 protected:
  void SetUp() override {
    const auto why = measure::describe_storage(directory_.path()).value().cached_because;
    if (why) GTEST_SKIP() << directory_.path() << ": " << *why;
  }
  ProgramResult run(const Words& more) { return run_nvme_swap(directory_.path(), more); }

  ScratchDirectory directory_;
};

TEST_F(NvmeSwap, PrintsItsConditionsAndALineForEachOperation) {
  const auto result = run({});

  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* said : {"Linux ", "huge pages ", "direct I/O", "alignment ", " GB/s", "p99.9", "\nread ",
                           "\nwrite ", "\nmixed "}) {
    EXPECT_NE(result.out.find(said), std::string::npos) << said << " in\n" << result.out;
  }
  EXPECT_EQ(directory_.entry_count(), 0u);
}

TEST_F(NvmeSwap, FailsWhereItCannotPrint) {
  for (const char* const output : {"--json", "--csv"}) {
    expect_output_errors(NVME_SWAP_PROGRAM, {"--path", directory_.path().string(), "--file-size", "8MiB",
                                             "--request-size", "256KiB", "--in-flight", "1MiB", "--seconds",
                                             "0.05", "--rounds", "1", "--operation", "read", output});
  }
  EXPECT_EQ(directory_.entry_count(), 0u);
}

TEST_F(NvmeSwap, MeasuresEveryEngineAtEverySizeSideBySide) {
  const auto result = run({"--operation", "read", "--engine", "auto,threads", "--request-size",
                           "128KiB,256KiB", "--in-flight", "512KiB,1MiB", "--json"});

  EXPECT_EQ(result.status, 0) << result.err;
  const Json::Value json = result.json();
  ASSERT_EQ(json["figures"].size(), 8u) << result.out;
  EXPECT_TRUE(json["direct"].asBool());
  for (const Json::Value& figure : json["figures"]) {
    EXPECT_GT(figure["gb_per_s"]["median"].asDouble(), 0) << figure;
    EXPECT_GT(figure["cpu_s_per_gb"].asDouble(), 0) << figure;
    EXPECT_GT(figure["p50_us"].asDouble(), 0) << figure;
    EXPECT_LE(figure["p50_us"].asDouble(), figure["p999_us"].asDouble()) << figure;
  }
}

TEST_F(NvmeSwap, SwapsWithAndWithoutTheStepAndChecksums) {
  const auto result = run({"--operation", "swap", "--json"});

  EXPECT_EQ(result.status, 0) << result.err;
  const Json::Value figures = result.json()["figures"];
  ASSERT_EQ(figures.size(), 4u) << "mixed is the limit; " << result.out;
  EXPECT_EQ(figures[0]["operation"].asString(), "mixed");
  const bool compute[] = {false, true, true}, integrity[] = {false, false, true};
  for (unsigned i = 0; i < 3; ++i) {
    const Json::Value& figure = figures[i + 1];
    EXPECT_EQ(figure["compute"].asBool(), compute[i]);
    EXPECT_EQ(figure["integrity"].asBool(), integrity[i]);
    EXPECT_EQ(figure.isMember("to_unchecked"), integrity[i]);
    EXPECT_GT(figure["to_mixed"]["median"].asDouble(), 0);
    EXPECT_NEAR(figure["parameters_g_per_s"].asDouble() * 24, figure["gb_per_s"]["median"].asDouble(), 1e-3);
  }
}

TEST_F(NvmeSwap, MovesTheBytesOfEveryFormat) {
  const std::pair<const char*, double> bytes_per_parameter[] = {
      {"fp32", 12}, {"split", 10}, {"split_bf16", 6}, {"split_q8", 4.51}};
  for (const auto& [format, bytes] : bytes_per_parameter) {
    const auto result = run({"--operation", "swap", "--format", format, "--json"});

    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_NEAR(result.json()["swap"]["tile_bytes"].asDouble(), 16384 * bytes, 4096) << format;
  }
}

TEST_F(NvmeSwap, GivesEveryLineOfItsCsvTheSameColumns) {
  const auto result = run({"--operation", "all", "--csv"});

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.err.find("Linux "), std::string::npos) << "what it was measured on is not lost";
  std::istringstream lines(result.out);
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_EQ(std::count(line.begin(), line.end(), ','), 19) << line;
  }
  EXPECT_EQ(count, 1u + 3 + 3);
}

TEST_F(NvmeSwap, RefusesWhatItCannotDo) {
  EXPECT_EQ(run({"--operation", "swap", "--format", "fp64"}).status, 2);
  EXPECT_EQ(run({"--operation", "swim"}).status, 2);
  EXPECT_EQ(run({"--json", "--csv"}).status, 2);
  EXPECT_EQ(run({"--io-deadline", "0"}).status, 2);

  const auto missing = run_nvme_swap("/nonexistent/penstock", {});
  EXPECT_EQ(missing.status, 1);
  EXPECT_NE(missing.err.find("/nonexistent/penstock"), std::string::npos) << missing.err;

  const auto too_large = run({"--file-size", "1000TiB"});
  EXPECT_EQ(too_large.status, 1);
  EXPECT_NE(too_large.err.find("do not fit"), std::string::npos) << too_large.err;
}

TEST(NvmeSwapOnATmpfs, RefusesToMeasureThePageCacheAsADisk) {
  const std::filesystem::path directory = "/dev/shm";
  if (tiers::real_file_system().type_name(directory) != "tmpfs") GTEST_SKIP() << "/dev/shm is no tmpfs";

  const auto refused = run_nvme_swap(directory, {});
  const auto table = run_nvme_swap(directory, {"--allow-page-cache"});
  const auto json = run_nvme_swap(directory, {"--allow-page-cache", "--json"});

  EXPECT_EQ(refused.status, 1);
  EXPECT_EQ(refused.out, "");
  EXPECT_NE(refused.err.find("--allow-page-cache"), std::string::npos) << refused.err;
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_NE(table.out.find("cache GB/s"), std::string::npos) << table.out;
  EXPECT_TRUE(json.json()["direct"].isBool() && !json.json()["direct"].asBool()) << json.out;
}

}  // namespace
}  // namespace penstock::test
