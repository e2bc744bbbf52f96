// penstock.non_finite_gradients, and bf16.check_grad_overflow, which describes what DeepSpeed does.

#include "config_text.hpp"

#include <gtest/gtest.h>

#include <string>

namespace penstock::zero {
namespace {

std::string file(const std::string& members) {
  return R"({"train_batch_size": 8, )" + members + "}";
}
const std::string as_deepspeed = R"("penstock": {"non_finite_gradients": "as_deepspeed"}, )";

TEST(ConfigNonFiniteGradients, SkipStepsForEveryDtypeUnlessDeepSpeedsBehaviourIsAsked) {
  for (const char* const precision :
       {R"("steps_per_print": 1)", R"("bf16": {"enabled": true})",
        R"("bf16": {"enabled": true, "check_grad_overflow": false})", R"("fp16": {"enabled": true})"}) {
    EXPECT_TRUE(read(file(precision))->skips_non_finite_gradients()) << precision;
  }
  EXPECT_FALSE(read(file(as_deepspeed + R"("bf16": {"enabled": true})"))->skips_non_finite_gradients());
}

TEST(ConfigNonFiniteGradients, NoteThatACheckCannotBeTurnedOffAlone) {
  const auto is_noted = [](const std::string& members) {
    const auto config = read(file(members));
    for (const std::string& note : config->notes)
      if (contains(note, "bf16.check_grad_overflow, line 1: has no effect")) return true;
    return false;
  };
  const std::string unchecked = R"("bf16": {"enabled": true, "check_grad_overflow": false})";
  EXPECT_TRUE(is_noted(unchecked));
  EXPECT_FALSE(is_noted(as_deepspeed + unchecked));
  EXPECT_FALSE(is_noted(R"("bf16": {"enabled": true})"));
}

TEST(ConfigNonFiniteGradients, NeedStatesThatHoldThem) {
  const std::string bf16 = R"("bf16": {"enabled": true}, )";
  for (const char* const format : {"split", "split_bf16", "split_q8"}) {
    const std::string message = refusal(file(
        bf16 + R"("penstock": {"non_finite_gradients": "as_deepspeed", "state_format": ")" + format + "\"}"));
    EXPECT_TRUE(contains(message, "penstock.non_finite_gradients")) << message;
  }
  const std::string masters =
      as_deepspeed + R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true},
      "zero_optimization": {"offload_optimizer": {"device": "cpu"}, "stage": )";
  EXPECT_TRUE(contains(refusal(file(masters + "3}")), "bf16.bf16_master_weights_and_grads"));
  EXPECT_TRUE(read(file(masters + "2}")));  // such a step is skipped there
}

}  // namespace
}  // namespace penstock::zero
