// The engine on a CudaDevice, on a fake CUDA runtime whose streams run in an order that a seed chooses.
#include "fake_cuda/fake_cuda.hpp"
#include "kit/cluster.hpp"
#include "kit/scratch_directory.hpp"
#include "kit/seeds.hpp"
#include "swap/runtime_internals.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

namespace fake_cuda = penstock::test::fake_cuda;
using enum OffloadDevice;

struct Offload {
  OffloadDevice parameters, optimizer;
};

/// Trainings on threads whose result the number of ranks decides.
RunOptions run_options(std::uint32_t ranks, Offload offload) {
  RunOptions options{.ranks = ranks, .steps = 2, .device_memory = tiers::DeviceMemory::separate};
  options.config.offload_param.device = offload.parameters;
  options.config.offload_optimizer.device = offload.optimizer;
  return options;
}

TestAccelerator cuda() {
  return {.make = [](std::uint32_t, ByteCount) { return make_cuda_accelerator(0); },
          .enqueue =
              [](StreamHandle stream, std::function<void()> operation) {
                // An error of the device concerns the engine too, which returns it.
                (void)fake_cuda::enqueue(static_cast<cudaStream_t>(stream.native()), std::move(operation));
              },
          .bytes =
              [](DeviceSpan span) {
                const auto* const address = reinterpret_cast<const void*>(span.address());
                return HostSpan(fake_cuda::bytes(address, span.size().value()), span.size());
              }};
}

class EngineOnCuda : public testing::Test {
 protected:
  void TearDown() override { fake_cuda::restart(); }
};
class EngineOnCudaRanks : public EngineOnCuda, public testing::WithParamInterface<std::uint32_t> {};

TEST_P(EngineOnCudaRanks, GivesTheBitsOfAHostDeviceInEveryOrderOfTheStreams) {
  const std::uint32_t ranks = GetParam();
  const RunResult host = train(run_options(ranks, {none, none}));
  ASSERT_FALSE(host.error) << host.error->message();
  std::uint64_t first = 1;
  for (const Offload offload :
       {Offload{cpu, cpu}, {cpu, nvme}, {nvme, cpu}, {nvme, nvme}, {none, none}, {cpu, none}, {nvme, none}}) {
    const std::uint64_t orders = offload.optimizer == none ? 6 : 40;  // the fake's kernels take long
    for (const std::uint64_t seed : penstock::test::seeds(first, first + orders)) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      fake_cuda::restart({.seed = seed});
      RunOptions options = run_options(ranks, offload);
      options.accelerator = cuda();

      const RunResult result = train(options);

      ASSERT_FALSE(result.error) << result.error->message();
      EXPECT_EQ(result.digest, host.digest);
      EXPECT_EQ(result.parameters, host.parameters);
      EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
      EXPECT_EQ(fake_cuda::live(), fake_cuda::Live{});
    }
    first += orders;
  }
}

TEST_P(EngineOnCudaRanks, ReusesMemoryInEveryOrderOfTheStreams) {
  RunOptions options = run_options(GetParam(), {cpu, cpu});
  options.model = deep_model();
  options.config.grad_accum_dtype = DType::fp32;  // more than fits: gradients are on disk too
  const RunResult host = train(options);
  ASSERT_FALSE(host.error) << host.error->message();
  options.config.offload_param.device = options.config.offload_optimizer.device = nvme;
  // Memory is used again as soon as a stream has read it.
  options.config.penstock.host_budget = smallest_host_budget(options);
  options.accelerator = cuda();
  for (const std::uint64_t seed : penstock::test::seeds(100, 105)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    fake_cuda::restart({.seed = seed});

    const RunResult result = train(options);

    ASSERT_FALSE(result.error) << result.error->message();
    EXPECT_EQ(result.digest, host.digest);
  }
}

TEST_P(EngineOnCudaRanks, GivesTheSameBitsFromPageableMemoryInEveryOrderOfTheStreams) {
  RunOptions options = run_options(GetParam(), {none, nvme});
  const std::string host = train(options).digest;
  ASSERT_FALSE(host.empty());
  options.config.offload_param.pin_memory = options.config.offload_optimizer.pin_memory = false;
  options.accelerator = cuda();
  for (const std::uint64_t seed : penstock::test::seeds(200, 205)) {
    fake_cuda::restart({.seed = seed});
    options.before_step = [](std::uint32_t, std::uint32_t, swap::Runtime& runtime) {
      cudaPointerAttributes attributes{};
      EXPECT_EQ(cudaPointerGetAttributes(&attributes, runtime.host_memory().data()), cudaSuccess);
      EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
    };

    const RunResult result = train(options);

    ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    EXPECT_EQ(result.digest, host) << "seed " << seed;
    EXPECT_GT(fake_cuda::count().of("cudaLaunchHostFunc"), 0u);
  }
}

/// Tiles pass through the device: all of them, or those for which it is free; or some are kept there.
enum class OnDevice : std::uint8_t { all, automatic, kept };
void update_on_device(RunOptions& options, OnDevice which) {
  Config& config = options.config;
  config.cpu_update_ratio = which == OnDevice::all ? 0.0f : 1.0f;
  config.penstock.update_split = which == OnDevice::automatic ? UpdateSplit::automatic : UpdateSplit::ratio;
  config.penstock.device_states = which == OnDevice::kept ? largest_tile(options) * 2 : ByteCount();
}

TEST_P(EngineOnCudaRanks, UpdatesTilesWithTheBitsOfTheCpuInEveryOrderOfTheStreams) {
  std::uint64_t seed = 300;
  using enum cpu_adam::StateFormat;
  for (const RunFormat format :
       {RunFormat{fp32}, RunFormat{split}, RunFormat{split_bf16}, RunFormat{split_q8}, narrow_formats[0],
        narrow_formats[1], narrow_formats[2]}) {
    for (const Offload offload : {Offload{cpu, cpu}, {nvme, nvme}}) {
      RunOptions options = run_options(GetParam(), offload);
      format.set(options.config);
      options.config.penstock.host_budget = smallest_host_budget(options);
      const RunResult by_cpu = train(options);
      ASSERT_FALSE(by_cpu.error) << by_cpu.error->message();
      options.accelerator = cuda();
      for (const OnDevice which : {OnDevice::all, OnDevice::automatic, OnDevice::kept}) {
        SCOPED_TRACE("seed " + std::to_string(++seed) + ", " + format.name());
        fake_cuda::restart({.seed = seed});
        update_on_device(options, which);
        options.config.penstock.host_budget = smallest_host_budget(options);

        const RunResult result = train(options);

        ASSERT_FALSE(result.error) << result.error->message();
        EXPECT_EQ(result.digest, by_cpu.digest);
        EXPECT_EQ(result.parameters, by_cpu.parameters);
        EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
        EXPECT_EQ(fake_cuda::live(), fake_cuda::Live{});
      }
    }
  }
}

TEST_F(EngineOnCuda, CallsTheDeviceSparinglyOnceStepsRepeat) {
  constexpr std::size_t warmup = 2;
  for (const Offload offload : {Offload{cpu, cpu}, {nvme, nvme}, {none, none}}) {
    for (const bool by_device : {false, true}) {
      SCOPED_TRACE("offload_param " + std::string(to_string(offload.parameters)) +
                   (by_device ? ", updated by the device" : ""));
      fake_cuda::restart();
      RunOptions options = run_options(/*ranks=*/1, offload);
      const bool updates = by_device || offload.optimizer == none;
      if (by_device) update_on_device(options, OnDevice::all);
      options.steps = 8;
      options.accelerator = cuda();
      std::vector<fake_cuda::Counts> counts;
      options.before_step = [&](std::uint32_t, std::uint32_t, swap::Runtime&) {
        counts.push_back(fake_cuda::count());
        EXPECT_EQ(fake_cuda::live().registrations, 1u) << "copies of pageable memory are not asynchronous";
      };

      ASSERT_FALSE(train(options).error);

      for (std::size_t i = warmup + 1; i < counts.size(); ++i) {
        const fake_cuda::Counts step = counts[i] - counts[i - 1];
        EXPECT_GT(step.of("cudaMemcpyAsync"), 0u);
        EXPECT_EQ(step.allocations() + step.stream_creations() + step.event_creations(), 0u);
        EXPECT_EQ(step.device_synchronizations(), 0u);
        // The kernels of an update run in an interpreter, for so long that there are more.
        if (!updates) {
          EXPECT_LE(step.of("cudaEventQuery"), 10 * step.of("cudaMemcpyAsync"));
        }
      }
    }
  }
}

// The mean of one gradient is that gradient. Each of two is added to a sum in host memory.
TEST_F(EngineOnCuda, CopiesEachFlatOnceAndLaunchesNoKernelWhereARankIsAlone) {
  RunOptions options = run_options(/*ranks=*/1, {cpu, cpu});
  options.accelerator = cuda();
  fake_cuda::Counts before, after;
  options.before_step = [&](std::uint32_t step, std::uint32_t, swap::Runtime&) {
    (step == 0 ? before : after) = fake_cuda::count();
  };

  ASSERT_FALSE(train(options).error);

  constexpr std::uint64_t flats = 4;
  const fake_cuda::Counts step = after - before;
  EXPECT_EQ(step.of("cudaMemcpyAsync"), flats + 2 * flats) << "a gather and two gradients of each";
  EXPECT_EQ(fake_cuda::count().of("cudaLaunchKernel"), 0u);
}

/// Fails a call to create a stream, event or range of device memory.
TEST_F(EngineOnCuda, EndsWhereItCannotBeCreated) {
  for (const char* const function : {"cudaStreamCreateWithFlags", "cudaEventCreateWithFlags", "cudaMalloc"}) {
    for (std::uint64_t nth = 1; nth <= 4; ++nth) {
      SCOPED_TRACE(std::string(function) + ", call " + std::to_string(nth));
      fake_cuda::restart();
      Rank::Options options{.config = run_options(1, {none, none}).config,
                            .model = deep_model(),
                            .make_accelerator = [](ByteCount) { return make_cuda_accelerator(0); }};
      fake_cuda::fail_call(function, nth, cudaErrorMemoryAllocation);

      const auto rank = Rank::create(std::move(options));

      if (fake_cuda::count().of(function) < nth) continue;  // it needs fewer
      ASSERT_FALSE(rank);
      EXPECT_EQ(rank.error().code(), ErrorCode::budget_too_small) << rank.error().message();
      EXPECT_EQ(fake_cuda::live(), fake_cuda::Live{});
    }
  }
}

// A rank that is alone launches no kernel.
TEST_F(EngineOnCuda, ReportsAKernelThatFaults) {
  for (const std::uint64_t kernel : {1u, 3u}) {
    fake_cuda::restart({.seed = kernel});
    fake_cuda::fail_kernel(kernel);
    RunOptions options = run_options(/*ranks=*/2, {cpu, cpu});
    options.accelerator = cuda();

    const RunResult result = train(options);

    ASSERT_TRUE(result.error);
    const std::string message = result.error->message();
    EXPECT_NE(message.find("illegal memory access"), std::string::npos) << message;
    EXPECT_NE(message.find("running copies to host memory: gradient of "), std::string::npos) << message;
  }
}

TEST_F(EngineOnCuda, NamesTheTileWhoseUpdateFaults) {
  RunOptions options = run_options(/*ranks=*/1, {nvme, cpu});
  update_on_device(options, OnDevice::all);
  options.accelerator = cuda();
  for (std::uint64_t kernel = 1; kernel <= 6; ++kernel) {  // those of the first update
    fake_cuda::restart({.seed = kernel});
    fake_cuda::fail_kernel(kernel);

    const RunResult result = train(options);

    ASSERT_TRUE(result.error);
    // By what was running, or by the call that noticed it while it enqueued the update.
    EXPECT_NE(result.error->message().find("optimizer tile"), std::string::npos) << result.error->message();
  }
}

// Each of the calls that a step makes, of either rank, and either kind of failure: of the call, and of the device.
TEST_P(EngineOnCudaRanks, ReportsACallThatFailsInAStepAndEnds) {
  const struct {
    cudaError_t error;
    std::string words, advice;
  } failures[] = {{cudaErrorECCUncorrectable, "uncorrectable ECC error", "dmesg"},
                  {cudaErrorLaunchFailure, "unspecified launch failure", "compute-sanitizer"},
                  {cudaErrorInvalidValue, "invalid argument", ""}};
  for (const auto& [error, words, advice] : failures) {
    for (const char* const function : {"cudaMemcpyAsync", "cudaMemsetAsync", "cudaEventRecord",
                                       "cudaStreamWaitEvent", "cudaEventQuery", "cudaLaunchHostFunc"}) {
      for (const std::uint64_t nth : {1u, 4u}) {
        SCOPED_TRACE(std::string(function) + ", call " + std::to_string(nth) + ", " + words);
        fake_cuda::restart({.seed = nth});
        RunOptions options = run_options(GetParam(), {none, nvme});
        options.accelerator = cuda();
        if (function == std::string("cudaLaunchHostFunc")) {
          options.config.offload_param.pin_memory = options.config.offload_optimizer.pin_memory = false;
        }
        options.before_step = [&](std::uint32_t step, std::uint32_t rank, swap::Runtime&) {
          if (step == 1 && rank == 0) fake_cuda::fail_call(function, nth, error);
        };

        const RunResult result = train(options);

        ASSERT_TRUE(result.error);
        // The end of a lease returns no error; then the next call returns that the engine has failed, and the cause.
        EXPECT_TRUE(result.error->code() == ErrorCode::io || result.error->code() == ErrorCode::failed_state)
            << result.error->message();
        const std::string message = result.error->message();
        EXPECT_NE(message.find(words), std::string::npos) << message;
        EXPECT_NE(message.find(advice), std::string::npos) << message;
        EXPECT_TRUE(result.engine_failed);
        // Of a device that is lost nothing can be freed.
        if (error == cudaErrorInvalidValue) {
          EXPECT_EQ(fake_cuda::live(), fake_cuda::Live{});
        }
      }
    }
  }
}

/// Reads all parameters and states, whose checksums the runtime verifies. The number of tensors.
std::uint64_t read_all(swap::Runtime& runtime) {
  std::uint64_t read = 0;
  for (const tiers::TensorId tensor : runtime.tensors()) {
    const tiers::Purpose purpose = runtime.describe(tensor).purpose;
    if (purpose != tiers::Purpose::parameter_shard && purpose != tiers::Purpose::optimizer_tile) continue;
    const auto lease = swap::RuntimeInternals(runtime).acquire(tensor, swap::Access::read);
    EXPECT_TRUE(lease) << lease.error().message();
    ++read;
  }
  return read;
}

TEST_F(EngineOnCuda, LeavesAStoreThatIsReadAndVerifiedWhereACallFailsInAStep) {
  for (const char* const function :
       {"cudaMemcpyAsync", "cudaEventRecord", "cudaStreamWaitEvent", "cudaEventQuery"}) {
    for (const cudaError_t error : {cudaErrorInvalidValue, cudaErrorECCUncorrectable}) {
      SCOPED_TRACE(std::string(function) + ", " + cudaGetErrorString(error));
      fake_cuda::restart();
      const penstock::test::ScratchDirectory directory;
      Rank::Options options{.config = run_options(1, {nvme, nvme}).config,
                            .model = deep_model(),
                            .make_accelerator = [](ByteCount) { return make_cuda_accelerator(0); }};
      options.config.offload_param.nvme_paths =
          options.config.offload_optimizer.nvme_paths = {directory.path()};
      options.config.penstock.device_budget =
          plan_memory(options.config, options.model, 1, 1, tiers::DeviceMemory::separate)
              .value()
              .device_minimum;
      const auto rank = Rank::create(std::move(options)).value();
      const auto stream = rank->device().create_stream().value();
      rank->engine().initialize([](ParameterId, std::uint64_t, std::span<float>) {}).value();
      rank->engine().begin_step({}).value();
      fake_cuda::fail_call(function, 3, error);
      for (std::uint32_t use = 0; use < 400 && rank->engine().status() == Engine::Status::ready; ++use) {
        (void)rank->engine().acquire(use % 8, *stream);
      }

      EXPECT_EQ(rank->engine().status(), Engine::Status::failed);
      EXPECT_GT(read_all(rank->runtime()), 8u);
    }
  }
}

// A flat of several slots, so that each copy of pageable memory has parts before and after the call that fails.
TEST_F(EngineOnCuda, EndsWhereACopyOfPageableMemoryFailsInItsMiddle) {
  constexpr std::uint64_t to_device = 2, to_host = 5;  // calls: either copy has three parts
  for (const char* const function : {"cudaLaunchHostFunc", "cudaMemcpyAsync"}) {
    for (const std::uint64_t nth : {to_device, to_host}) {
      SCOPED_TRACE(std::string(function) + ", call " + std::to_string(nth));
      fake_cuda::restart({.seed = nth});
      RunOptions options = run_options(/*ranks=*/1, {cpu, cpu});
      options.model.groups = {{}};
      options.model.units = {{.name = "large", .parameters = {{"weight", ElementCount(5'000'000), 0}}}};
      options.config.offload_param.pin_memory = options.config.offload_optimizer.pin_memory = false;
      options.accelerator = cuda();
      options.micro_batches = 1;
      options.attempts = 3;
      options.before_step = [&](std::uint32_t step, std::uint32_t, swap::Runtime&) {
        if (step == 1) fake_cuda::fail_call(function, nth, cudaErrorInvalidValue);
      };

      const RunResult result = train(options);

      ASSERT_TRUE(result.error);
      EXPECT_EQ(result.error->code(), ErrorCode::io);
      EXPECT_NE(result.error->message().find("invalid argument"), std::string::npos)
          << result.error->message();
      EXPECT_TRUE(result.engine_failed);
      EXPECT_EQ(fake_cuda::live(), fake_cuda::Live{});
    }
  }
}

// A call of the update, among others: a tile may be updated in part, so that the engine cannot go on.
TEST_F(EngineOnCuda, FailsForGoodWhereACallOfAnUpdateFails) {
  for (const char* const function :
       {"cudaMemcpyAsync", "cudaMemsetAsync", "cudaEventRecord", "cudaStreamWaitEvent", "cudaLaunchKernel"}) {
    std::uint64_t failed = 0;
    for (std::uint64_t nth = 1; nth <= 33; nth += 4) {
      SCOPED_TRACE(std::string(function) + ", call " + std::to_string(nth));
      fake_cuda::restart({.seed = nth});
      RunOptions options = run_options(/*ranks=*/1, {none, nvme});
      update_on_device(options, OnDevice::all);
      options.accelerator = cuda();
      options.attempts = 3;
      options.before_step = [&](std::uint32_t step, std::uint32_t, swap::Runtime&) {
        if (step == 1) fake_cuda::fail_call(function, nth, cudaErrorInvalidValue);
      };

      const RunResult result = train(options);

      if (!result.error) break;  // it makes fewer calls
      ++failed;
      EXPECT_TRUE(result.engine_failed);
      EXPECT_EQ(result.repeated, 0u);
      EXPECT_NE(result.error->message().find("invalid argument"), std::string::npos)
          << result.error->message();
    }
    EXPECT_GT(failed, 0u) << function;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EngineOnCudaRanks, testing::Values(1u, 2u));

}  // namespace
}  // namespace penstock::zero::test
