// optimizer: types, their defaults, and what they do not have. Muon is in muon_test.cpp.
#include "config_text.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace penstock::zero {
namespace {

TEST(ConfigOptimizer, TakesAdamForAdamWUnlessAdamWModeIsOff) {
  const auto decoupled = [](std::string_view optimizer) {
    return read("{\"train_batch_size\": 8, \"optimizer\": " + std::string(optimizer) + "}")
               ->optimizer.decay_mode == cpu_adam::AdamDecay::decoupled;
  };
  EXPECT_TRUE(decoupled(R"({"type": "Adam"})"));
  EXPECT_FALSE(decoupled(R"({"type": "ADAM", "params": {"adam_w_mode": false}})"));
  EXPECT_TRUE(decoupled(R"({"type": "AdamW", "params": {"adam_w_mode": false}})"));
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": 8, "optimizer": {"type": "Lamb"}})"), "only Adam"));
}

TEST(ConfigOptimizer, TakesLionAndAdagradWithTheirOwnDefaults) {
  const auto optimizer = [](std::string_view text) {
    return read("{\"train_batch_size\": 8, \"optimizer\": " + std::string(text) + "}")->optimizer;
  };
  const OptimizerConfig lion = optimizer(R"({"type": "lion"})");
  EXPECT_EQ(lion.type, cpu_adam::Optimizer::lion);
  EXPECT_EQ(lion.betas, (std::array{0.9, 0.999}));
  EXPECT_EQ(lion.learning_rate, 1e-3);
  const OptimizerConfig adagrad = optimizer(R"({"type": "Adagrad", "params": {"weight_decay": 0.5}})");
  EXPECT_EQ(adagrad.type, cpu_adam::Optimizer::adagrad);
  EXPECT_EQ(adagrad.learning_rate, 1e-2);
  EXPECT_EQ(adagrad.epsilon, 1e-10);
  EXPECT_EQ(adagrad.weight_decay, 0.5);
  EXPECT_EQ(optimizer(R"({"type": "Lion", "params": {"betas": [0.5, 0.75]}})").betas,
            (std::array{0.5, 0.75}));
  EXPECT_EQ(optimizer(R"({"type": "Adagrad", "params": {"lr": 3, "eps": 4}})").learning_rate, 3);

  const auto noted =
      read(R"({"train_batch_size": 8, "optimizer": {"type": "Lion", "params": {"eps": 1e-6}}})");
  EXPECT_TRUE(std::any_of(noted->notes.begin(), noted->notes.end(), [](const std::string& note) {
    return note.starts_with("optimizer.params.eps") && contains(note, "Lion has no such parameter");
  }));
  const auto again = Config::from_text(noted->to_json(), "again", 1);
  EXPECT_EQ(again->optimizer.type, cpu_adam::Optimizer::lion);
}

TEST(ConfigOptimizer, TakesAutoForTheDefaultsOfEachType) {
  const auto text_of = [](const std::string& type, const std::string& params) {
    return read(R"({"train_batch_size": 8, "optimizer": {"type": ")" + type + R"(", "params": {)" + params +
                "}}}")
        ->to_json();
  };
  for (const char* const type : {"AdamW", "Lion", "Adagrad", "Muon"}) {
    EXPECT_EQ(text_of(type, R"("lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto")"),
              text_of(type, ""))
        << type;
  }
}

TEST(ConfigOptimizer, RefusesWhatOnlyAdamHasWithOtherOptimizers) {
  const auto of_lion = [](const std::string& keys) {
    return refusal(R"({"train_batch_size": 8, "bf16": {"enabled": true}, "optimizer": {"type": "Lion"}, )" +
                   keys + "}");
  };
  EXPECT_TRUE(
      contains(of_lion(R"("penstock": {"state_format": "split"})"), "Lion takes fp32 only, got split"));
  EXPECT_TRUE(contains(of_lion(R"("penstock": {"update_split": "automatic"})"), "penstock.update_split"));
  EXPECT_TRUE(contains(of_lion(R"("penstock": {"device_states": "1GiB"})"), "penstock.device_states"));
  EXPECT_TRUE(contains(of_lion(R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu",
                       "ratio": 0.5}})"),
                       "offload_optimizer.ratio"));

  Config config;
  config.optimizer.type = cpu_adam::Optimizer::adagrad;
  const ModelLayout model{.units = {{.name = "unit", .parameters = {{"weight", ElementCount(100), 0}}}}};
  const auto on_device = plan_memory(config, model, 1, 1, tiers::DeviceMemory::separate);
  ASSERT_FALSE(on_device);
  EXPECT_EQ(on_device.error().code(), ErrorCode::unsupported);
  EXPECT_TRUE(contains(on_device.error().message(), "offload_optimizer.device"))
      << on_device.error().message();
  config.offload_optimizer.device = OffloadDevice::cpu;
  EXPECT_TRUE(plan_memory(config, model, 1, 1, tiers::DeviceMemory::separate));
}

std::string with_custom(const std::string& params, const std::string& keys = "") {
  return R"({"train_batch_size": 8, )" + keys + R"("optimizer": {"type": "custom", "params": {)" + params +
         "}}}";
}

TEST(ConfigOptimizer, TakesAFunctionOfTheTrainerWithItsMoments) {
  using enum cpu_adam::Optimizer;
  for (const auto& [params, type] :
       {std::pair(R"("moments": 0)", custom_no_moments), std::pair(R"("moments": 1)", custom_one_moment),
        std::pair(R"("moments": 2)", custom_two_moments), std::pair(R"("lr": 0.5)", custom_two_moments)}) {
    const auto config = read(with_custom(params));
    ASSERT_TRUE(config) << config.error().message();
    EXPECT_EQ(config->optimizer.type, type);
    EXPECT_EQ(Config::from_text(config->to_json(), "again", 1)->optimizer.type, type);
    EXPECT_TRUE(std::none_of(config->notes.begin(), config->notes.end(),
                             [](const std::string& note) { return contains(note, "optimizer"); }));
  }
  EXPECT_EQ(read(with_custom(R"("betas": [0.5, 0.25], "eps": 3, "weight_decay": 2)"))->optimizer.epsilon, 3);
}

TEST(ConfigOptimizer, RefusesWhatAFunctionOfTheTrainerDoesNotHave) {
  const auto refused = [](const std::string& params, const std::string& keys = "") {
    return refusal(with_custom(params, keys));
  };
  EXPECT_TRUE(contains(refused(R"("moments": 3)"), "optimizer.params.moments"));
  EXPECT_TRUE(contains(refused(R"("bias_correction": false)"), "optimizer.params.bias_correction"));
  EXPECT_TRUE(contains(refused(R"("adam_w_mode": false)"), "optimizer.params.adam_w_mode"));
  const std::string bf16 = R"("bf16": {"enabled": true}, )";
  for (const char* const format : {"split", "split_bf16", "split_q8"}) {
    const std::string keys = bf16 + R"("penstock": {"state_format": ")" + format + "\"}, ";
    EXPECT_TRUE(contains(refused("", keys), std::string("takes fp32 only, got ") + format));
  }
  EXPECT_TRUE(contains(refused("", R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true},
      "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, )"),
                       "bf16.bf16_master_weights_and_grads"));
  EXPECT_TRUE(
      contains(refused("", R"("penstock": {"update_split": "automatic"}, )"), "penstock.update_split"));
  EXPECT_TRUE(contains(refused("", R"("penstock": {"device_states": "1GiB"}, )"), "penstock.device_states"));
  EXPECT_TRUE(contains(refused("", R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu",
                       "ratio": 0.5}}, )"),
                       "offload_optimizer.ratio"));
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": 8, "optimizer": {"params": {"moments": 1}}})"),
                       "needs optimizer.type \"Custom\""));

  Config config;
  config.optimizer.type = cpu_adam::Optimizer::custom_one_moment;
  const ModelLayout model{.units = {{.name = "unit", .parameters = {{"weight", ElementCount(100), 0}}}}};
  const auto on_device = plan_memory(config, model, 1, 1, tiers::DeviceMemory::separate);
  ASSERT_FALSE(on_device);
  EXPECT_TRUE(contains(on_device.error().message(), "optimizer.type")) << on_device.error().message();
}

}  // namespace
}  // namespace penstock::zero
