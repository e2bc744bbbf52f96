// optimizer.type "Muon" and its keys, whose meanings are those of DeepSpeed's MuonWithAuxAdam.

#include "config_text.hpp"
#include "zero/engine/step_arithmetic.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace penstock::zero {
namespace {

std::string muon(const std::string& params, const std::string& rest = "") {
  return R"({"train_batch_size": 8, )" + rest + R"("optimizer": {"type": "muon", "params": {)" + params +
         "}}}";
}

GroupHyperparameters group(const Config& config, const OptimizerGroup& of, std::uint64_t step = 1) {
  return group_hyperparameters(config.optimizer, of, config.learning_rate_of(step));
}

TEST(ConfigMuon, HasTheDefaultsOfDeepSpeed) {
  const Config config = *read(muon(""));
  EXPECT_EQ(config.optimizer.type, cpu_adam::Optimizer::muon);
  const auto matrices = group(config, {.use_muon = true}), others = group(config, {});
  EXPECT_EQ(matrices.learning_rate, 0.02f);
  EXPECT_EQ(matrices.beta1, 0.95f);
  EXPECT_EQ(others.learning_rate, 3e-4f);
  EXPECT_EQ(others.beta1, 0.9f);
  EXPECT_EQ(others.beta2, 0.95f);
  EXPECT_EQ(others.epsilon, 1e-10f);
  const auto adam = std::get<cpu_adam::AdamConfig>(hyperparameters(config.optimizer, others));
  EXPECT_EQ(adam.decay_mode, cpu_adam::AdamDecay::decoupled);
  EXPECT_TRUE(adam.bias_correction);
}

TEST(ConfigMuon, GivesBothKindsOfGroupsTheirRates) {
  const auto rates = [](const std::string& params) {
    const Config config = *read(muon(params));
    return std::pair(group(config, {.use_muon = true}).learning_rate, group(config, {}).learning_rate);
  };
  EXPECT_EQ(rates(R"("lr": 0.5)"), std::pair(0.5f, 0.5f));
  EXPECT_EQ(rates(R"("lr": 0.5, "muon_lr": 2)"), std::pair(2.0f, 0.5f));
  EXPECT_EQ(rates(R"("lr": 0.5, "adam_lr": 0.1)"), std::pair(0.5f, 0.1f));
  EXPECT_EQ(rates(R"("adam_lr": 0.1)"), std::pair(0.02f, 0.1f));
  const Config config = *read(muon(R"("momentum": 0.5, "weight_decay": 3)"));
  EXPECT_EQ(group(config, {.use_muon = true}).beta1, 0.5f);
  EXPECT_EQ(group(config, {.use_muon = true}).weight_decay, 3.0f);
  EXPECT_EQ(group(config, {.use_muon = true, .betas = {{0.25, 0}}}).beta1, 0.25f);
}

TEST(ConfigMuon, SchedulesBothRatesInProportion) {
  const Config config = *read(muon(R"("lr": 0.5, "muon_lr": 2, "adam_lr": 0.25)",
                                   R"("scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.5,
                                      "warmup_num_steps": 10, "warmup_type": "linear"}}, )"));
  for (std::uint64_t step = 1; step < 15; ++step) {
    const auto rate = static_cast<float>(config.learning_rate_of(step).rate);
    EXPECT_FLOAT_EQ(group(config, {.use_muon = true}, step).learning_rate, 4 * rate);
    EXPECT_FLOAT_EQ(group(config, {}, step).learning_rate, rate / 2);
  }
}

TEST(ConfigMuon, IsReadBackFromItsText) {
  for (const char* const params :
       {"", R"("lr": 0.5)", R"("lr": 0.5, "muon_lr": 2, "adam_lr": 0.25, "momentum": 0)"}) {
    const Config config = *read(muon(params));
    const auto again = read(config.to_json());
    ASSERT_TRUE(again) << again.error().message();
    EXPECT_EQ(again->to_json(), config.to_json());
    EXPECT_EQ(again->optimizer.adam_learning_rate, config.optimizer.adam_learning_rate);
    EXPECT_EQ(again->optimizer.muon_learning_rate, config.optimizer.muon_learning_rate);
  }
}

TEST(ConfigMuon, RefusesWhatIsNotItsOwn) {
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_TRUE(contains(refusal(text), part)) << text << '\n' << refusal(text);
  };
  for (const char* const key : {"momentum", "muon_lr", "adam_lr"}) {
    expect(R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {")" + std::string(key) +
               "\": 0.5}}}",
           "optimizer.params." + std::string(key) + ", line 1: needs optimizer.type \"Muon\"");
  }
  expect(muon(R"("momentum": 1)"), "optimizer.params.momentum");
  expect(muon(R"("lr": 0, "muon_lr": 0.1)"), "optimizer.params.lr");
  const std::string bf16 = R"("bf16": {"enabled": true}, )";
  expect(muon("", bf16 + R"("penstock": {"state_format": "split"}, )"), "Muon takes fp32 only, got split");
  expect(muon("", R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true},
                     "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, )"),
         "Muon updates masters in fp32");
  expect(muon("",
              R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}, )"),
         "offload_optimizer.ratio");
  EXPECT_TRUE(read(muon(R"("ns_method": "gram")")));
}

TEST(ConfigMuon, UpdatesOtherGroupsByAdamWWithItsBiasCorrection) {
  const Config config = *read(muon(R"("bias_correction": false)"));
  const auto adam = std::get<cpu_adam::AdamConfig>(hyperparameters(config.optimizer, group(config, {})));
  EXPECT_TRUE(adam.bias_correction);
  EXPECT_EQ(adam.decay_mode, cpu_adam::AdamDecay::decoupled);
  EXPECT_TRUE(std::any_of(config.notes.begin(), config.notes.end(), [](const std::string& note) {
    return contains(note, "bias_correction, line 1: has no effect");
  }));
  // DeepSpeed 0.19.8 updates them by Adam then.
  EXPECT_TRUE(contains(refusal(muon(R"("adam_w_mode": false)")), "false is not supported"));
}

TEST(ConfigMuon, SaysThatClippingIsNotDeepSpeeds) {
  const auto notes_clipping = [](const std::string& keys) {
    const Config config = *read(muon("", keys));
    return std::any_of(config.notes.begin(), config.notes.end(),
                       [](const std::string& note) { return note.starts_with("gradient_clipping"); });
  };
  EXPECT_TRUE(notes_clipping(R"("zero_optimization": {"stage": 1}, )"));
  EXPECT_TRUE(notes_clipping(R"("gradient_clipping": 0.5, "zero_optimization": {"stage": 3}, )"));
  EXPECT_FALSE(notes_clipping(R"("gradient_clipping": 0, "zero_optimization": {"stage": 3}, )"));
  EXPECT_FALSE(notes_clipping(""));  // at stage 0 DeepSpeed clips the gradients, too
}

TEST(ConfigMuon, LeavesBothRatesToASchedulerUnlessTheyAreGiven) {
  const Config config = *read(muon("", R"("scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.25,
                                          "warmup_num_steps": 2}}, )"));
  EXPECT_EQ(group(config, {.use_muon = true}, 9).learning_rate, 0.25f);
  EXPECT_EQ(group(config, {}, 9).learning_rate, 0.25f);
}

TEST(ConfigMuon, IsCheckedWhereItIsMadeInCode) {
  const auto refusal_of = [](const auto& change) {
    Config config;
    change(config.optimizer);
    const auto valid = config.validate();
    return valid ? std::string() : valid.error().message();
  };
  using cpu_adam::Optimizer;
  EXPECT_TRUE(contains(refusal_of([](auto& o) { o.muon_learning_rate = 1; }), "optimizer.params.muon_lr"));
  EXPECT_TRUE(contains(refusal_of([](auto& o) { o.adam_learning_rate = 1; }), "optimizer.params.adam_lr"));
  EXPECT_TRUE(contains(refusal_of([](auto& o) { o.type = Optimizer::muon, o.bias_correction = false; }),
                       "optimizer.params.bias_correction"));
  EXPECT_TRUE(
      contains(refusal_of([](auto& o) { o.type = Optimizer::muon, o.decay_mode = cpu_adam::AdamDecay::l2; }),
               "optimizer.params.adam_w_mode"));
  EXPECT_TRUE(contains(refusal_of([](auto& o) { o.type = Optimizer::muon, o.momentum = 1; }), "got 1"));
}

}  // namespace
}  // namespace penstock::zero
