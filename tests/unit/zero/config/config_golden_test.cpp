// Compares this reader with DeepSpeed on a set of ds_config files: it must behave the same, or be stricter for a reason
// listed below.

#include <penstock/zero/config/config.hpp>

#include "kit/golden.hpp"

#include <gtest/gtest.h>
#include <json/json.h>
#include <map>

namespace penstock::zero {
namespace {

/// Cases that DeepSpeed accepts and this reader refuses, with the message that the refusal must contain.
const std::map<std::string, std::string> stricter_on_purpose = {
    // Misspelled or unknown keys, which DeepSpeed silently ignores.
    {"misspelled_top_level", "gradient_cliping, line 3: unknown key"},
    {"aio_old_and_misspelled_keys", "aio.que_depth, line 7: unknown key"},
    {"optimizer_unknown_type_and_keys", "optimizer.type, line 4: not supported yet"},
    {"checkpoint_keys", "checkpoint.no_such_key, line 7: unknown key"},
    // DeepSpeed fails later, when it starts.
    {"offload_nvme_without_path",
     "zero_optimization.offload_optimizer.device, line 6: \"nvme\" needs nvme_path"},
    // Not supported yet.
    {"optimizer_uppercase_unknown_scheduler", "scheduler.type, line 11: not supported yet"},
};

std::string case_name(const testing::TestParamInfo<Json::Value>& info) {
  return info.param["name"].asString();
}

std::vector<Json::Value> cases() {
  const Json::Value expected = test::golden_json("config/expected.json");
  return {expected["cases"].begin(), expected["cases"].end()};
}

class GoldenConfig : public testing::TestWithParam<Json::Value> {
 protected:
  Result<Config> read() const {
    return Config::from_file(test::golden_directory() / "config" / GetParam()["file"].asString(),
                             GetParam()["world_size"].asUInt());
  }
};

void expect_same_offload(const Json::Value& expected, const OffloadConfig& offload) {
  const std::string device = expected.isNull() ? "none" : expected["device"].asString();
  EXPECT_EQ(to_string(offload.device), device);
  if (expected.isNull()) return;
  EXPECT_EQ(offload.pin_memory, expected["pin_memory"].asBool());
  if (!expected["nvme_path"].isNull()) {
    EXPECT_EQ(offload.nvme_paths, std::vector<std::filesystem::path>{expected["nvme_path"].asString()});
  }
}

void expect_same_optimizer(const Json::Value& expected, const OptimizerConfig& optimizer) {
  const Json::Value& params = expected["params"];
  EXPECT_EQ(optimizer.learning_rate, params.get("lr", 1e-3).asDouble());
  EXPECT_EQ(optimizer.betas[0], params.isMember("betas") ? params["betas"][0].asDouble() : 0.9);
  EXPECT_EQ(optimizer.betas[1], params.isMember("betas") ? params["betas"][1].asDouble() : 0.999);
  EXPECT_EQ(optimizer.epsilon, params.get("eps", 1e-8).asDouble());
  EXPECT_EQ(optimizer.weight_decay, params.get("weight_decay", 0.0).asDouble());
  EXPECT_EQ(optimizer.decay_mode == cpu_adam::AdamDecay::decoupled, params.get("adam_w_mode", true).asBool());
}

TEST_P(GoldenConfig, HasTheEffectThatItHasInDeepSpeed) {
  const Json::Value& expected = GetParam();
  const auto config = read();

  if (expected["verdict"] == "refuses") {
    ASSERT_FALSE(config) << "DeepSpeed refuses it: " << expected["message"].asString();
    // Bare words on a line with others, which DeepSpeed takes for one string.
    if (config.error().message().find("a string in quotes, got") != std::string::npos) return;
    for (const Json::Value& error : expected["errors"]) {
      EXPECT_NE(config.error().message().find(error["loc"].asString()), std::string::npos)
          << config.error().message();
    }
    return;
  }
  if (const auto stricter = stricter_on_purpose.find(expected["name"].asString());
      stricter != stricter_on_purpose.end()) {
    ASSERT_FALSE(config) << "no longer stricter than DeepSpeed: take it off the list";
    EXPECT_NE(config.error().message().find("\n  " + stricter->second), std::string::npos)
        << config.error().message();
    return;
  }

  ASSERT_TRUE(config) << config.error().message();
  const Json::Value& effective = expected["effective"];
  const Json::Value& zero = effective["zero_optimization"];
  EXPECT_EQ(config->train_batch_size, effective["train_batch_size"].asUInt());
  EXPECT_EQ(config->micro_batch_size, effective["train_micro_batch_size_per_gpu"].asUInt());
  EXPECT_EQ(config->gradient_accumulation_steps, effective["gradient_accumulation_steps"].asUInt());
  EXPECT_EQ(config->gradient_clipping, effective["gradient_clipping"].asFloat());
  EXPECT_EQ(config->dtype == DType::bf16, effective["bf16"]["enabled"].asBool());
  EXPECT_EQ(config->dtype == DType::fp16, effective["fp16"]["enabled"].asBool());
  expect_same_offload(zero["offload_param"], config->offload_param);
  expect_same_offload(zero["offload_optimizer"], config->offload_optimizer);
  if (!zero["offload_optimizer"].isNull()) {
    EXPECT_EQ(config->cpu_update_ratio, zero["offload_optimizer"]["ratio"].asFloat());
  }
  expect_same_optimizer(effective["optimizer"], config->optimizer);
  EXPECT_EQ(config->stage, zero["stage"].asUInt());
  EXPECT_EQ(config->shards_parameters(), zero["stage"] == 3);
  EXPECT_EQ(config->overlaps_communication(), zero["overlap_comm"].asBool());
  EXPECT_EQ(config->reduce_bucket_size.value(), zero["reduce_bucket_size"].asUInt64());
  EXPECT_EQ(config->prefetch_bucket_size.value(), zero["prefetch_bucket_size"].asUInt64());
  EXPECT_EQ(config->max_live_parameters.value(), zero["max_live_parameters"].asUInt64());
  EXPECT_EQ(config->param_persistence_threshold.value(), zero["param_persistence_threshold"].asUInt64());
  EXPECT_EQ(config->model_persistence_threshold.value(), zero["model_persistence_threshold"].asUInt64());
  EXPECT_EQ(config->max_reuse_distance.value(), zero["max_reuse_distance"].asUInt64());
  // A default differs on purpose: DeepSpeed's requests are smaller.
  const Json::Value given = test::golden_json("config/expected.json")["defaults_for_train_batch_size_1"];
  if (effective["aio"]["block_size"] != given["aio"]["block_size"]) {
    EXPECT_EQ(config->aio_block_size.value(), effective["aio"]["block_size"].asUInt64());
  }
  if (effective["aio"]["queue_depth"] != given["aio"]["queue_depth"]) {
    EXPECT_EQ(config->aio_queue_depth, effective["aio"]["queue_depth"].asUInt());
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenConfig, testing::ValuesIn(cases()), case_name);

TEST(GoldenConfigList, NamesOnlyCasesThatExist) {
  std::map<std::string, bool> accepted;
  for (const Json::Value& one : cases()) accepted[one["name"].asString()] = one["verdict"] == "accepts";

  for (const auto& [name, key] : stricter_on_purpose) EXPECT_TRUE(accepted[name]) << name;
}

}  // namespace
}  // namespace penstock::zero
