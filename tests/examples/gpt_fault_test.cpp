// The demonstration's training step, with two ranks on a real disk and a fault in every request of one rank.
#include "gpt/rank_device.hpp"
#include "gpt/rank_trainer.hpp"
#include "kit/scratch_directory.hpp"

#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/zero/comm/in_process_group.hpp>

#include <gtest/gtest.h>
#include <cerrno>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

namespace gpt {
namespace {

using penstock::Error;
using penstock::ErrorCode;
using penstock::Result;
using penstock::tiers::Fault;
using penstock::tiers::FaultEngine;
using penstock::tiers::FaultPlan;
using penstock::tiers::IoOperation;

constexpr std::uint32_t ranks = 2, steps = 2;
constexpr ModelConfig model{.layers = 2, .width = 64, .heads = 4, .context = 32};
constexpr TrainingConfig training{.ranks = ranks, .micro_batches = 2, .sequences = 1, .steps = steps};

// The CTest label fault injects a fault into every request; the default tests into some of them.
#ifdef FAULT_EVERY_REQUEST
constexpr std::uint64_t stride = 1;
#else
constexpr std::uint64_t stride = 17;
#endif

struct Outcome {
  std::optional<Error> error;  // of the rank that failed first, not the peer_failed of another rank
  std::string digest;
  std::uint64_t requests = 0, injected = 0;
};

class GptFault : public testing::TestWithParam<std::pair<const char*, Fault>> {
 protected:
  void SetUp() override {
    std::ofstream(directory_.path() / "text") << std::string(4000, 'x') << "abcdefghijklmnopqrstuvwxyz";
    text_.emplace(Text::load(directory_.path() / "text", model.context).value());
    config_ = penstock::zero::Config::from_text(R"({"train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3},
        "penstock": {"io_deadline_seconds": 1, "tile_elements": 16384}})",
                                                "test", ranks)
                  .value();
    using penstock::zero::OffloadDevice;
    config_.offload_param.device = config_.offload_optimizer.device = OffloadDevice::nvme;
    config_.offload_param.nvme_paths = config_.offload_optimizer.nvme_paths = {directory_.path()};
    const auto plan = penstock::zero::plan_memory(config_, layout_of(model, training), ranks, ranks);
    config_.penstock.host_budget = plan->host_minimum * (2 * ranks);
  }

  /// Trains, rank 0's disk meeting `plan`.
  Outcome train(const FaultPlan& plan) {
    Outcome outcome;
    std::mutex mutex;
    auto group = penstock::zero::InProcessGroup::create(ranks).value();
    const auto run = [&](std::uint32_t rank) -> Result<void> {
      FaultEngine* faults = nullptr;
      RankTrainer::Options options{.model = model,
                                   .training = training,
                                   .config = config_,
                                   .text = &*text_,
                                   .identity = penstock::zero::RankIdentity::local(rank, ranks),
                                   .group = penstock::zero::in_process_membership(group, rank),
                                   .make_device = on_host(model)};
      options.adjust_runtime = [&](penstock::swap::RuntimeOptions& runtime) {
        if (rank != 0) return;
        runtime.paths.at(0).decorate = [&](std::unique_ptr<penstock::tiers::IoEngine> engine) {
          auto decorated = std::make_unique<FaultEngine>(std::move(engine), plan);
          faults = decorated.get();
          return decorated;
        };
      };
      auto trainer = RankTrainer::create(options);
      if (!trainer) return trainer.error();
      Result<void> done;
      for (std::uint32_t step = 0; step < steps && done; ++step) {
        if (auto report = (*trainer)->step(step); !report) done = report.error();
      }
      if (done) {
        auto digest = (*trainer)->digest();
        if (!digest) done = digest.error();
        const std::lock_guard lock(mutex);
        if (digest) outcome.digest = *digest;
      }
      if (!done) group->abort(rank, done.error());
      (*trainer)->runtime().wait_for_stores(0);
      if (faults != nullptr) outcome.requests = faults->accepted(), outcome.injected = faults->injected();
      return done;
    };
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        auto done = run(rank);
        if (done) return;
        group->abort(rank, done.error());
        const std::lock_guard lock(mutex);
        if (!outcome.error || outcome.error->code() == ErrorCode::peer_failed) outcome.error = done.error();
      });
    }
    threads.clear();
    return outcome;
  }

  penstock::test::ScratchDirectory directory_;
  std::optional<Text> text_;
  penstock::zero::Config config_;
};

TEST_P(GptFault, EndsTheDemonstrationWithATypedErrorOrTheRightBits) {
  const Outcome clean = train({});
  ASSERT_FALSE(clean.error) << clean.error->message();
  ASSERT_GT(clean.requests, 20u);
  const Fault& fault = GetParam().second;
  std::uint64_t injected = 0, failed = 0;
  // A hang costs its deadline.
  const std::uint64_t every = fault.effect == Fault::Effect::hang ? 3 * stride : stride;
  for (std::uint64_t request = 0; request < clean.requests; request += every) {
    FaultPlan plan = {fault};
    plan[0].occurrence = request;
    const Outcome run = train(plan);
    if (run.injected > 0 || run.error)
      ++injected;  // a fault during the creation of the trainer is not counted
    if (!run.error) {
      EXPECT_EQ(run.digest, clean.digest) << "request " << request;
      continue;
    }
    ++failed;
    const std::string message = run.error->message();
    const std::set<ErrorCode> typed = {
        ErrorCode::io,        ErrorCode::no_space,          ErrorCode::truncated,
        ErrorCode::corrupted, ErrorCode::deadline_exceeded, ErrorCode::failed_state};
    EXPECT_TRUE(typed.contains(run.error->code())) << "request " << request << ": " << message;
    EXPECT_NE(message.find("scratch file in"), std::string::npos) << message;
    EXPECT_NE(message.find("at offset"), std::string::npos) << message;
  }
  EXPECT_GT(injected, 1u);
  if (fault.effect == Fault::Effect::delay) {
    EXPECT_EQ(failed, 0u);
  }
}

using Effect = Fault::Effect;
INSTANTIATE_TEST_SUITE_P(
    Effects, GptFault,
    testing::Values(
        std::pair("Enodev", Fault::fail({}, 0, ENODEV)),
        std::pair("EioOfAllItsPieces", Fault::fail({}, 0, EIO, 64)),
        std::pair("EnospcOfAWrite", Fault::fail(IoOperation::write, 0, ENOSPC)),
        std::pair("EndOfFile", Fault{.effect = Effect::shorten}),
        std::pair("Late", Fault{.effect = Effect::delay, .delay = std::chrono::milliseconds(5)}),
        std::pair("Hang", Fault{.effect = Effect::hang}),
        std::pair("TornWrite", Fault{.operation = IoOperation::write, .effect = Effect::tear}),
        std::pair("LostWrite", Fault{.operation = IoOperation::write, .effect = Effect::lose}),
        std::pair("MisdirectedWrite",
                  Fault{.operation = IoOperation::write, .effect = Effect::misdirect, .distance = 4096}),
        std::pair("FlippedBit",
                  Fault{.operation = IoOperation::read, .effect = Effect::flip_bit, .bit = 12345})),
    [](const auto& effect) { return effect.param.first; });

}  // namespace
}  // namespace gpt
