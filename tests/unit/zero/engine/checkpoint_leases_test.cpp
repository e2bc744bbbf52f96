// What a trainer may do wrong with the leases of activation checkpoints.
#include <penstock/zero/rank.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace penstock::zero {
namespace {

constexpr CheckpointUse write = CheckpointUse::write, read = CheckpointUse::read,
                        last_read = CheckpointUse::last_read;

/// One rank with four checkpoints, of which three fit on the device at a time.
class CheckpointLeases : public testing::Test {
 protected:
  CheckpointLeases() {
    Rank::Options options;
    options.model.units = {{.name = "u", .parameters = {{"w", ElementCount(1024), 0}}}};
    options.model.checkpoints = {.count = 4, .size = 100_KiB};
    rank_ = Rank::create(std::move(options)).value();
    stream_ = rank_->device().create_stream().value();
    engine()
        .initialize([](ParameterId, std::uint64_t, std::span<float> values) {
          std::fill(values.begin(), values.end(), 1.0f);
        })
        .value();
  }

  Engine& engine() { return rank_->engine(); }
  Result<CheckpointLease> lease(std::uint32_t checkpoint, CheckpointUse use) {
    return engine().checkpoint(checkpoint, use, *stream_);
  }
  void expect_refused(const Result<CheckpointLease>& result, ErrorCode code, const std::string& words) {
    ASSERT_FALSE(result) << words;
    EXPECT_EQ(result.error().code(), code);
    EXPECT_NE(result.error().message().find(words), std::string::npos) << result.error().message();
    EXPECT_EQ(engine().status(), Engine::Status::ready);
  }
  Result<StepOutcome> step() {
    auto gradients = engine().gradients(0, *stream_).value();
    rank_->device().fill_zero(stream_->handle(), gradients.slots()[0].tensor.bytes).value();
    engine().reduce(std::move(gradients), *stream_).value();
    return engine().step();
  }

  std::unique_ptr<Rank> rank_;
  std::unique_ptr<tiers::Stream> stream_;
};

TEST_F(CheckpointLeases, AreOneOfACheckpointAtATime) {
  auto first = lease(1, write).value();
  EXPECT_EQ(first.bytes().size(), 100_KiB);
  expect_refused(lease(1, write), ErrorCode::invalid_argument, "checkpoint 1");
  expect_refused(lease(1, read), ErrorCode::invalid_argument, "end it first");
  first.end();
  EXPECT_TRUE(first.bytes().empty());
  first.end();
  EXPECT_TRUE(lease(1, read));
}

TEST_F(CheckpointLeases, ReadOnlyWhatThisStepHasWritten) {
  expect_refused(lease(0, read), ErrorCode::invalid_argument, "before it was written");
  lease(0, write).value().end();
  lease(0, read).value().end();
  lease(0, last_read).value().end();
  expect_refused(lease(0, read), ErrorCode::invalid_argument, "after its last read");
  lease(0, write).value().end();
  ASSERT_TRUE(step());
  expect_refused(lease(0, read), ErrorCode::invalid_argument, "in this step");
  lease(0, write).value().end();
  ASSERT_TRUE(engine().abandon_step(*stream_));
  expect_refused(lease(0, read), ErrorCode::invalid_argument, "in this step");
}

TEST_F(CheckpointLeases, AreAsManyAsThereAreSlots) {
  std::vector<CheckpointLease> leases;
  for (std::uint32_t i = 0; i < 3; ++i) leases.push_back(lease(i, write).value());
  for (const char* const words :
       {"at most 3 leases", "checkpoint 0", "checkpoint 2", "leased_max", "100.0 KiB"})
    expect_refused(lease(3, write), ErrorCode::budget_too_small, words);
  leases[1].end();
  EXPECT_TRUE(lease(3, write));
}

TEST_F(CheckpointLeases, EndBeforeTheStep) {
  auto held = lease(2, write).value();
  const auto refused = step();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::failed_state);
  EXPECT_NE(refused.error().message().find("checkpoint 2"), std::string::npos) << refused.error().message();
  EXPECT_FALSE(engine().abandon_step(*stream_));

  held.end();
  EXPECT_TRUE(engine().step());
}

TEST_F(CheckpointLeases, OfAnEvaluationAreNoPartOfTheStep) {
  lease(0, write).value().end();
  auto held = lease(1, write).value();
  EXPECT_EQ(engine().begin_step({}).error().code(), ErrorCode::failed_state);
  held.end();
  ASSERT_TRUE(engine().begin_step({}));
  expect_refused(lease(0, read), ErrorCode::invalid_argument, "in this step");
}

TEST_F(CheckpointLeases, MayOutliveTheEngine) {
  auto held = lease(0, write).value();
  lease(1, write).value().end();
  ASSERT_TRUE(stream_->synchronize());
  stream_.reset();
  rank_.reset();
  held.end();
}

TEST(Checkpoints, HaveSlotsForTheLeasesOfTheTrainer) {
  const auto plan_of = [](CheckpointLayout checkpoints, ByteCount budget) {
    Config config{.stage = 3};
    config.penstock.device_budget = budget;
    ModelLayout model{.units = {{.name = "u", .parameters = {{"w", ElementCount(1024), 0}}}}};
    model.checkpoints = checkpoints;
    return plan_memory(config, model, 2, 2).value();
  };
  const ByteCount minimum = plan_of({.count = 20, .size = 4_KiB}, {}).device_minimum;
  EXPECT_EQ(plan_of({.count = 20, .size = 4_KiB}, {}).checkpoints.device_slots, 3u);
  EXPECT_EQ(plan_of({.count = 20, .size = 4_KiB, .leased_max = 8}, {}).checkpoints.device_slots, 9u);
  EXPECT_EQ(plan_of({.count = 20, .size = 4_KiB, .leased_max = ~0u}, {}).checkpoints.device_slots, 20u);
  EXPECT_EQ(plan_of({.count = 20, .size = 4_KiB}, minimum + 20_KiB).checkpoints.device_slots, 8u);
  EXPECT_EQ(plan_of({.count = 20, .size = 4_KiB}, minimum + 20_KiB).device_minimum, minimum);
}

TEST(Checkpoints, AreRefusedWhereTheLayoutHasNoneOrTheirSizeIsWrong) {
  Rank::Options options;
  options.model.units = {{.name = "u", .parameters = {{"w", ElementCount(1024), 0}}}};
  options.model.checkpoints = {.count = 2, .size = {}};
  auto without_size = Rank::create(options);
  ASSERT_FALSE(without_size);
  EXPECT_NE(without_size.error().message().find("checkpoints"), std::string::npos);
  constexpr ByteCount most{std::uint64_t{1} << 63};
  for (const auto& [count, size, reads] :
       {std::tuple(1u << 21, 1_B, 1u), {1u << 20, 1_GiB, 1u}, {1u, most, 1u}, {1u, 1_B, 1u << 17}}) {
    options.model.checkpoints = {.count = count, .size = size, .reads = reads};
    EXPECT_EQ(Rank::create(options).error().code(), ErrorCode::invalid_argument);
  }
  options.model.checkpoints = {.count = 1, .size = 1_B, .leased_max = 0};
  EXPECT_NE(Rank::create(options).error().message().find("leased_max"), std::string::npos);

  options.model.checkpoints = {};
  const auto rank = Rank::create(options).value();
  const auto stream = rank->device().create_stream().value();
  const auto too_early = rank->engine().checkpoint(0, write, *stream);
  ASSERT_FALSE(too_early);
  EXPECT_NE(too_early.error().message().find("initialize()"), std::string::npos);
  ASSERT_TRUE(rank->engine().initialize([](ParameterId, std::uint64_t, std::span<float>) {}));
  const auto none = rank->engine().checkpoint(0, write, *stream);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message().find("ModelLayout::checkpoints"), std::string::npos)
      << none.error().message();
}

}  // namespace
}  // namespace penstock::zero
