// The loop on plain buffers against one rank of the engine, on the device that the build names: GPT_PLAIN_DEVICE.
#include "gpt/plain_trainer.hpp"

#include "gpt/rank_trainer.hpp"
#include "kit/scratch_directory.hpp"

#include "zero/engine/parameter_digest.hpp"

#include <gtest/gtest.h>
#include <fstream>
#include <string>
#include <vector>

namespace gpt {
namespace {

using penstock::DType;
using penstock::cpu_adam::StateFormat;

struct Trained {
  std::vector<double> losses, norms;
  std::vector<bool> skipped;
  std::string digest;
};

class PlainTrainerTest : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(directory_.path() / "text") << "the quick brown fox jumps over the lazy dog; "
                                                 "pack my box with five dozen liquor jugs";
    text_.emplace(Text::load(directory_.path() / "text", model_.context).value());
    config_.dtype = config_.grad_accum_dtype = DType::bf16;
    config_.optimizer.weight_decay = 0.1f;
  }

  [[nodiscard]] TrainingConfig training() const {
    return {.ranks = 1, .micro_batches = micro_batches_, .sequences = 2, .steps = 4, .warmup_steps = 2};
  }

  Trained train_with_engine() {
    auto config = config_;
    config.gradient_accumulation_steps = micro_batches_;
    config.train_batch_size = micro_batches_;
    const auto trainer = RankTrainer::create({.model = model_,
                                              .training = training(),
                                              .config = config,
                                              .text = &*text_,
                                              .make_device = GPT_PLAIN_DEVICE(model_)})
                             .value();
    Trained trained;
    for (std::uint32_t step = 0; step < training().steps; ++step) {
      const auto report = trainer->step(step).value();
      trained.losses.push_back(report.loss);
      trained.norms.push_back(report.outcome.gradient_norm);
      trained.skipped.push_back(!report.outcome.skip_reason.empty());
    }
    trained.digest = trainer->digest().value();
    return trained;
  }

  std::unique_ptr<PlainTrainer> make_plain() {
    return PlainTrainer::create({.model = model_,
                                 .training = training(),
                                 .config = config_,
                                 .text = &*text_,
                                 .make_device = GPT_PLAIN_DEVICE(model_)})
        .value();
  }

  Trained train_plain() {
    const auto trainer = make_plain();
    Trained trained;
    for (std::uint32_t step = 0; step < training().steps; ++step) {
      const auto outcome = trainer->step(step).value();
      trained.losses.push_back(outcome.loss);
      trained.norms.push_back(outcome.gradient_norm);
      trained.skipped.push_back(outcome.skipped);
    }
    penstock::zero::ParameterDigest digest(layout_of(model_, {}));
    EXPECT_TRUE(trainer->read_masters([&](ParameterId id, std::uint64_t first,
                                          std::span<const float> values) {
      digest.add({static_cast<std::uint32_t>(id.unit), static_cast<std::uint32_t>(id.index)}, first, values);
    }));
    trained.digest = digest.to_string();
    return trained;
  }

  void expect_same_bits(const Trained& plain, const Trained& engine) {
    EXPECT_EQ(plain.losses, engine.losses);
    EXPECT_EQ(plain.norms, engine.norms);
    EXPECT_EQ(plain.skipped, engine.skipped);
    EXPECT_EQ(plain.digest, engine.digest);
  }

  // Its blocks have more elements than a block of states and several of square sums.
  ModelConfig model_{.layers = 2, .width = 48, .heads = 2, .context = 6};
  penstock::zero::Config config_;
  std::uint32_t micro_batches_ = 2;
  penstock::test::ScratchDirectory directory_;
  std::optional<Text> text_;
};

TEST_F(PlainTrainerTest, HasTheBitsOfARankOfTheEngine) {
  const Trained engine = train_with_engine();

  const Trained plain = train_plain();

  expect_same_bits(plain, engine);
  EXPECT_GT(engine.norms.front(), config_.gradient_clipping) << "it clips";
  EXPECT_EQ(engine.skipped, std::vector<bool>(training().steps, false));
}

TEST_F(PlainTrainerTest, HasThemWithOneMicroBatchWhoseGradientsAreTheSums) {
  micro_batches_ = 1;
  expect_same_bits(train_plain(), train_with_engine());
}

TEST_F(PlainTrainerTest, HasThemWithSumsInFp32) {
  config_.grad_accum_dtype = DType::fp32;
  for (const std::uint32_t micro_batches : {1u, 2u}) {
    micro_batches_ = micro_batches;
    expect_same_bits(train_plain(), train_with_engine());
  }
}

TEST_F(PlainTrainerTest, HasThemInAStateFormatThatRoundsStochastically) {
  config_.penstock.state_format = StateFormat::split_q8;
  expect_same_bits(train_plain(), train_with_engine());
}

TEST_F(PlainTrainerTest, HasThemWithFp32ParametersThatAreTheMasters) {
  config_.dtype = config_.grad_accum_dtype = DType::fp32;
  expect_same_bits(train_plain(), train_with_engine());
}

TEST_F(PlainTrainerTest, HasThemWithoutClipping) {
  config_.gradient_clipping = 0;
  expect_same_bits(train_plain(), train_with_engine());
}

TEST_F(PlainTrainerTest, HasThemWithMatricesThatAreCut) {
  model_.unit_elements_max = penstock::ElementCount(64 * 193);
  ASSERT_TRUE(ModelDescription(model_).blocks_are_cut());
  expect_same_bits(train_plain(), train_with_engine());
}

TEST_F(PlainTrainerTest, SkipsTheStepsThatTheEngineSkips) {
  config_.optimizer.learning_rate = 1e30f;

  const Trained plain = train_plain();

  EXPECT_EQ(plain.skipped, (std::vector<bool>{false, true, true, true}));
  const Trained engine = train_with_engine();
  EXPECT_EQ(plain.skipped, engine.skipped);
  EXPECT_EQ(plain.digest, engine.digest);
}

TEST_F(PlainTrainerTest, ReportsMastersThatAreNotFinite) {
  config_.optimizer.learning_rate = 3e38f;
  config_.optimizer.weight_decay = 1e6f;
  const auto trainer = make_plain();
  ASSERT_TRUE(trainer->step(0));

  const auto second = trainer->step(1);

  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), penstock::ErrorCode::non_finite) << second.error().message();
  EXPECT_NE(second.error().message().find("embed"), std::string::npos) << second.error().message();
}

TEST_F(PlainTrainerTest, TakesTheDeviceMemoryOfOneBufferOfEachKindAndTheActivations) {
  struct Case {
    std::uint32_t micro_batches;
    DType dtype, sums;
    double bytes;  // of an element
  };
  const auto elements = static_cast<double>(ModelDescription(model_).element_count().value());
  for (const Case& one : {Case{1, DType::bf16, DType::bf16, 2 + 2 + 12},
                          {2, DType::bf16, DType::bf16, 2 + 2 + 2 + 12},
                          {1, DType::bf16, DType::fp32, 2 + 2 + 4 + 12},
                          {1, DType::fp32, DType::fp32, 4 + 4 + 8}}) {
    micro_batches_ = one.micro_batches;
    config_.dtype = one.dtype;
    config_.grad_accum_dtype = one.sums;

    const DeviceMemoryUse memory = make_plain()->device_memory();

    const auto taken =
        static_cast<double>((memory.free_at_start - memory.free_now - memory.activations).value());
    EXPECT_GE(taken, one.bytes * elements);
    EXPECT_LT(taken, one.bytes * elements * 1.08) << "padding of short parameters";
  }
}

}  // namespace
}  // namespace gpt
