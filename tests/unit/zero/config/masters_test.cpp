// *_master_weights_and_grads and bf16_optimizer_states: what they mean, and what they go with. The refusals marked with
// a D are assertions in DeepSpeed's source, of DeepSpeedConfig or of ZeROOptimizer._configure_master_weights(); the
// others are of keys that contradict each other here.

#include "config_text.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include <gtest/gtest.h>

namespace penstock::zero {
namespace {

using cpu_adam::StateFormat;

const std::string bf16 = R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true})",
                  bf16_states = R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
                                            "bf16_optimizer_states": true})",
                  fp16 = R"("fp16": {"enabled": true, "fp16_master_weights_and_grads": true})",
                  on_cpu = R"("zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}})",
                  on_disk = R"("zero_optimization": {"stage": 3,
                               "offload_optimizer": {"device": "nvme", "nvme_path": "/no/a"}})",
                  on_device = R"("zero_optimization": {"stage": 3})";

std::string file(std::initializer_list<std::string> members) {
  std::string text = R"({"train_batch_size": 8)";
  for (const std::string& member : members) text.append(",\n").append(member);
  return text + "}";
}

TEST(ConfigMasters, AreTheParametersInTheFormatsThatKeepMomentsAlone) {
  struct Case {
    std::string precision;
    DType dtype;
    StateFormat format;
    std::uint64_t bytes;
  };
  for (const auto& [precision, dtype, format, bytes] :
       {Case{bf16, DType::bf16, StateFormat::moments, 8}, Case{fp16, DType::fp16, StateFormat::moments, 8},
        Case{bf16_states, DType::bf16, StateFormat::moments_bf16, 4}}) {
    for (const std::string& offload : {on_cpu, on_disk}) {
      const auto config = read(file({precision, offload}));

      ASSERT_TRUE(config) << config.error().message();
      EXPECT_EQ(config->dtype, dtype);
      EXPECT_EQ(config->grad_accum_dtype, dtype);
      EXPECT_EQ(config->penstock.state_format, format);
      // A whole number of tiles, in blocks whose bytes are multiples of the padding.
      const ElementCount count(std::uint64_t{16384} * 96);
      const auto plan =
          plan_memory(*config, {.units = {{.name = "layer", .parameters = {{"weight", count}}}}}, 1, 1)
              .value();
      EXPECT_EQ(offload == on_cpu ? plan.host_tiles : plan.disk_tiles, ByteCount(bytes * count.value()));
    }
  }
}

TEST(ConfigMasters, WithBf16MomentsMayStayOnTheDevice) {
  const auto config = read(file({bf16_states, on_device}));
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->penstock.state_format, StateFormat::moments_bf16);
}

TEST(ConfigMasters, TakeTheOptimizersMoments) {
  for (const char* const type : {"Adam", "AdamW", "Lion", "Adagrad"}) {
    const std::string optimizer = std::string(R"("optimizer": {"type": ")") + type + "\"}";
    EXPECT_TRUE(read(file({bf16, on_cpu, optimizer}))) << refusal(file({bf16, on_cpu, optimizer}));
    EXPECT_TRUE(read(file({fp16, on_cpu, optimizer}))) << type;
    EXPECT_EQ(read(file({bf16_states, on_cpu, optimizer})).has_value(),
              std::string_view(type).starts_with("Adam"));
  }
  const std::string lion = R"("optimizer": {"type": "Lion"})";
  EXPECT_TRUE(
      contains(refusal(file({bf16_states, on_cpu, lion})), "bf16.bf16_optimizer_states, line 3: Lion keeps"));
}

// DeepSpeed requires it beside bf16_optimizer_states with an offload.
TEST(ConfigMasters, TakeDeepSpeedsOtherKeyForBf16Moments) {
  const auto params = [](const char* value) {
    return std::string(R"("optimizer": {"type": "AdamW", "params": {"fp32_optimizer_states": )") + value +
           "}}";
  };
  const auto config = read(file({bf16_states, on_cpu, params("false")}));
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_TRUE(contains(config->to_json(), "\"fp32_optimizer_states\": false"));
  // It comes second, as in DeepSpeed, which says so too.
  const auto both = read(file({bf16_states, on_cpu, params("true")}));
  ASSERT_TRUE(both) << both.error().message();
  EXPECT_TRUE(contains(both->to_json(), "\"fp32_optimizer_states\": false"));
  EXPECT_TRUE(std::any_of(both->notes.begin(), both->notes.end(),
                          [](const std::string& note) { return contains(note, "true has no effect"); }));
  EXPECT_TRUE(read(file({bf16_states, on_cpu, params("\"auto\"")})));
  EXPECT_TRUE(contains(refusal(file({bf16, on_cpu, params("false")})), "needs bf16.bf16_optimizer_states"));
  EXPECT_TRUE(contains(refusal(file({on_cpu, params("false")})), "needs bf16.bf16_optimizer_states"));
  EXPECT_TRUE(read(file({bf16, on_cpu, params("true")})));
}

TEST(ConfigMasters, AreRefusedWithWhatContradictsThemNamingBothKeys) {
  const std::string bf16_key = "bf16.bf16_master_weights_and_grads",
                    fp16_key = "fp16.fp16_master_weights_and_grads";
  struct Case {
    std::string text, named, other;
  };
  const std::string no_offload = R"("zero_optimization": {"stage": 2})",
                    stage_0 = R"("zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}})";
  const Case cases[] = {
      {file({bf16, no_offload}), bf16_key, "zero_optimization.offload_optimizer.device"},  // D
      {file({fp16, no_offload}), fp16_key, "zero_optimization.offload_optimizer.device"},  // D
      {file({bf16, stage_0}), bf16_key, "zero_optimization.stage"},                        // D
      {file({fp16, stage_0}), fp16_key, "zero_optimization.stage"},                        // D
      {file({bf16_states, stage_0}), bf16_key, "zero_optimization.stage"},                 // D
      {file({R"("bf16": {"enabled": true, "bf16_optimizer_states": true})", on_cpu}),
       "bf16.bf16_optimizer_states", bf16_key},  // D
      {file({R"("bf16": {"bf16_master_weights_and_grads": true})", on_cpu}), bf16_key, "bf16.enabled"},
      {file({R"("fp16": {"fp16_master_weights_and_grads": true})", on_cpu}), fp16_key, "fp16.enabled"},
      {file({R"("fp16": {"fp16_master_weights_and_grads": true})", bf16, on_cpu}), fp16_key,
       "fp16.enabled"},  // D
      {file({bf16, on_cpu, R"("penstock": {"state_format": "fp32"})"}), bf16_key,
       "penstock.state_format \"fp32\""},
      {file({bf16_states, on_cpu, R"("penstock": {"state_format": "split_bf16"})"}), bf16_key,
       "penstock.state_format \"split_bf16\""},
      {file({fp16, on_cpu, R"("penstock": {"state_format": "fp32"})"}), fp16_key,
       "penstock.state_format \"fp32\""},
      {file({bf16, on_cpu, R"("data_types": {"grad_accum_dtype": "fp32"})"}), bf16_key,
       "data_types.grad_accum_dtype fp32"},
      {file({fp16, on_cpu, R"("data_types": {"grad_accum_dtype": "fp32"})"}), fp16_key,
       "data_types.grad_accum_dtype fp32"},
  };
  for (const auto& [text, named, other] : cases) {
    const std::string message = refusal(text);
    EXPECT_TRUE(contains(message, "\n  " + named + ", line")) << text << "\n" << message;
    EXPECT_TRUE(contains(message, other)) << text << "\n" << message;
    EXPECT_TRUE(contains(message, "1 error")) << message;
  }
}

TEST(ConfigMasters, OfAConfigurationMadeInCodeAreCheckedWithTheSameRules) {
  Config config;
  config.stage = 2;
  config.dtype = config.grad_accum_dtype = DType::fp16;
  config.offload_optimizer.device = OffloadDevice::cpu;
  config.penstock.state_format = StateFormat::moments;
  ASSERT_TRUE(config.validate()) << config.validate().error().message();

  const auto refused = [](const Config& wrong, std::string_view says) {
    const auto result = wrong.validate();
    return !result && result.error().code() == ErrorCode::invalid_config &&
           contains(result.error().message(), says);
  };
  Config wrong = config;
  wrong.grad_accum_dtype = DType::fp32;
  EXPECT_TRUE(refused(wrong, "fp16.fp16_master_weights_and_grads: gradients are accumulated in fp16"));
  wrong = config;
  wrong.penstock.state_format = StateFormat::moments_bf16;
  EXPECT_TRUE(refused(wrong, "penstock.state_format"));
  wrong = config;
  wrong.dtype = wrong.grad_accum_dtype = DType::fp32;  // fp32 parameters are the masters in format fp32
  EXPECT_TRUE(refused(wrong, "penstock.state_format"));
  wrong = config;
  wrong.offload_optimizer = {};
  EXPECT_TRUE(
      refused(wrong, "fp16.fp16_master_weights_and_grads: needs zero_optimization.offload_optimizer"));
}

}  // namespace
}  // namespace penstock::zero
