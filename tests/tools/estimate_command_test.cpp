#include "kit/golden.hpp"
#include "kit/scratch_directory.hpp"
#include "run_penstock.hpp"

#include <gtest/gtest.h>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

namespace penstock::test {
namespace {

/// As it would be typed: 1.1, not 1.1000000000000001.
std::string factor_of(const Json::Value& one) {
  char text[32];
  std::snprintf(text, sizeof text, "%.15g", one["additional_buffer_factor"].asDouble());
  return text;
}

/// With one space for each run of white space: CLI11 breaks lines.
std::string squeezed(const std::string& text) {
  std::istringstream in(text);
  std::string out, word;
  while (in >> word) out += (out.empty() ? "" : " ") + word;
  return out;
}

TEST(EstimateCommand, PrintsDeepSpeedsTableByteForByteAndNothingElse) {
  const Json::Value golden = golden_json("estimator.json");
  for (const Json::Value& one : golden["cases"]) {
    const auto whole = [&](const char* key) { return std::to_string(one[key].asUInt64()); };
    for (const char* stage : {"2", "3"}) {
      const auto result = run_penstock({"estimate", "--params", whole("total_params"), "--largest-layer",
                                        whole("largest_layer_params"), "--gpus", whole("num_gpus_per_node"),
                                        "--nodes", whole("num_nodes"), "--factor", factor_of(one), "--stage",
                                        stage, "--format", "deepspeed"});

      EXPECT_EQ(result.status, 0) << result.err;
      EXPECT_EQ(result.out, one[std::string("zero") + stage + "_text"].asString());
      EXPECT_EQ(result.err, "");
    }
  }
}

TEST(EstimateCommand, TakesCountsWrittenAsFloats) {
  const std::vector<std::string> rest{"--largest-layer", "65e6", "--gpus", "2", "--format", "deepspeed"};
  std::vector<std::string> floats{"estimate", "--params", "2783e6"},
      integers{"estimate", "--params", "2783000000"};
  floats.insert(floats.end(), rest.begin(), rest.end());
  integers.insert(integers.end(), rest.begin(), rest.end());

  EXPECT_EQ(run_penstock(floats).out, run_penstock(integers).out);
  EXPECT_NE(run_penstock(floats).out.find("   69.98GB |   0.24GB | offload_param=cpu ,"), std::string::npos);
}

TEST(EstimateCommand, SaysWhatEachTierHoldsAndWhatIsWritten) {
  const std::vector<std::string> arguments{
      "estimate", "--params", "8388608", "--largest-layer", "524288", "--gpus", "4", "--nodes", "2"};
  auto with_json = arguments;
  with_json.push_back("--json");

  const auto table = run_penstock(arguments);
  const auto json = run_penstock(with_json).json();

  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_NE(table.out.find("nvme    optimizer tiles       12.0 MiB    48.0 MiB\n"), std::string::npos)
      << table.out;
  EXPECT_EQ(json["per_node_bytes"]["nvme"].asUInt64(), 4u * 14 << 20);
  EXPECT_EQ(json["nvme_written_per_step_per_node_bytes"].asUInt64(), 4u * 14 << 20);
}

TEST(EstimateCommand, IgnoresUnknownKeysOfOthersWhereItIsLenient) {
  const ScratchDirectory directory;
  const std::string file = (directory.path() / "ds_config.json").string();
  std::ofstream(file) << R"({"train_batch_size": 8, "my_trainer": {"a": 1}})";
  std::vector<std::string> arguments{"estimate", "--params", "1e8", "--largest-layer",
                                     "1e7",      "--config", file};
  const auto strict = run_penstock(arguments);
  arguments.emplace_back("--lenient");
  const auto lenient = run_penstock(arguments);

  EXPECT_EQ(strict.status, 2);
  EXPECT_NE(strict.err.find("my_trainer, line 1: unknown key"), std::string::npos) << strict.err;
  EXPECT_EQ(lenient.status, 0) << lenient.err;
  EXPECT_NE(lenient.err.find("my_trainer, line 1: unknown key, ignored"), std::string::npos) << lenient.err;
}

TEST(EstimateCommand, TakesTheRunFromAConfiguration) {
  const auto estimate = [](const std::string& name) {
    const std::string file = (golden_directory() / "config/cases" / name).string();
    const auto result =
        run_penstock({"estimate", "--params", "1e8", "--largest-layer", "1e7", "--config", file, "--json"});
    EXPECT_EQ(result.status, 0) << result.err;
    return result.json()["per_node_bytes"];
  };
  const auto by_cpu = estimate("offload_cpu.json"), half = estimate("offload_ratio_half_stage3.json");

  EXPECT_EQ(by_cpu["nvme"].asUInt64(), 0u);
  EXPECT_GT(half["device"].asUInt64(), by_cpu["device"].asUInt64());  // slots of tiles
}

TEST(EstimateCommand, SaysThatItDoesNotUseTheBudgetsOfAConfiguration) {
  ScratchDirectory directory;
  const std::string file = (directory.path() / "config.json").string();
  const auto notes = [&](const char* penstock, const char* format) {
    std::ofstream(file)
        << R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam"}, "penstock": )" << penstock
        << "}";
    const auto result = run_penstock(
        {"estimate", "--params", "1e8", "--largest-layer", "1e7", "--config", file, "--format", format});
    EXPECT_EQ(result.status, 0) << result.err;
    return result.err;
  };

  const std::string both = notes(R"({"host_budget": "1GiB", "device_budget": "1GiB"})", "penstock");

  EXPECT_NE(both.find("note: penstock.host_budget: not used"), std::string::npos) << both;
  EXPECT_NE(both.find("note: penstock.device_budget: not used"), std::string::npos) << both;
  EXPECT_EQ(notes("{}", "penstock"), "");
  EXPECT_EQ(notes(R"({"host_budget": "1GiB"})", "deepspeed"), "") << "it uses nothing of the file";
}

TEST(EstimateCommand, SaysInItsHelpWhereItPutsWhatIsNotOffloaded) {
  const std::string help = run_penstock({"estimate", "--help"}).out;
  const auto estimate = [](const char* param, const char* optimizer) {
    return run_penstock({"estimate", "--params", "1e8", "--largest-layer", "1e7", "--offload-param", param,
                         "--offload-optimizer", optimizer, "--json"})
        .json()["per_node_bytes"];
  };

  EXPECT_EQ(estimate("none", "cpu"), estimate("cpu", "cpu"));
  EXPECT_GT(estimate("none", "none")["device"].asUInt64(), estimate("cpu", "none")["device"].asUInt64());
  EXPECT_GT(estimate("cpu", "none")["device"].asUInt64(), estimate("cpu", "cpu")["device"].asUInt64());
  const auto said = [&](const char* words) { return squeezed(help).find(words) != std::string::npos; };
  EXPECT_TRUE(said("shards; none: the device if --offload-optimizer is none too, else host memory")) << help;
  EXPECT_TRUE(said("states; none: the device")) << help;
}

TEST(EstimateCommand, NamesTheOptionOfACountThatItCannotUse) {
  for (const auto& [params, largest, words] : {std::tuple{"10", "11", "--largest-layer, wanted from 1 to 10"},
                                               {"10", "0", "--largest-layer, wanted from 1 to 10"},
                                               {"0", "0", "--params, wanted from 1 to 2^42"},
                                               {"4398046511105", "1", "--params, wanted from 1 to 2^42"}}) {
    const auto result = run_penstock({"estimate", "--params", params, "--largest-layer", largest});

    EXPECT_EQ(result.status, 2);
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
  }
}

TEST(EstimateCommand, RefusesBadArguments) {
  for (const std::vector<std::string>& bad :
       {std::vector<std::string>{"--params", "x", "--largest-layer", "1"},
        {"--params", "1.5", "--largest-layer", "1"},
        {"--params", "-1", "--largest-layer", "1"},
        {"--params", "10"},
        {"--params", "10", "--largest-layer", "11"},
        {"--params", "10", "--largest-layer", "1", "--stage", "2"},
        {"--params", "10", "--largest-layer", "1", "--gpus", "0"},
        {"--params", "10", "--largest-layer", "1", "--factor", "much", "--format", "deepspeed"}}) {
    std::vector<std::string> arguments{"estimate"};
    arguments.insert(arguments.end(), bad.begin(), bad.end());
    const auto result = run_penstock(arguments);
    EXPECT_EQ(result.status, 2) << bad[1] << result.out;
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err, "");
  }
}

}  // namespace
}  // namespace penstock::test
