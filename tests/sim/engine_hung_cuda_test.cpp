// The engine on a CUDA device that hangs: on a fake CUDA runtime, one stream of which stops.
#include "fake_cuda/fake_cuda.hpp"
#include "kit/cluster.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

namespace fake_cuda = penstock::test::fake_cuda;

Config config_with(OffloadDevice optimizer) {
  Config config = RunOptions::default_config();
  config.offload_param.device = OffloadDevice::cpu;
  config.offload_optimizer.device = optimizer;
  return config;
}

/// A rank on CUDA whose trainer's stream stops until the test releases it.
class EngineOnHungCuda : public testing::Test {
 protected:
  EngineOnHungCuda() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&native_, cudaStreamNonBlocking), cudaSuccess);
    stream_ = wrap_cuda_stream(0, native_).value();
  }
  void TearDown() override {
    release();
    rank_.reset();
    stream_.reset();
    fake_cuda::restart();
  }
  /// Makes a rank, and begins a step.
  void open(const Config& config, const ModelLayout& model = deep_model(), const RankHooks& hooks = {}) {
    rank_ = Rank::create({.config = config,
                          .model = model,
                          .make_accelerator = [](ByteCount) { return make_cuda_accelerator(0); },
                          .hooks = hooks,
                          .device_deadline = std::chrono::milliseconds(300)})
                .value();
    engine().initialize([](ParameterId, std::uint64_t, std::span<float>) {}).value();
    engine().begin_step({.micro_batches = 1}).value();
  }
  Engine& engine() { return rank_->engine(); }
  void hang() {
    fake_cuda::enqueue(native_, [this] { released_.wait(); });
  }
  void release() { released_.count_down(released_.try_wait() ? 0 : 1); }
  /// The engine has failed with `error`, gives up what the device may still use, and ends.
  void expect_given_up(const Error& error, const std::string& work) {
    EXPECT_EQ(error.code(), ErrorCode::deadline_exceeded);
    EXPECT_NE(error.message().find(work), std::string::npos) << error.message();
    EXPECT_EQ(engine().status(), Engine::Status::failed);
    EXPECT_EQ(engine().digest().error().code(), ErrorCode::failed_state);

    rank_.reset();

    EXPECT_GE(fake_cuda::live().allocations, 1u);
    release();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // the copies that were late run now
  }

  std::latch released_{1};
  cudaStream_t native_ = nullptr;
  std::unique_ptr<Rank> rank_;
  std::unique_ptr<tiers::Stream> stream_;
};

TEST_F(EngineOnHungCuda, FailsAtTheDeadlineOfCopiesToTheDevice) {
  open(config_with(OffloadDevice::cpu));
  auto lease = engine().acquire(0, *stream_).value();
  hang();
  lease.end();
  // Forwards go on without waiting for the stream, until the engine has found that nothing is copied.
  Result<UnitLease> refused = UnitLease();
  const auto units = static_cast<std::uint32_t>(deep_model().units.size());
  for (std::uint32_t use = 1; refused && use < 1'000'000; ++use) {
    refused = engine().acquire(use % units, *stream_);
  }

  ASSERT_FALSE(refused);
  expect_given_up(refused.error(), "copies to the device");
}

TEST_F(EngineOnHungCuda, FailsAtTheDeadlineOfCopiesToHostMemory) {
  open(config_with(OffloadDevice::cpu));
  const auto units = static_cast<std::uint32_t>(deep_model().units.size());
  auto gradients = engine().gradients(units - 1, *stream_).value();
  hang();
  const auto rest_of_step = [&]() -> Result<StepOutcome> {
    PENSTOCK_TRY(engine().reduce(std::move(gradients), *stream_));
    for (std::uint32_t unit = units - 1; unit-- > 0;) {
      PENSTOCK_TRY_ASSIGN(auto next, engine().gradients(unit, *stream_));
      PENSTOCK_TRY(engine().reduce(std::move(next), *stream_));
    }
    return engine().step();
  };

  const auto refused = rest_of_step();

  ASSERT_FALSE(refused);
  expect_given_up(refused.error(), "copies to host memory");
}

/// Once told to, keeps the device from getting past the next update of a tile.
class HangingAdam final : public cpu_adam::DeviceAdam {
 public:
  HangingAdam(cpu_adam::DeviceAdam& adam, std::function<void()> hang) : adam_(adam), hang_(std::move(hang)) {}
  Result<void> step(StreamHandle stream, const cpu_adam::AdamConfig& config, std::uint64_t step, float factor,
                    const cpu_adam::DeviceAdamTile& tile) override {
    fake_cuda::enqueue(static_cast<cudaStream_t>(stream.native()), hang_);
    return adam_.step(stream, config, step, factor, tile);
  }

 private:
  cpu_adam::DeviceAdam& adam_;
  const std::function<void()> hang_;
};

TEST_F(EngineOnHungCuda, FailsAtTheDeadlineOfAnUpdate) {
  std::unique_ptr<HangingAdam> hanging;
  Config config = config_with(OffloadDevice::nvme);
  config.offload_optimizer.nvme_paths = {testing::TempDir()};
  config.cpu_update_ratio = 0;
  open(config, deep_model(), {.engine_options = [&](Engine::Options& options) {
         hanging = std::make_unique<HangingAdam>(*options.adam, [this] { released_.wait(); });
         options.adam = hanging.get();
       }});
  for (auto unit = static_cast<std::uint32_t>(deep_model().units.size()); unit-- > 0;) {
    engine().reduce(engine().gradients(unit, *stream_).value(), *stream_).value();
  }
  ASSERT_EQ(engine().step().value().kind, StepOutcome::Kind::updated);

  const auto refused = engine().finish_update();

  ASSERT_FALSE(refused);
  expect_given_up(refused.error(), "copies to host memory");
}

/// Eight checkpoints and three slots.
class CheckpointsOnHungCuda : public EngineOnHungCuda {
 protected:
  static constexpr std::uint32_t count = 8, slots = 3;

  CheckpointsOnHungCuda() {
    Config config = config_with(OffloadDevice::cpu);
    ModelLayout model = deep_model();
    model.checkpoints = {.count = count, .size = 9'998_B};
    config.penstock.device_budget =
        plan_memory(config, model, 1, 1, tiers::DeviceMemory::separate).value().device_minimum;
    open(config, model, {.engine_destroyed = [this](const swap::Runtime& runtime) {
           for (const tiers::TensorId tensor : runtime.tensors()) {
             if (runtime.describe(tensor).purpose == tiers::Purpose::checkpoint)
               kept_.push_back(runtime.name(tensor));
           }
         }});
    EXPECT_EQ(rank_->plan().checkpoints.device_slots, slots);
  }
  void use(std::uint32_t checkpoint, CheckpointUse how) {
    engine().checkpoint(checkpoint, how, *stream_).value().end();
  }
  /// As expect_given_up(); the runtime keeps the tensors of checkpoints [0, `copied`), which the device copies.
  void expect_kept(const Error& error, const std::string& work, std::uint32_t copied) {
    std::vector<std::string> names;
    for (std::uint32_t i = 0; i < copied; ++i) names.push_back("checkpoint " + std::to_string(i));
    expect_given_up(error, work);
    EXPECT_EQ(kept_, names);
  }

 private:
  std::vector<std::string> kept_;
};

TEST_F(CheckpointsOnHungCuda, FailsAtTheDeadlineOfTheirCopiesToHostMemory) {
  hang();
  // Each is copied when its lease ends.
  for (std::uint32_t i = 0; i < count; ++i) use(i, CheckpointUse::write);

  const auto refused = engine().checkpoint(0, CheckpointUse::write, *stream_);

  ASSERT_FALSE(refused);
  expect_kept(refused.error(), "copies to host memory", count);
}

TEST_F(CheckpointsOnHungCuda, FailsAtTheDeadlineOfTheirCopiesToTheDevice) {
  for (std::uint32_t i = 0; i < count; ++i) use(i, CheckpointUse::write);
  hang();
  for (std::uint32_t i = 0; i < slots; ++i) use(count - 1 - i, CheckpointUse::read);
  // Copied to slots that are in use.
  for (std::uint32_t i = 0; i < slots; ++i) use(i, CheckpointUse::read);

  const auto refused = engine().checkpoint(0, CheckpointUse::write, *stream_);

  ASSERT_FALSE(refused);
  expect_kept(refused.error(), "copies of checkpoints to the device", slots);
}

}  // namespace
}  // namespace penstock::zero::test
