// The files of share/ are what the programs take.
#include "kit/scratch_directory.hpp"
#include "run_penstock.hpp"

#include <gtest/gtest.h>
#include <filesystem>
#include <string>
#include <vector>

namespace penstock::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> files_in(const char* folder) {
  std::vector<std::string> names;
  for (const auto& file : fs::directory_iterator(fs::path(PENSTOCK_SHARE) / folder))
    names.push_back(file.path().string());
  EXPECT_FALSE(names.empty());
  return names;
}

TEST(SharedFiles, AreMachinesAndConfigurationsOfSimulations) {
  std::string config;
  for (const std::string& file : files_in("published"))
    if (fs::path(file).extension() == ".json") config = file;
  for (const std::string& machine : files_in("machines")) {
    const auto result = run_penstock({"simulate", "--model", "gpt2", "--config", config, "--gpus", "8",
                                      "--tokens", "1024", "--machine", machine});
    EXPECT_EQ(result.status, 0) << machine << "\n" << result.err;
  }
}

TEST(SharedFiles, AreLayoutsAndConfigurationsOfEstimates) {
  std::string layout;
  for (const std::string& file : files_in("published"))
    if (fs::path(file).extension() == ".hjson") {
      layout = file;
      const auto result = run_penstock({"estimate", "--model", file, "--gpus", "512"});
      EXPECT_EQ(result.status, 0) << file << "\n" << result.err;
    }
  for (const std::string& file : files_in("published"))
    if (fs::path(file).extension() == ".json") {
      const auto result = run_penstock({"estimate", "--model", layout, "--gpus", "512", "--config", file});
      EXPECT_EQ(result.status, 0) << file << "\n" << result.err;
    }
}

}  // namespace
}  // namespace penstock::test
