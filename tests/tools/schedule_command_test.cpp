#include "kit/golden.hpp"
#include "kit/scratch_directory.hpp"
#include "run_penstock.hpp"

#include <gtest/gtest.h>
#include <json/json.h>
#include <cstdlib>
#include <fstream>

namespace penstock::test {
namespace {

class ConfigSchedule : public testing::Test {
 protected:
  std::string file(const std::string& keys) {
    const auto path = directory_.path() / "ds_config.json";
    std::ofstream(path) << R"({"train_batch_size": 4, "gradient_accumulation_steps": 1, )" << keys << "}";
    return path.string();
  }

 private:
  ScratchDirectory directory_;
};

constexpr const char* one_cycle =
    R"("scheduler": {"type": "OneCycle",
                     "params": {"cycle_min_lr": 0.5, "cycle_max_lr": 1.5, "cycle_first_step_size": 4}})";

TEST_F(ConfigSchedule, PrintsEachStepAsAnObjectWithTheExactRate) {
  const Json::Value reference = golden_json("schedulers.json");
  const Json::Value& expected = reference["cases"][0];
  ASSERT_EQ(expected["name"], "warmup_log_10");
  const auto result =
      run_penstock({"config", "schedule", file(R"("optimizer": {"type": "Adam", "params": {"lr": 0.001}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.001, "warmup_num_steps": 10}})"),
                    "--steps", "61", "--json"});

  ASSERT_EQ(result.status, 0) << result.err;
  const Json::Value steps = result.json();
  ASSERT_EQ(steps.size(), 61u);
  for (Json::ArrayIndex i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i]["step"].asUInt(), i + 1);
    EXPECT_NEAR(steps[i]["lr"].asDouble(), expected["lr"][i].asDouble(), 1e-18);
    EXPECT_EQ(std::strtod(steps[i]["lr_hex"].asCString(), nullptr), steps[i]["lr"].asDouble());
    EXPECT_EQ(steps[i]["beta1"].asDouble(), 0.9);
  }
}

TEST_F(ConfigSchedule, PrintsATableWithBeta1) {
  const auto table = run_penstock({"config", "schedule", file(one_cycle), "--steps", "2"});
  const auto exact = run_penstock({"config", "schedule", file(one_cycle), "--steps", "2", "--hex"});

  EXPECT_EQ(table.out,
            "    step  lr                        beta1\n"
            "       1  0.5                       0.8\n"
            "       2  0.75                      0.875\n");
  EXPECT_NE(exact.out.find("0x1.999999999999ap-1"), std::string::npos) << exact.out;
}

TEST_F(ConfigSchedule, IsConstantWithoutAScheduler) {
  const auto result =
      run_penstock({"config", "schedule", file(R"("gradient_clipping": 1)"), "--steps", "3", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  for (const Json::Value& step : result.json()) EXPECT_EQ(step["lr"].asDouble(), 1e-3);
}

TEST_F(ConfigSchedule, ReadsAFileWithATrainersOwnBlockOnDemand) {
  const std::string path = file(R"("my_trainer": {"layers": 12})");
  EXPECT_EQ(run_penstock({"config", "schedule", path, "--steps", "1"}).status, 2);
  EXPECT_EQ(run_penstock({"config", "schedule", path, "--steps", "1", "--lenient"}).status, 0);
}

TEST_F(ConfigSchedule, RefusesWhatItCannotPrint) {
  for (const char* steps : {"0", "-1", "x", "1.5"}) {
    EXPECT_EQ(run_penstock({"config", "schedule", file(one_cycle), "--steps", steps}).status, 2) << steps;
  }
  EXPECT_EQ(run_penstock({"config", "schedule", file(one_cycle)}).status, 2);
  EXPECT_EQ(run_penstock({"config", "schedule", file(one_cycle), "--steps", "1", "--world-size", "3"}).status,
            2);
  EXPECT_EQ(run_penstock({"config", "schedule", file(one_cycle), "--steps", "1", "--json", "--hex"}).status,
            2);
  const auto refused =
      run_penstock({"config", "schedule", file(R"("scheduler": {"type": "WarmupDecayLR"})"), "--steps", "1"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_EQ(refused.out, "");
  EXPECT_NE(refused.err.find("total_num_steps: WarmupDecayLR needs it"), std::string::npos) << refused.err;
}

}  // namespace
}  // namespace penstock::test
