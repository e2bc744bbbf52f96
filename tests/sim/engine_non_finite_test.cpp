// Gradients that are not finite, where penstock.non_finite_gradients asks for what DeepSpeed does with them.

#include "kit/cluster.hpp"
#include "kit/trainer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace penstock::zero {
namespace {

using test::RunOptions;
using test::RunResult;
using test::train;

RunOptions with_infinite_gradients(std::uint32_t stage, DType dtype) {
  RunOptions options{.steps = 2};
  options.config.stage = stage;
  options.config.dtype = options.config.grad_accum_dtype = dtype;
  options.config.penstock.non_finite_gradients = NonFiniteGradients::as_deepspeed;
  options.gradient_scale = [](std::uint32_t step, std::uint32_t rank) {
    return step == 1 && rank == 1 ? std::numeric_limits<float>::infinity() : 1.0f;
  };
  return options;
}

TEST(NonFiniteGradients, SkipStepsOnlyWhereDeepSpeedSkipsThem) {
  const auto kind = [](std::uint32_t stage, DType dtype, bool check = true) {
    RunOptions options = with_infinite_gradients(stage, dtype);
    options.config.check_grad_overflow = check;
    const RunResult result = train(options);
    EXPECT_FALSE(result.error) << result.error->message();
    if (result.error) return StepOutcome::Kind::updated;
    EXPECT_FALSE(std::isfinite(result.outcomes[1].gradient_norm));
    return result.outcomes[1].kind;
  };
  using enum StepOutcome::Kind;
  for (std::uint32_t stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    EXPECT_EQ(kind(stage, DType::fp32), updated);
    EXPECT_EQ(kind(stage, DType::fp16), skipped);
    EXPECT_EQ(kind(stage, DType::bf16), stage == 1 || stage == 2 ? skipped : updated);
    EXPECT_EQ(kind(stage, DType::bf16, false), updated);
  }
}

TEST(NonFiniteGradients, AreNotClippedAndReachTheParametersInEveryTier) {
  const RunOptions options = with_infinite_gradients(3, DType::bf16);
  const RunResult in_memory = train(options);
  ASSERT_FALSE(in_memory.error) << in_memory.error->message();
  EXPECT_EQ(in_memory.outcomes[1].kind, StepOutcome::Kind::updated);
  EXPECT_EQ(in_memory.outcomes[1].step, 2u);
  EXPECT_EQ(in_memory.outcomes[1].clip_factor, 1.0);
  EXPECT_LT(in_memory.outcomes[0].clip_factor, 1.0);
  RunOptions one_step = options;
  one_step.steps = 1;
  EXPECT_NE(in_memory.digest, train(one_step).digest);

  for (const OffloadDevice states : {OffloadDevice::nvme, OffloadDevice::cpu}) {
    RunOptions elsewhere = options;
    elsewhere.config.offload_param.device = OffloadDevice::nvme;
    elsewhere.config.offload_optimizer.device = states;
    elsewhere.seed = 1;
    const RunResult result = train(elsewhere);
    ASSERT_FALSE(result.error) << result.error->message();
    EXPECT_EQ(result.digest, in_memory.digest);
  }
  RunOptions on_device = options;
  on_device.device_memory = tiers::DeviceMemory::separate;
  const RunResult result = train(on_device);
  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.digest, in_memory.digest);
}

}  // namespace
}  // namespace penstock::zero
