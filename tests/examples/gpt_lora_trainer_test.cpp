// Adapters beside a frozen base, from the base's training on, on the device that the build names: GPT_LORA_DEVICE.
#include "gpt/rank_threads.hpp"
#include "gpt/rank_trainer.hpp"
#include "gpt/training_states.hpp"

#include "kit/scratch_directory.hpp"

#include <penstock/zero/comm/in_process_group.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <bit>
#include <fstream>
#include <map>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace gpt {
namespace {

using namespace penstock;  // NOLINT: the test of an example reads better so
using cpu_adam::StateKind;
using zero::OffloadDevice;

struct Job {
  ModelConfig model;
  TrainingConfig training = {.ranks = 2, .micro_batches = 2, .sequences = 2, .steps = 4};
  std::uint32_t stage = 3;
  OffloadDevice tier = OffloadDevice::nvme;
  const Text* text = nullptr;
  TrainingStates::Paths states = {};
};

struct Trained {
  std::vector<double> losses;  // of rank 0
  std::string digest;
  StateFile::Progress progress;
  std::map<std::pair<std::string, StateKind>, std::map<std::uint64_t, float>>
      states;                         // by path, kind and element
  ByteCount written, frozen_on_disk;  // of all ranks
};

class GptLora : public testing::Test {
 protected:
  void SetUp() override {
    first_text_.emplace(text("the quick brown fox jumps over the lazy dog; "));
    other_text_.emplace(text("1, 2, 3, 4; "));
    lora_.lora = LoraConfig{.rank = 8, .alpha = 12};
  }

  Trained train(const Job& job) {
    auto config = zero::Config::from_text(
                      R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
        "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 3}},
        "zero_optimization": {"stage": )" +
                          std::to_string(job.stage) + R"(, "param_persistence_threshold": 0}})",
                      "test", job.training.ranks)
                      .value();
    config.offload_optimizer.device = job.tier;
    if (job.stage == 3) config.offload_param.device = job.tier;
    config.offload_param.nvme_paths = config.offload_optimizer.nvme_paths = {directory_.path()};
    auto files = TrainingStates::open(job.states, job.model, job.training).value();
    const auto group = zero::InProcessGroup::create(job.training.ranks).value();
    Trained trained;
    std::mutex mutex;
    const auto run = [&](std::uint32_t rank) -> Result<void> {
      PENSTOCK_TRY_ASSIGN(
          const auto trainer,
          RankTrainer::create({.model = job.model,
                               .training = job.training,
                               .config = config,
                               .text = job.text,
                               .identity = zero::RankIdentity::local(rank, job.training.ranks),
                               .group = zero::in_process_membership(group, rank),
                               .make_device = GPT_LORA_DEVICE(job.model),
                               .base = files.base ? &*files.base : nullptr,
                               .resumed = files.resumed ? &*files.resumed : nullptr}));
      for (std::uint32_t step = files.first_step(); step < job.training.steps; ++step) {
        PENSTOCK_TRY_ASSIGN(const auto report, trainer->step(step));
        if (rank == 0) trained.losses.push_back(report.loss);
      }
      PENSTOCK_TRY_ASSIGN(const auto digest, trainer->digest());
      if (files.saved) PENSTOCK_TRY(trainer->save(*files.saved));
      const std::scoped_lock lock(mutex);
      trained.digest = digest;
      trained.written += trainer->runtime().ledger().traffic().written;
      trained.frozen_on_disk += trainer->plan().disk_frozen_shards;
      trained.progress = trainer->progress(job.training.steps);
      const ModelDescription description(job.model);
      return trainer->engine().read_states([&](zero::ParameterId id, StateKind kind, std::uint64_t first,
                                               std::span<const float> values) -> Result<void> {
        const ParameterDescription& parameter = description.parameter({id.unit, id.index});
        auto& all = trained.states[{parameter.path, kind}];
        for (const float value : values) all[parameter.first + first++] = value;
        return ok();
      });
    };
    EXPECT_TRUE(run_ranks(job.training.ranks, [&](std::uint32_t rank) {
      const auto done = run(rank);
      if (done) return;
      group->abort(rank, done.error());
      if (done.error().code() != ErrorCode::peer_failed) ADD_FAILURE() << done.error().message();
    }));
    EXPECT_TRUE(!files.saved || files.saved->finish(trained.progress));
    return trained;
  }

  Trained train_base(std::uint32_t steps = 3) {
    Job job{.model = base_, .text = &*first_text_, .states = {.save = file("base")}};
    job.training.steps = steps;
    return train(job);
  }
  Job adapters() { return {.model = lora_, .text = &*other_text_, .states = {.base = file("base")}}; }
  std::filesystem::path file(const char* name) const { return directory_.path() / name; }

  ModelConfig base_{.layers = 2, .width = 16, .heads = 2, .context = 6}, lora_ = base_;
  std::optional<Text> first_text_, other_text_;

 private:
  Text text(const std::string& sentence) {
    std::ofstream file_of_text(file("text"));
    for (int i = 0; i < 20; ++i) file_of_text << sentence;
    file_of_text.close();
    return Text::load(file("text"), base_.context).value();
  }
  test::ScratchDirectory directory_;
};

float to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

TEST_F(GptLora, TrainsAdaptersAndLeavesTheBitsOfTheBase) {
  const Trained base = train_base(24);
  Job job = adapters();
  job.training.steps = 24;

  const Trained trained = train(job);

  const auto mean = [](std::span<const double> some) {
    return std::accumulate(some.begin(), some.end(), 0.0) / static_cast<double>(some.size());
  };
  EXPECT_LT(mean(std::span(trained.losses).last(4)), mean(std::span(trained.losses).first(4)) - 0.5);
  std::size_t frozen = 0, moved = 0;
  for (const auto& [key, values] : trained.states) {
    const auto& [path, kind] = key;
    if (path.find("lora") != std::string::npos) {
      moved += std::ranges::any_of(values, [](const auto& value) { return value.second != 0; });
      continue;
    }
    SCOPED_TRACE(path);
    EXPECT_EQ(kind, StateKind::master) << "no moments";
    auto wanted = base.states.at(key);
    for (auto& [element, value] : wanted) value = to_bf16(value);
    EXPECT_EQ(values, wanted);
    ++frozen;
  }
  EXPECT_EQ(frozen, 2u + 2 * 12 + 2);
  EXPECT_EQ(moved, 2u * 4 * 3) << "of each adapter two matrices with both moments";
}

TEST_F(GptLora, BeginsWithTheLossOfTheBase) {
  train_base();
  Job whole = adapters();
  whole.model = base_;

  EXPECT_EQ(train(adapters()).losses.front(), train(whole).losses.front());
}

TEST_F(GptLora, WritesAdaptersAloneInAStep) {
  train_base();
  const auto of_a_step = [&](Job job) {
    const auto written = [&](std::uint32_t steps) {
      job.training.steps = steps;
      return train(job).written;
    };
    return ByteCount((written(6) - written(2)).value() / 4);
  };
  Job whole = adapters();
  whole.model = base_;

  // Of each of 2 blocks and ranks: shard, tile and a gradient of 384 elements, which are 12 bytes each at most.
  EXPECT_LE(of_a_step(adapters()), ByteCount(2 * 2 * (4096 + 8192 + 4096)));
  EXPECT_GE(of_a_step(whole), ByteCount(10 * 2 * 2 * 4096));
}

TEST_F(GptLora, KeepsTheBaseOnDisk) {
  train_base();
  const auto base_bytes = ModelDescription(base_).element_count().value() * 2;

  const Trained trained = train(adapters());

  EXPECT_GE(trained.frozen_on_disk, ByteCount(base_bytes));
}

TEST_F(GptLora, GivesTheSameBitsInEveryTierAndStage) {
  train_base();
  for (const std::uint32_t ranks : {1u, 2u, 4u}) {
    Job job = adapters();
    job.training.ranks = ranks;
    const Trained wanted = train(job);
    for (const std::uint32_t stage : {0u, 1u, 2u, 3u}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, stage " + std::to_string(stage));
      job.stage = stage;
      job.tier = stage % 2 == 0 ? OffloadDevice::none : OffloadDevice::cpu;

      const Trained trained = train(job);

      EXPECT_EQ(trained.losses, wanted.losses);
      EXPECT_EQ(trained.digest, wanted.digest);
    }
  }
}

TEST_F(GptLora, GivesTheSameBitsHoweverActivationsAreKept) {
  base_.width = lora_.width = 64;
  train_base(1);
  for (const ElementCount limit : {ElementCount(), ElementCount(64 * 257)}) {
    for (const bool by_layer : {false, true}) {
      Job job = adapters();
      job.model.unit_elements_max = limit;
      job.training.layer_by_layer = by_layer;
      const std::string digest = train(job).digest;

      job.training.checkpoint_activations = true;
      EXPECT_EQ(train(job).digest, digest);
      job.training.offload_activations = true;
      EXPECT_EQ(train(job).digest, digest);
    }
  }
}

TEST_F(GptLora, ContinuesWithTheSameBits) {
  train_base();
  for (const bool whole : {false, true}) {
    Job job = adapters();
    if (whole) job.model = base_;
    const Trained wanted = train(job);
    job.training.steps = 2;
    job.states.save = file("saved");
    train(job);
    job.training.steps = 4;
    job.states = {.resume = file("saved")};
    if (!whole) job.states.base = file("base");

    const Trained resumed = train(job);

    EXPECT_EQ(resumed.digest, wanted.digest);
    EXPECT_EQ(resumed.states, wanted.states);
    EXPECT_EQ(resumed.losses, std::vector<double>(wanted.losses.begin() + 2, wanted.losses.end()));
  }
}

}  // namespace
}  // namespace gpt
