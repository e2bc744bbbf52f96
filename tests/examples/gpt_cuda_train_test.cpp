// The demonstration's training on a CUDA device, on a fake CUDA runtime whose streams run in an order that a seed
// chooses.
#include "fake_cuda/fake_cuda.hpp"
#include "gpt/rank_device.hpp"
#include "gpt/rank_threads.hpp"
#include "gpt/rank_trainer.hpp"

#include "kit/scratch_directory.hpp"
#include "unit/swap/timeline_rows.hpp"

#include <penstock/zero/comm/in_process_group.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpt {
namespace {

namespace fake_cuda = penstock::test::fake_cuda;
using penstock::Error;
using penstock::ErrorCode;
using penstock::Result;
using penstock::zero::OffloadDevice;

constexpr ModelConfig model{.layers = 2, .width = 16, .heads = 2, .context = 6};

struct Outcome {
  std::optional<Error> error;  // of a rank that failed first
  std::string digest;
  std::vector<double> losses;  // of rank 0, by step
  std::vector<Span> spans;     // likewise
  std::vector<std::string> tracks;
  DeviceMemoryUse memory;  // likewise
  penstock::ByteCount device_budget;
};

class GptOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(directory_.path() / "text") << "the quick brown fox jumps over the lazy dog; "
                                                 "pack my box with five dozen liquor jugs";
    text_.emplace(Text::load(directory_.path() / "text", model.context).value());
  }
  void TearDown() override { fake_cuda::restart(); }

  /// A training whose states and parameters are all on one tier.
  Outcome train(std::uint32_t ranks, OffloadDevice tier) { return train(ranks, tier, on_cuda(model_)); }
  Outcome train(std::uint32_t ranks, OffloadDevice tier, const MakeDevice& make_device) {
    const TrainingConfig training{.ranks = ranks,
                                  .micro_batches = 2,
                                  .sequences = 2,
                                  .checkpoint_activations = checkpoints_,
                                  .offload_activations = offloads_,
                                  .layer_by_layer = by_layer_,
                                  .steps = steps_};
    auto config = penstock::zero::Config::from_text(R"({"train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 3}, )" +
                                                        precision_ + "}",
                                                    "test", ranks)
                      .value();
    config.offload_param.device = config.offload_optimizer.device = tier;
    config.offload_param.nvme_paths = config.offload_optimizer.nvme_paths = {directory_.path()};
    config.penstock.timeline_file = timeline_file_;
    auto group = penstock::zero::InProcessGroup::create(ranks).value();
    Outcome outcome;
    std::mutex mutex;
    const auto run = [&](std::uint32_t rank) -> Result<void> {
      PENSTOCK_TRY_ASSIGN(auto trainer,
                          RankTrainer::create({.model = model_,
                                               .training = training,
                                               .config = config,
                                               .text = &*text_,
                                               .identity = penstock::zero::RankIdentity::local(rank, ranks),
                                               .group = penstock::zero::in_process_membership(group, rank),
                                               .make_device = make_device,
                                               .timed = timed_}));
      for (std::uint32_t step = 0; step < steps_; ++step) {
        if (before_step_) before_step_(step);
        PENSTOCK_TRY_ASSIGN(const auto report, trainer->step(step));
        if (rank == 0) outcome.losses.push_back(report.loss);
        if (timed_ && step + 1 == steps_) PENSTOCK_TRY(trainer->finish_update());
        if (timed_ && rank == 0) {
          const auto spans = trainer->timeline()->take();
          outcome.spans.insert(outcome.spans.end(), spans.begin(), spans.end());
          outcome.tracks = trainer->timeline()->tracks();
        }
      }
      if (rank == 0) {
        outcome.memory = trainer->device_memory();
        outcome.device_budget = trainer->plan().device_budget;
      }
      PENSTOCK_TRY_ASSIGN(auto digest, trainer->digest());
      if (rank == 0) outcome.digest = digest;
      return penstock::ok();
    };
    const auto started = run_ranks(ranks, [&](std::uint32_t rank) {
      const auto done = run(rank);
      if (done) return;
      group->abort(rank, done.error());
      const std::lock_guard lock(mutex);
      if (!outcome.error || outcome.error->code() == ErrorCode::peer_failed) outcome.error = done.error();
    });
    EXPECT_TRUE(started);
    return outcome;
  }

  ModelConfig model_ = model;
  std::uint32_t steps_ = 3;
  std::string precision_ = R"("bf16": {"enabled": true})";
  bool timed_ = false, by_layer_ = false, checkpoints_ = false, offloads_ = false;
  std::filesystem::path timeline_file_;
  std::function<void(std::uint32_t)> before_step_;
  penstock::test::ScratchDirectory directory_;
  std::optional<Text> text_;
};

TEST_F(GptOnCuda, RefusesFp16WhichTheHostTrains) {
  steps_ = 8;
  const Outcome wanted = train(2, OffloadDevice::none, on_host(model));
  precision_ = R"("fp16": {"enabled": true, "initial_scale_power": 10})";

  const Outcome host = train(2, OffloadDevice::none, on_host(model)), cuda = train(2, OffloadDevice::none);

  ASSERT_FALSE(host.error) << host.error->message();
  for (std::uint32_t step = 0; step < steps_; ++step)
    EXPECT_NEAR(host.losses[step], wanted.losses[step], 1e-2) << "step " << step;
  EXPECT_LT(host.losses.back(), host.losses.front() - 0.02);
  ASSERT_TRUE(cuda.error);
  EXPECT_EQ(cuda.error->code(), ErrorCode::unsupported);
  EXPECT_NE(cuda.error->message().find("fp16.enabled"), std::string::npos) << cuda.error->message();
}

class GptOnCudaRanks : public GptOnCuda, public testing::WithParamInterface<std::uint32_t> {};

TEST_P(GptOnCudaRanks, GivesTheSameBitsOnDiskAndInMemoryInEveryOrderOfTheStreams) {
  const Outcome host = train(GetParam(), OffloadDevice::none, on_host(model));
  ASSERT_FALSE(host.error) << host.error->message();
  fake_cuda::restart();
  const Outcome wanted = train(GetParam(), OffloadDevice::none);
  ASSERT_FALSE(wanted.error) << wanted.error->message();
  for (std::uint32_t step = 0; step < steps_; ++step) {
    EXPECT_NEAR(wanted.losses[step], host.losses[step], 2e-3) << "step " << step;  // operands in bf16
  }

  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    fake_cuda::restart({.seed = seed});

    const Outcome outcome = train(GetParam(), seed % 2 == 0 ? OffloadDevice::none : OffloadDevice::nvme);

    ASSERT_FALSE(outcome.error) << outcome.error->message();
    EXPECT_EQ(outcome.digest, wanted.digest);
    EXPECT_EQ(outcome.losses, wanted.losses);
    EXPECT_EQ(fake_cuda::live(), fake_cuda::Live{});
  }
}

TEST_P(GptOnCudaRanks, GivesTheSameBitsByLayerAndInRowBlocksInEveryOrderOfTheStreams) {
  model_ = {.layers = 2, .width = 80, .heads = 2, .context = 6};
  const std::vector<double> plain = train(GetParam(), OffloadDevice::none).losses;
  ASSERT_EQ(plain.size(), steps_);
  by_layer_ = true;
  for (const std::uint64_t limit : {0u, 21'000u}) {  // up and down are cut, the embedding need not be
    model_.unit_elements_max = penstock::ElementCount(limit);
    fake_cuda::restart();
    const Outcome wanted = train(GetParam(), OffloadDevice::none);
    ASSERT_FALSE(wanted.error) << wanted.error->message();
    for (std::uint32_t step = 0; step < steps_; ++step) EXPECT_NEAR(wanted.losses[step], plain[step], 1e-3);
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE("limit " + std::to_string(limit) + ", seed " + std::to_string(seed));
      fake_cuda::restart({.seed = seed});
      checkpoints_ = seed % 3 == 1;
      offloads_ = seed % 3 == 2;

      const Outcome outcome = train(GetParam(), OffloadDevice::nvme);

      ASSERT_FALSE(outcome.error) << outcome.error->message();
      EXPECT_EQ(outcome.digest, wanted.digest);
      EXPECT_EQ(outcome.losses, wanted.losses);
      EXPECT_EQ(fake_cuda::live(), fake_cuda::Live{});
    }
    checkpoints_ = offloads_ = false;
  }
}

TEST_P(GptOnCudaRanks, GivesTheSameBitsWithOffloadedCheckpointsInEveryOrderOfTheStreams) {
  model_.layers = 5;
  const Outcome wanted = train(GetParam(), OffloadDevice::none);
  ASSERT_FALSE(wanted.error) << wanted.error->message();
  offloads_ = true;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    fake_cuda::restart({.seed = seed});

    const Outcome outcome = train(GetParam(), seed % 2 == 0 ? OffloadDevice::cpu : OffloadDevice::nvme);

    ASSERT_FALSE(outcome.error) << outcome.error->message();
    EXPECT_EQ(outcome.digest, wanted.digest);
    EXPECT_EQ(outcome.losses, wanted.losses);
    EXPECT_EQ(fake_cuda::live(), fake_cuda::Live{});
  }
}

TEST_F(GptOnCuda, TakesTheDeviceMemoryOfTheBudgetAndTheActivations) {
  for (const bool by_layer : {false, true}) {
    by_layer_ = by_layer;
    fake_cuda::restart();

    const Outcome outcome = train(1, OffloadDevice::cpu);

    ASSERT_FALSE(outcome.error) << outcome.error->message();
    EXPECT_FALSE(outcome.memory.activations.is_zero());
    EXPECT_EQ(to_string(outcome.memory.free_at_start - outcome.memory.free_now),
              to_string(outcome.device_budget + outcome.memory.activations));
  }
}

TEST_F(GptOnCuda, AllocatesNothingAndWaitsForNoDeviceInAStep) {
  steps_ = 4;
  for (const OffloadDevice tier : {OffloadDevice::none, OffloadDevice::nvme}) {
    fake_cuda::restart();
    fake_cuda::Counts before, after;
    // The first steps register the memory through which tokens are copied.
    before_step_ = [&](std::uint32_t step) { (step <= 2 ? before : after) = fake_cuda::count(); };

    ASSERT_FALSE(train(/*ranks=*/1, tier).error);

    const fake_cuda::Counts step = after - before;
    EXPECT_GT(step.of("cudaLaunchKernel"), 0u);
    EXPECT_GT(step.of("cublasLtMatmul"), 0u);
    EXPECT_EQ(step.allocations() + step.stream_creations() + step.of("cudaHostRegister"), 0u);
    EXPECT_EQ(step.of("cublasLtMatmulDescCreate") + step.of("cublasLtMatrixLayoutCreate") +
                  step.of("cublasLtMatmulPreferenceCreate") + step.of("cublasLtMatmulAlgoGetHeuristic"),
              0u);
    EXPECT_EQ(step.device_synchronizations() + step.of("cudaMemcpy"), 0u);
    EXPECT_EQ(step.of("cudaStreamSynchronize"), 1u) << "for the losses";
    EXPECT_EQ(fake_cuda::late_loads(), 0u);
    EXPECT_EQ(fake_cuda::default_stream_operations(), 0u);
  }
}

TEST_F(GptOnCuda, AttributesAllTimeOfTheComputeStreamInEveryOrderOfTheStreams) {
  const std::string digest = train(/*ranks=*/1, OffloadDevice::nvme).digest;
  timed_ = true;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    fake_cuda::restart({.seed = seed});

    const Outcome outcome = train(/*ranks=*/1, OffloadDevice::nvme);

    ASSERT_FALSE(outcome.error) << outcome.error->message();
    EXPECT_EQ(outcome.digest, digest);
    EXPECT_EQ(fake_cuda::live(), fake_cuda::Live{});
    std::map<Activity, int> computes, others;
    penstock::TimePoint last{};
    for (const Span& span : outcome.spans) {
      EXPECT_LE(span.begin, span.end);
      const bool on_compute = outcome.tracks.at(span.track) == "compute";
      ++(on_compute ? computes : others)[span.did.activity];
      if (!on_compute) continue;
      // Between two spans there is only the time between the marks at an end and a begin.
      EXPECT_GE(span.begin, last);
      last = span.end;
    }
    const int units = 4, micro_batches = 2 * 3;
    EXPECT_EQ(computes[Activity::forward], units * micro_batches);
    EXPECT_EQ(computes[Activity::backward], units * micro_batches);
    EXPECT_EQ(computes[Activity::wait_for_parameters], 2 * units * micro_batches);
    EXPECT_EQ(computes[Activity::wait_for_gradients], units * micro_batches);
    EXPECT_EQ(computes[Activity::wait_for_step], micro_batches);
    EXPECT_GT(others[Activity::copy_to_device], 0);
    EXPECT_GT(others[Activity::copy_to_host], 0);
    EXPECT_GT(others[Activity::disk], 0);
  }
}

TEST_F(GptOnCuda, ShowsTheKernelsOfTheLibraryInTheRowsOfTheirStreams) {
  timed_ = true;
  const Outcome outcome = train(/*ranks=*/1, OffloadDevice::none);

  ASSERT_FALSE(outcome.error) << outcome.error->message();
  struct Sum {
    int spans = 0;
    penstock::ByteCount bytes;
  };
  std::map<Activity, Sum> kernels;
  std::map<Activity, std::string> rows;
  for (const Span& span : outcome.spans) {
    Sum& sum = kernels[span.did.activity];
    ++sum.spans;
    sum.bytes += span.did.bytes;
    rows[span.did.activity] = outcome.tracks.at(span.track);
  }
  // A flat of the embedding, two of each block, one of the head; micro-batches of a step are 2.
  const int flats = 6, steps = 3;
  for (const Activity activity : {Activity::cast, Activity::accumulate, Activity::square_sums}) {
    EXPECT_EQ(kernels[activity].spans, flats * steps);
    EXPECT_NE(rows[activity], "compute");
  }
  EXPECT_EQ(kernels[Activity::cast].bytes, 2 * kernels[Activity::square_sums].bytes);
  EXPECT_EQ(kernels[Activity::accumulate].bytes, 3 * kernels[Activity::square_sums].bytes);
  EXPECT_EQ(kernels[Activity::adam].spans, flats * steps);
  EXPECT_NE(rows[Activity::adam], "compute");
  EXPECT_NE(rows[Activity::adam], rows[Activity::accumulate]);
  // 12 bytes of state, read and written, and gradient and parameter, each as long as what the square sums read.
  EXPECT_EQ(kernels[Activity::adam].bytes, 14 * kernels[Activity::square_sums].bytes);

  const Outcome two = train(/*ranks=*/2, OffloadDevice::none);

  ASSERT_FALSE(two.error) << two.error->message();
  const auto means = std::count_if(two.spans.begin(), two.spans.end(),
                                   [](const Span& span) { return span.did.activity == Activity::mean; });
  EXPECT_EQ(means, flats * steps * 2);
}

TEST_F(GptOnCuda, HasATimelineWithWhatTheStreamsDidInEveryOrderOfTheirs) {
  const std::string digest = train(/*ranks=*/1, OffloadDevice::nvme).digest;
  timeline_file_ = directory_.path() / "timeline.json";
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    fake_cuda::restart({.seed = seed});
    const auto microseconds = [] {
      return std::chrono::duration<double, std::micro>(penstock::Clock::steady().now()).count();
    };
    const double began = microseconds();

    const Outcome outcome = train(/*ranks=*/1, OffloadDevice::nvme);

    const double ended = microseconds();
    ASSERT_FALSE(outcome.error) << outcome.error->message();
    EXPECT_EQ(outcome.digest, digest);
    EXPECT_EQ(fake_cuda::live(), fake_cuda::Live{});
    const auto rows = penstock::test::rows_of(timeline_file_);
    for (const char* stream : {"copies to the device", "copies to host memory", "the trainer"}) {
      const auto row = rows.find(std::string("stream of ") + stream);
      ASSERT_NE(row, rows.end()) << stream;
      constexpr double between_clocks = 1000;  // microseconds
      for (const auto& event : row->second) {
        EXPECT_GE(event.begin, began - between_clocks) << stream;
        EXPECT_GE(event.end, event.begin) << stream;
        EXPECT_LE(event.end, ended + between_clocks) << stream;
      }
    }
    EXPECT_GE(rows.at("stream of copies to host memory").size(), steps_ * 2 * 4u);  // a gradient of each unit
  }
}

TEST_F(GptOnCuda, ReportsAClockThatCannotBeMade) {
  timed_ = true;
  fake_cuda::fail_call("cudaEventSynchronize", 1, cudaErrorUnknown);

  const Outcome outcome = train(/*ranks=*/1, OffloadDevice::none);

  ASSERT_TRUE(outcome.error);
  EXPECT_NE(outcome.error->message().find("Device::create_clock"), std::string::npos)
      << outcome.error->message();
}

TEST_F(GptOnCuda, ReportsAKernelThatFaults) {
  for (const std::uint64_t kernel : {1u, 60u, 300u}) {
    fake_cuda::restart({.seed = kernel});
    fake_cuda::fail_kernel(kernel);

    const Outcome outcome = train(/*ranks=*/1, OffloadDevice::none);

    ASSERT_TRUE(outcome.error);
    EXPECT_NE(outcome.error->message().find("illegal memory access"), std::string::npos)
        << outcome.error->message();
  }
}

TEST_F(GptOnCuda, ReportsAProductThatCannotBeEnqueued) {
  fake_cuda::fail_call("cublasLtMatmul", 40, cudaErrorLaunchOutOfResources);

  const Outcome outcome = train(/*ranks=*/1, OffloadDevice::none);

  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code(), ErrorCode::failed_state);
  EXPECT_NE(outcome.error->message().find("failed to launch"), std::string::npos) << outcome.error->message();
}

TEST_F(GptOnCuda, NamesTheFaultOfAKernelWhenAProductCannotBeEnqueuedAfterIt) {
  const auto device = on_cuda(model)(penstock::ByteCount()).value();
  const auto stream = device.accelerator.device->create_stream().value();
  const DeviceSpan memory = device.accelerator.device->allocate(penstock::ByteCount(64)).value();
  const DeviceTensor x = DeviceTensor{memory, penstock::DType::fp32};
  fake_cuda::fail_kernel(1);
  device.ops->add(stream->handle(), x, x);
  EXPECT_FALSE(stream->synchronize());

  const DeviceTensor narrow{memory, penstock::DType::bf16};
  device.ops->linear(stream->handle(), {1, 1, 1}, {narrow, narrow, {}}, narrow);

  ASSERT_FALSE(device.ops->status());
  EXPECT_NE(device.ops->status().error().message().find("illegal memory access"), std::string::npos)
      << device.ops->status().error().message();
}

/// A call of make_cuda_ops that fails, and the reason that the error gives.
struct Refused {
  const char* function;
  cudaError_t error;
  ErrorCode code;
  const char* reason;
};

TEST_F(GptOnCuda, FailsToStartWithATypedError) {
  // The second allocation is that of cuBLASLt, the third its workspace. The kernel is one of the example's.
  const std::pair<std::uint64_t, Refused> cases[] = {
      {1, {"cudaMalloc", cudaErrorMemoryAllocation, ErrorCode::budget_too_small, "out of memory"}},
      {2, {"cudaMalloc", cudaErrorMemoryAllocation, ErrorCode::budget_too_small, "cuBLAS"}},
      {2, {"cudaMalloc", cudaErrorUnknown, ErrorCode::unsupported, "cuBLAS"}},
      {3, {"cudaMalloc", cudaErrorMemoryAllocation, ErrorCode::budget_too_small, "cuBLAS"}},
      {40,
       {"cudaFuncGetAttributes", cudaErrorNoKernelImageForDevice, ErrorCode::unsupported,
        "no kernel image"}}};
  for (const auto& [nth, refused] : cases) {
    fake_cuda::restart();
    fake_cuda::fail_call(refused.function, nth, refused.error);

    const auto made = on_cuda(model)(penstock::ByteCount());

    ASSERT_FALSE(made) << refused.reason;
    EXPECT_EQ(made.error().code(), refused.code) << made.error().message();
    EXPECT_NE(made.error().message().find(refused.reason), std::string::npos) << made.error().message();
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(fake_cuda::live(), fake_cuda::Live{});
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, GptOnCudaRanks, testing::Values(1u, 2u));

}  // namespace
}  // namespace gpt
