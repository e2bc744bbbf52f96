#include "config_text.hpp"

#include "kit/golden.hpp"

#include <gtest/gtest.h>
#include <json/json.h>
#include <cmath>
#include <cstdlib>

namespace penstock::zero {
namespace {

Result<Config> with_scheduler(const Json::Value& scheduler, double lr = 1e-3) {
  Json::Value file;
  file["train_batch_size"] = 1;
  file["optimizer"]["type"] = "Adam";
  file["optimizer"]["params"]["lr"] = lr;
  file["scheduler"] = scheduler;
  return Config::from_text(Json::writeString(Json::StreamWriterBuilder(), file), "ds_config.json", 1);
}

/// All but those with 10.0 for 10, which DeepSpeed refuses in a Python dictionary only: in a file it is 10.
std::vector<Json::Value> cases() {
  std::vector<Json::Value> of_files;
  const Json::Value reference = test::golden_json("schedulers.json");
  for (const Json::Value& one : reference["cases"]) {
    if (!one["name"].asString().ends_with("_float")) of_files.push_back(one);
  }
  return of_files;
}

double exact(const Json::Value& hex) {
  return std::strtod(hex.asCString(), nullptr);
}

/// Units in the last place of `wanted`.
double ulps(double wanted, double got) {
  if (wanted == got) return 0;
  const double unit = std::nextafter(std::fabs(wanted), INFINITY) - std::fabs(wanted);
  return std::fabs(wanted - got) / unit;
}

std::string case_name(const testing::TestParamInfo<Json::Value>& info) {
  return info.param["name"].asString();
}

class GoldenSchedule : public testing::TestWithParam<Json::Value> {};

TEST_P(GoldenSchedule, IsThatOfDeepSpeed) {
  const Json::Value& expected = GetParam();
  Json::Value scheduler;
  scheduler["type"] = expected["type"];
  scheduler["params"] = expected["params"];
  const auto config = with_scheduler(scheduler, expected["optimizer_lr"].asDouble());

  if (expected.isMember("refused")) {
    ASSERT_FALSE(config) << "DeepSpeed refuses it: " << expected["refused"]["message"].asString();
    EXPECT_TRUE(contains(config.error().message(), "scheduler.")) << config.error().message();
    return;
  }
  if (expected["found_in"] == "torch") {
    ASSERT_FALSE(config);
    EXPECT_TRUE(contains(config.error().message(), "scheduler.type")) << config.error().message();
    return;
  }
  ASSERT_TRUE(config) << config.error().message();
  const bool is_linear = expected["params"]["warmup_type"] == "linear" || expected["type"] == "LRRangeTest";
  const double most = is_linear && expected["type"] != "WarmupCosineLR" ? 0 : 2;
  // A run that is resumed after update n has that update's rate in its optimizer: the reference begins with another.
  const bool resumed = expected.isMember("resume_last_batch_iteration");
  const std::uint64_t before = resumed ? expected["resume_last_batch_iteration"].asUInt64() + 1 : 0;
  for (Json::ArrayIndex k = resumed ? 1 : 0; k < expected["lr_hex"].size(); ++k) {
    const LearningRate now = config->learning_rate_of(before + k + 1);
    EXPECT_LE(ulps(exact(expected["lr_hex"][k]), now.rate), most) << "lr[" << k << "] " << now.rate;
    if (!expected.isMember("beta1")) continue;
    EXPECT_LE(ulps(expected["beta1"][k].asDouble(), now.betas[0]), 2)
        << "beta1[" << k << "] " << now.betas[0];
    EXPECT_EQ(now.betas[1], expected["beta2"][k].asDouble());
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenSchedule, testing::ValuesIn(cases()), case_name);

Result<Config> read_scheduler(const std::string& text) {
  return read(R"({"train_batch_size": 1, "optimizer": {"type": "Adam"}, "scheduler": )" + text + "}");
}

std::string refusal_of(const std::string& text) {
  const auto config = read_scheduler(text);
  return config ? "accepted" : config.error().message();
}

TEST(Schedule, IsTheConstantRateWithoutAScheduler) {
  const auto config =
      read(R"({"train_batch_size": 1, "optimizer": {"type": "Adam", "params": {"lr": 3e-4}}})");
  for (const std::uint64_t step : {1ull, 2ull, 1'000'000'000'000ull}) {
    EXPECT_EQ(config->learning_rate_of(step).rate, 3e-4);
    EXPECT_EQ(config->learning_rate_of(step).betas, (std::array{0.9, 0.999}));
  }
}

TEST(Schedule, EndsAtTheFloorForEachStepAfterTheRun) {
  const auto cosine = read_scheduler(R"({"type": "WarmupCosineLR", "params": {"total_num_steps": 20,
    "warmup_num_steps": 10, "cos_min_ratio": 0.5}})");
  const auto decay = read_scheduler(R"({"type": "WarmupDecayLR", "params": {"total_num_steps": 20,
    "warmup_num_steps": 10}})");
  EXPECT_EQ(cosine->learning_rate_of(1'000'000).rate, 0.5e-3);
  EXPECT_EQ(decay->learning_rate_of(1'000'000).rate, 0);
}

TEST(Schedule, TakesAMomentumThatNoStepUsesAsItIs) {
  EXPECT_TRUE(read_scheduler(R"({"type": "OneCycle", "params": {"cycle_min_lr": 1, "cycle_max_lr": 2,
    "cycle_momentum": false, "cycle_max_mom": 1}})"));
}

TEST(Schedule, ReachesEachStairOfACycleAtTheIntegerOffsetThatItBeginsWith) {
  const auto config = read_scheduler(R"({"type": "OneCycle", "params": {"cycle_min_lr": 1e-4,
    "cycle_max_lr": 1e-3, "cycle_first_step_size": 3, "cycle_first_stair_count": 3}})");
  const double wanted[] = {1e-4, 4e-4, 7e-4, 1e-3, 7e-4, 4e-4, 1e-4};

  for (std::uint64_t step = 1; step <= std::size(wanted); ++step)
    EXPECT_NEAR(config->learning_rate_of(step).rate, wanted[step - 1], 1e-18) << "step " << step;
}

TEST(Schedule, RefusesParametersThatItsTypeDoesNotHaveAndListsItsOwn) {
  EXPECT_TRUE(contains(refusal_of(R"({"type": "WarmupLR", "params": {"total_num_steps": 5}})"),
                       "scheduler.params.total_num_steps, line 1: WarmupLR has no such parameter; it takes "
                       "warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type"));
}

TEST(Schedule, RefusesWhatHasNoMeaning) {
  const std::pair<const char*, const char*> refused[] = {
      {R"({"type": "WarmupDecayLR", "params": {}})",
       "scheduler.params.total_num_steps: WarmupDecayLR needs it"},
      {R"({"type": "WarmupDecayLR", "params": {"total_num_steps": 0}})",
       "scheduler.params.total_num_steps, line 1: wanted an integer of at least 1, got 0"},
      {R"({"type": "WarmupLR", "params": {"warmup_num_steps": 0}})",
       "wanted an integer of at least 1, got 0"},
      {R"({"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}})", "\"auto\" has no meaning here"},
      {R"({"type": "WarmupLR", "params": {"warmup_min_lr": -1e-3}})", "wanted a number of at least 0"},
      {R"({"type": "WarmupLR", "params": {"warmup_max_lr": 1e39}})", "the largest in single precision"},
      {R"({"type": "WarmupLR", "params": {"warmup_steps": 5}})", "unknown key; use \"warmup_num_steps\""},
      {R"({"type": "OneCycle", "params": {"cycle_min_lr": 1}})",
       "scheduler.params.cycle_max_lr: OneCycle needs it"},
      {R"({"type": "OneCycle", "params": {"cycle_min_lr": 1, "cycle_max_lr": 2, "cycle_first_step_size": 0}})",
       "scheduler.params.cycle_first_step_size, line 1: wanted a number above 0, got 0"},
      {R"({"type": "OneCycle", "params": {"cycle_min_lr": 1, "cycle_max_lr": 2, "cycle_max_mom": 1}})",
       "scheduler.params.cycle_max_mom, line 1: wanted a number of at least 0 and, in single precision, "
       "below 1, "
       "got 1"},
      {R"({"type": "OneCycle", "params": {"cycle_min_lr": 1, "cycle_max_lr": 2, "cycle_min_mom": 0.99999999999}})",
       "scheduler.params.cycle_min_mom, line 1: wanted"},
      {R"({"type": "LRRangeTest", "params": {"lr_range_test_step_size": 0}})",
       "wanted an integer of at least 1"},
      {R"({"type": "StepLR", "params": {}})", "scheduler.type, line 1: not supported yet"},
      {R"({"type": "warmuplr"})", "scheduler.type, line 1"},
      {R"({"params": {"warmup_num_steps": 5}})", "scheduler.params, line 1: wanted scheduler.type too"},
      {R"({"type": "WarmupLR", "params": {"last_batch_iteration": 7}})", "not supported yet; only -1 is"},
  };
  for (const auto& [text, message] : refused) {
    EXPECT_TRUE(contains(refusal_of(text), message)) << text << '\n' << refusal_of(text);
  }
}

TEST(Schedule, NotesAWarmupTypeThatIsNotKnown) {
  const auto config = read_scheduler(R"({"type": "WarmupLR", "params": {"warmup_type": "cosine"}})");
  ASSERT_TRUE(config) << config.error().message();
  const auto is_it = [](const std::string& note) {
    return contains(note, "\"cosine\" is not known: \"log\" is used");
  };
  EXPECT_TRUE(std::any_of(config->notes.begin(), config->notes.end(), is_it));
}

TEST(Schedule, IsReadBackFromTheEffectiveConfiguration) {
  for (const Json::Value& one : cases()) {
    if (one.isMember("refused") || one["found_in"] == "torch") continue;
    Json::Value scheduler;
    scheduler["type"] = one["type"];
    scheduler["params"] = one["params"];
    const auto config = with_scheduler(scheduler, 0.0005);
    const auto again = read(config->to_json());
    ASSERT_TRUE(again) << again.error().message();
    for (std::uint64_t step = 1; step < 60; ++step) {
      EXPECT_EQ(again->learning_rate_of(step).rate, config->learning_rate_of(step).rate) << one["name"];
      EXPECT_EQ(again->learning_rate_of(step).betas, config->learning_rate_of(step).betas) << one["name"];
    }
  }
}

}  // namespace
}  // namespace penstock::zero
