#include "kit/golden.hpp"
#include "run_penstock.hpp"

#include <gtest/gtest.h>

namespace penstock::test {
namespace {

std::string golden_case(const char* name) {
  return (golden_directory() / "config/cases" / name).string();
}

TEST(ConfigCheck, PrintsTheEffectiveConfigurationAndWhatHasNoEffect) {
  const auto result =
      run_penstock({"config", "check", golden_case("stage3_names.json"), "--world-size", "4"});

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.json()["train_micro_batch_size_per_gpu"].asInt(), 2);
  EXPECT_EQ(result.json()["zero_optimization"]["stage"].asInt(), 3);
  EXPECT_NE(result.out.find("0.9,"), std::string::npos) << "betas are printed as they are written";
  EXPECT_NE(result.err.find("note: zero_optimization.stage3_max_live_parameters, line 7: no effect here"),
            std::string::npos)
      << result.err;
}

TEST(ConfigCheck, PrintsEveryErrorAndNothingElse) {
  const auto result = run_penstock({"config", "check", golden_case("misspelled_top_level.json")});

  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find("gradient_cliping, line 3: unknown key; did you mean \"gradient_clipping\"?"),
            std::string::npos);
  EXPECT_NE(result.err.find("zero_optimisation, line 4: unknown key; did you mean \"zero_optimization\"?"),
            std::string::npos);
}

TEST(ConfigCheck, MindsMissingDirectoriesOnlyOnTheMachineThatNeedsThem) {
  const std::string file = golden_case("offload_nvme.json");

  const auto elsewhere = run_penstock({"config", "check", file});
  const auto here = run_penstock({"config", "check", file, "--here"});

  EXPECT_EQ(elsewhere.status, 0);
  EXPECT_NE(elsewhere.err.find("/local_nvme does not exist"), std::string::npos);
  EXPECT_EQ(here.status, 2);
  EXPECT_EQ(here.out, "");
}

TEST(ConfigCheck, CallsAFileThatCannotBeReadBadUsage) {
  EXPECT_EQ(run_penstock({"config", "check", "/nonexistent/ds_config.json"}).status, 2);
  EXPECT_EQ(run_penstock({"config", "check"}).status, 2);
  EXPECT_EQ(
      run_penstock({"config", "check", golden_case("batch_train_only.json"), "--world-size", "0"}).status, 2);
}

TEST(CommandLine, ExplainsItselfAndRefusesWhatItDoesNotKnow) {
  EXPECT_EQ(run_penstock({"--help"}).status, 0);
  EXPECT_NE(run_penstock({"--help"}).out.find("estimate"), std::string::npos);
  EXPECT_EQ(run_penstock({"--version"}).status, 0);
  EXPECT_EQ(run_penstock({}).status, 2);
  EXPECT_EQ(run_penstock({"estimat"}).status, 2);
}

}  // namespace
}  // namespace penstock::test
