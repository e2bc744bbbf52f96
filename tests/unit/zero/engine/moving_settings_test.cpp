// The settings that move from step to step: the learning rate and the betas of a scheduler, and a dynamic loss scale.
#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/rank.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <limits>
#include <vector>

namespace penstock::zero {
namespace {

constexpr std::uint16_t fp16_one = 0x3c00, fp16_infinity = 0x7c00;

Config fp16(DynamicLossScale dynamic) {
  Config config;
  config.dtype = config.grad_accum_dtype = DType::fp16;
  config.loss_scale = 0;
  config.dynamic_loss_scale = dynamic;
  return config;
}

/// A rank in host memory with one unit.
class OneUnit {
 public:
  explicit OneUnit(const Config& config)
      : rank_(Rank::create(
                  {.config = config,
                   .model = {.units = {{.name = "unit", .parameters = {{"weight", ElementCount(1024), 0}}}}}})
                  .value()),
        stream_(rank_->device().create_stream().value()) {
    engine()
        .initialize(
            [](ParameterId, std::uint64_t, std::span<float> v) { std::fill(v.begin(), v.end(), 1.0f); })
        .value();
  }

  Engine& engine() { return rank_->engine(); }
  /// A step whose gradients have these bits.
  template <class T>
  Result<StepOutcome> step(T bits, const Engine::StepOptions& options = {}) {
    PENSTOCK_TRY(engine().begin_step(options));
    PENSTOCK_TRY_ASSIGN(auto gradients, engine().gradients(0, *stream_));
    for (const GradientSlot& slot : gradients.slots()) {
      const HostSpan bytes = tiers::HostDevice::bytes(slot.tensor.bytes);
      std::fill_n(reinterpret_cast<T*>(bytes.data()), bytes.size().value() / sizeof(T), bits);
    }
    PENSTOCK_TRY(engine().reduce(std::move(gradients), *stream_));
    return engine().step();
  }

 private:
  std::unique_ptr<Rank> rank_;
  std::unique_ptr<tiers::Stream> stream_;
};

using Kind = StepOutcome::Kind;

TEST(LossScaleOfAnEngine, IsHalvedByAnOverflowWhichSkipsTheStep) {
  OneUnit run(fp16({.initial_scale_power = 4, .loss_scale_window = 2, .hysteresis = 1}));
  const std::string before = run.engine().digest().value();
  EXPECT_EQ(run.engine().loss_scaler().scale(), 16);

  const StepOutcome skipped = run.step(fp16_infinity).value();

  EXPECT_EQ(skipped.kind, Kind::skipped);
  EXPECT_EQ(skipped.loss_scale, 16);
  EXPECT_EQ(run.engine().loss_scaler().scale(), 8);
  EXPECT_EQ(run.engine().skipped_steps(), 1u);
  EXPECT_EQ(run.engine().completed_steps(), 0u);
  EXPECT_EQ(run.engine().digest().value(), before);

  std::vector<double> scales;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(run.step(fp16_one).value().kind, Kind::updated);
    scales.push_back(run.engine().loss_scaler().scale());
  }
  EXPECT_EQ(scales, (std::vector<double>{8, 8, 16, 16, 32}));
  EXPECT_EQ(run.engine().skipped_steps(), 1u);
}

TEST(LossScaleOfAnEngine, DividesTheGradientsThatItHasMultiplied) {
  OneUnit moving(fp16({.initial_scale_power = 3}));
  Config config = fp16({});
  config.loss_scale = 8;
  OneUnit fixed(config);

  const StepOutcome outcome = moving.step(fp16_one).value();

  EXPECT_EQ(outcome.gradient_norm, 4);  // sqrt(1024) / 8
  EXPECT_EQ(fixed.step(fp16_one).value().gradient_norm, 4);
  EXPECT_EQ(moving.engine().digest().value(), fixed.engine().digest().value());
}

TEST(LossScaleOfAnEngine, EndsTheStepWithAnErrorAtItsMinimumAndTheNextStepWorks) {
  OneUnit run(fp16({.initial_scale_power = 1, .hysteresis = 1, .min_loss_scale = 2}));

  const auto refused = run.step(fp16_infinity);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::non_finite);
  EXPECT_NE(refused.error().message().find("fp16.min_loss_scale"), std::string::npos);
  EXPECT_EQ(run.engine().status(), Engine::Status::ready);
  EXPECT_EQ(run.engine().skipped_steps(), 1u);
  EXPECT_EQ(run.step(fp16_one).value().kind, Kind::updated);
  EXPECT_EQ(run.engine().completed_steps(), 1u);
}

TEST(LossScaleOfAnEngine, ContinuesInARunThatIsResumed) {
  const Config config = fp16({.initial_scale_power = 4, .loss_scale_window = 3, .hysteresis = 2});
  OneUnit whole(config), resumed(config);
  EXPECT_EQ(whole.step(fp16_infinity).value().kind, Kind::skipped);

  ASSERT_TRUE(resumed.engine().restore_loss_scaler(whole.engine().loss_scaler().state()));
  for (int i = 0; i < 8; ++i) {
    const std::uint16_t bits = i == 0 || i == 6 ? fp16_infinity : fp16_one;
    EXPECT_EQ(whole.step(bits).value().loss_scale, resumed.step(bits).value().loss_scale);
  }
  EXPECT_EQ(whole.engine().loss_scaler().state(), resumed.engine().loss_scaler().state());

  EXPECT_FALSE(resumed.engine().restore_loss_scaler({.scale = -1}));
  EXPECT_EQ(whole.engine().loss_scaler().state(), resumed.engine().loss_scaler().state());
  resumed.engine().initialize([](ParameterId, std::uint64_t, std::span<float>) {}).value();
  EXPECT_EQ(resumed.engine().loss_scaler().scale(), 16);
}

TEST(ScheduleOfAnEngine, MovesWithTheStepsThatUpdateAndGivesWayToTheTrainer) {
  Config config;
  config.scheduler = WarmupLR{
      .warmup_min_lr = 0.25, .warmup_max_lr = 0.75, .warmup_num_steps = 4, .warmup_type = WarmupType::linear};
  OneUnit run(config);
  std::vector<double> rates;
  for (const float gradient : {1.0f, 1.0f, std::numeric_limits<float>::infinity(), 1.0f, 1.0f}) {
    rates.push_back(run.step(gradient).value().learning_rate);
  }
  EXPECT_EQ(rates, (std::vector<double>{0.25, 0.25, 0.375, 0.375, 0.5}));
  EXPECT_EQ(run.step(1.0f, {.learning_rate = 0.125}).value().learning_rate, 0.125);
  EXPECT_EQ(run.step(1.0f).value().learning_rate, 0.75);
}

TEST(ScheduleOfAnEngine, UpdatesWithItsRateAndBetas) {
  Config moving, fixed;
  moving.scheduler = OneCycle{.cycle_min_lr = 0.5, .cycle_max_lr = 1, .cycle_first_step_size = 8};
  fixed.optimizer.learning_rate = 0.5;
  fixed.optimizer.betas = {0.8, 0.99};
  OneUnit a(moving), b(fixed);

  EXPECT_EQ(a.step(1.0f).value().learning_rate, 0.5);
  EXPECT_EQ(b.step(1.0f).value().learning_rate, 0.5);
  EXPECT_EQ(a.engine().digest().value(), b.engine().digest().value());
}

/// The fourth step's beta is 0.75 * (1 + decay_mom_rate).
Config with_growing_beta() {
  Config config;
  config.scheduler = OneCycle{.cycle_min_lr = 0.5,
                              .cycle_max_lr = 1,
                              .cycle_first_step_size = 1,
                              .decay_step_size = 1,
                              .cycle_min_mom = 0.5,
                              .cycle_max_mom = 0.75,
                              .decay_mom_rate = 1};
  return config;
}

TEST(ScheduleOfAnEngine, NeedsNoBetaForAnOptimizerWithoutThem) {
  Config config = with_growing_beta();
  config.optimizer.type = cpu_adam::Optimizer::adagrad;
  OneUnit run(config);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(run.step(1.0f)) << i;
}

TEST(ScheduleOfAnEngine, RefusesAStepForWhichItGivesNoBeta) {
  OneUnit run(with_growing_beta());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(run.step(1.0f));

  const auto refused = run.step(1.0f);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_config);
  EXPECT_NE(refused.error().message().find("decay_mom_rate"), std::string::npos) << refused.error().message();
  EXPECT_EQ(run.engine().status(), Engine::Status::ready);
  EXPECT_EQ(run.engine().completed_steps(), 3u);
}

}  // namespace
}  // namespace penstock::zero
