#include "config_text.hpp"

#include "kit/print.hpp"

#include <gtest/gtest.h>

namespace penstock::zero {
namespace {

TEST(ConfigValue, TakesIntegralFloatsAsIntegersAndNothingElse) {
  EXPECT_EQ(read(R"({"train_batch_size": 1e1})")->train_batch_size, 10u);
  EXPECT_EQ(read(R"({"train_batch_size": 15.0})")->train_batch_size, 15u);
  EXPECT_FALSE(read(R"({"train_batch_size": 1.5})"));
  EXPECT_FALSE(read(R"({"train_batch_size": -8})"));
  EXPECT_FALSE(read(R"({"train_batch_size": 4294967296})"));
  EXPECT_FALSE(read(R"({"train_batch_size": 1e400})"));
  EXPECT_FALSE(read(R"({"train_batch_size": true})"));
}

TEST(ConfigValue, TakesAnIntegerInAStringOnlyAsDigitsAndOnlyWhereDeepSpeedConvertsIt) {
  const auto sub_group = [](const std::string& value) {
    return refusal(R"({"train_batch_size": 8, "zero_optimization": {"sub_group_size": )" + value + "}}");
  };
  for (const char* digits : {R"("500000000")", R"("008")", R"("0")"}) {
    EXPECT_TRUE(contains(sub_group(digits), "accepted")) << digits;
  }
  for (const char* other : {R"("5e8")", R"("5.5")", R"("-8")", R"("0x10")", R"("")", R"("8 ")"}) {
    EXPECT_TRUE(contains(sub_group(other),
                         "zero_optimization.sub_group_size, line 1: wanted an integer of "
                         "at least 0, got " +
                             std::string(other)))
        << sub_group(other);
  }
  EXPECT_TRUE(contains(sub_group(R"("5e8")"), "; write it without quotes")) << sub_group(R"("5e8")");
  EXPECT_FALSE(contains(sub_group(R"("-8")"), "quotes")) << sub_group(R"("-8")");
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": "8"})"), "wanted an integer from 1"));
  EXPECT_TRUE(read(R"({"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": "1e3"}})"));
  EXPECT_FALSE(read(R"({"train_batch_size": 8, "fp16": {"min_loss_scale": 0.5}})"));
}

// Each of them with the real DeepSpeed 0.19.8.
TEST(ConfigValue, TakesWhatDeepSpeedTakes) {
  for (const char* taken : {R"("checkpoint": {"checkpoint_serialization": false, "writer": null})",
                            R"("fp16": {"enabled": true, "loss_scale": 128, "loss_scale_window": 0})",
                            R"("fp16": {"enabled": true, "loss_scale": 128, "min_loss_scale": 0})",
                            R"("fp16": {"enabled": false, "loss_scale_window": 0})"}) {
    EXPECT_TRUE(read("{\"train_batch_size\": 8, " + std::string(taken) + "}")) << taken;
  }
}

TEST(ConfigValue, RefusesNumbersThatAreNotJson) {
  for (const char* number : {"+8", "008", "-08", "8.", "00", "8e", "8.e1", "08.5"}) {
    const std::string message = refusal("{\n\"train_batch_size\": " + std::string(number) + "}");
    EXPECT_TRUE(contains(message, "\n  train_batch_size, line 2: wanted a number as JSON writes it, got " +
                                      std::string(number) + "; "))
        << message;
  }
  const std::string nested = refusal(
      "{\"train_batch_size\": 8, \"optimizer\": {\"params\": {\n\"betas\": [0.9,\n"
      "+0.999], \"lr\": 01}}}");
  EXPECT_TRUE(
      contains(nested, "optimizer.params.betas, line 3: wanted a number as JSON writes it, got +0.999"))
      << nested;
  for (const char* number : {"8", "8.0", "8e0", "0.8E+1", "80e-1"}) {
    EXPECT_TRUE(read("{\"train_batch_size\": " + std::string(number) + "}")) << number;
  }
  EXPECT_TRUE(read(R"({"train_batch_size": 8, "gradient_clipping": -0.0})"));
}

TEST(ConfigValue, MindsTheCaseOfANameWhereDeepSpeedDoes) {
  const auto given = [](const std::string& keys) {
    return refusal("{\"train_batch_size\": 8, " + keys + "}");
  };

  EXPECT_TRUE(
      contains(given(R"("zero_optimization": {"offload_param": {"device": "CPU"}})"),
               "zero_optimization.offload_param.device, line 1: wanted \"none\", \"cpu\" or \"nvme\", got "
               "\"CPU\"; did you mean \"cpu\"?"));
  EXPECT_TRUE(contains(given(R"("data_types": {"grad_accum_dtype": "FP32"})"), "did you mean \"fp32\"?"));
  EXPECT_TRUE(contains(given(R"("penstock": {"eviction": "LRU"})"), "did you mean \"lru\"?"));
  for (const char* any_case :
       {R"("communication_data_type": "FP32")", R"("seq_parallel_communication_data_type": "FP32")",
        R"("gradient_allreduce_op": "Mean")", R"("checkpoint": {"tag_validation": "warn"})",
        R"("optimizer": {"type": "ADAMW"})"}) {
    EXPECT_TRUE(contains(given(any_case), "accepted")) << given(any_case);
  }
}

TEST(ConfigValue, RefusesASmallNumberThatSinglePrecisionMakesTheSpecialValueZero) {
  for (const std::string keys :
       {R"("gradient_clipping": 1e-46)", R"("fp16": {"enabled": true, "loss_scale": 3e-50})"}) {
    const std::string message = refusal(R"({"train_batch_size": 8, )" + keys + "}");
    EXPECT_TRUE(contains(message, "wanted 0, or a number that is not 0 in single precision, got")) << message;
  }
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": 8, "gradient_clipping": 1e-45})"), "accepted"));
}

TEST(ConfigValue, NamesTheLimitOfANumberThatIsAboveIt) {
  const std::string bytes = "wanted at most 18446744073709549568 bytes (16384 PiB), got ";
  const std::string single = " to 3.4028235e+38, the largest in single precision, got ";
  const struct {
    std::string keys, says;
  } cases[] = {
      {R"("optimizer": {"params": {"lr": 1e39}})",
       "optimizer.params.lr, line 1: wanted a number from 0" + single},
      {R"("optimizer": {"params": {"lr": "1e39"}})", "wanted a number from 0" + single + "\"1e39\""},
      {R"("gradient_clipping": 3.5e38)", "wanted a number from 0" + single + "3.5e+38"},
      {R"("zero_optimization": {"sub_group_size": 1e25})",
       "wanted an integer from 0 to 18446744073709549568, got 1e+25"},
      {R"("penstock": {"host_budget": 1e25})", bytes + "1e+25"},
      {R"("penstock": {"host_budget": 18446744073709551615})", bytes + "18446744073709551615"},
      {R"("penstock": {"host_budget": "99999999999TiB"})", bytes + "\"99999999999TiB\""},
      {R"("penstock": {"host_budget": "18446744073709551615"})", bytes + "\"18446744073709551615\""},
  };
  for (const auto& [keys, says] : cases) {
    const std::string message = refusal(R"({"train_batch_size": 8, )" + keys + "}");
    EXPECT_TRUE(contains(message, says)) << message;
  }
  // Refused for another reason than the limit.
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": 8, "penstock": {"host_budget": "1EiB"}})"),
                       "(B, KiB, MiB, GiB, TiB, KB, MB, GB, TB)"));
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": 8, "gradient_clipping": -1})"),
                       "wanted a number of at least 0, got -1"));
  for (const char* largest :
       {R"("gradient_clipping": 3.4028235e+38)", R"("penstock": {"host_budget": 18446744073709549568})"}) {
    EXPECT_TRUE(read(R"({"train_batch_size": 8, )" + std::string(largest) + "}")) << largest;
  }
}

TEST(ConfigValue, UsesTheDefaultForAutoWhereThereIsOneAndSaysSo) {
  const auto config =
      read(R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})");

  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->optimizer.learning_rate, 1e-3);
  ASSERT_FALSE(config->notes.empty());
  EXPECT_EQ(config->notes.front(), "optimizer.params.lr, line 1: \"auto\" means the default here");
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": "auto"})"), "give a value"));
}

TEST(ConfigValue, TakesNoAutoWhereDeepSpeedTakesNone) {
  for (const char* text :
       {R"("zero_optimization": "auto")", R"("bf16": "auto")", R"("scheduler": "auto")",
        R"("communication_data_type": "auto")", R"("checkpoint": {"tag_validation": "auto"})",
        R"("train_micro_batch_size_per_gpu": "auto")", R"("optimizer": null)"}) {
    EXPECT_FALSE(read("{\"train_batch_size\": 8, " + std::string(text) + "}")) << text;
  }
  EXPECT_TRUE(read(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_param": "auto"}})"));
}

TEST(ConfigValue, RefusesNullForAKeyOfPenstock) {
  for (const char* key : {"host_budget",        "node_budgets",
                          "device_budget",      "device_states",
                          "tile_elements",      "tiles_in_flight",
                          "path_weights",       "path_nodes",
                          "rank_nodes",         "io_deadline_seconds",
                          "unit_elements_max",  "eviction",
                          "io_engine",          "integrity",
                          "state_format",       "update_split",
                          "update_in_backward", "non_finite_gradients",
                          "reduction",          "threads"}) {
    const std::string message =
        refusal(R"({"train_batch_size": 8, "penstock": {")" + std::string(key) + R"(": null}})");
    EXPECT_TRUE(contains(message, "penstock." + std::string(key) + ", line 1: ") &&
                contains(message, "got null"))
        << message;
  }
}

}  // namespace
}  // namespace penstock::zero
