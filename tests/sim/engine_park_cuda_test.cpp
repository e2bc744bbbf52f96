// Memory that is parked leaves a CUDA device, on a fake CUDA runtime.
#include "fake_cuda/fake_cuda.hpp"
#include "kit/cluster.hpp"
#include "kit/scratch_directory.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

namespace fake_cuda = penstock::test::fake_cuda;

RunOptions on_cuda(OffloadDevice states) {
  RunOptions options{.ranks = 1, .steps = 2, .device_memory = tiers::DeviceMemory::separate};
  options.config.offload_param.device = options.config.offload_optimizer.device = states;
  options.accelerator = {.make = [](std::uint32_t, ByteCount) { return make_cuda_accelerator(0); },
                         .enqueue =
                             [](StreamHandle stream, std::function<void()> operation) {
                               (void)fake_cuda::enqueue(static_cast<cudaStream_t>(stream.native()),
                                                        std::move(operation));
                             },
                         .bytes =
                             [](DeviceSpan span) {
                               const auto* const address = reinterpret_cast<const void*>(span.address());
                               return HostSpan(fake_cuda::bytes(address, span.size().value()), span.size());
                             }};
  return options;
}

/// Calls `park` before the second unit's forward, with seeds, and compares with the same run without an accelerator.
void expect_same_bits(RunOptions options, const std::function<Result<void>(Engine&)>& park) {
  RunOptions on_host = options;
  on_host.accelerator = {};
  const RunResult host = train(on_host);
  ASSERT_FALSE(host.error) << host.error->message();
  options.without_leases = [&park](Engine& engine, const RunOptions::ProgramPoint& point) -> Result<void> {
    if (point.unit != 1 || point.place != RunOptions::ProgramPoint::Place::forward) return ok();
    return park(engine);
  };
  for (std::uint64_t seed = 700; seed < 704; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    fake_cuda::restart({.seed = seed});

    const RunResult result = train(options);

    ASSERT_FALSE(result.error) << result.error->message();
    EXPECT_EQ(result.digest, host.digest);
    EXPECT_EQ(fake_cuda::live(), fake_cuda::Live{});
  }
  fake_cuda::restart();
}

TEST(EngineParkOnCuda, FreesTheMemoryAndComesBackWithTheSameBits) {
  expect_same_bits(on_cuda(OffloadDevice::none), [](Engine& engine) -> Result<void> {
    const auto freed = fake_cuda::count().of("cudaFree");
    PENSTOCK_TRY(engine.park(tiers::Tier::host));
    EXPECT_EQ(fake_cuda::count().of("cudaFree") - freed, 4u);
    PENSTOCK_TRY(engine.unpark());
    return ok();
  });
}

// Registered pages stay where they are: the kernel could not take them, and copies would use the old ones.
TEST(EngineParkOnCuda, RegistersHostMemoryAgainThatHasLeft) {
  const penstock::test::ScratchDirectory directory;
  RunOptions options = on_cuda(OffloadDevice::cpu);
  options.config.offload_param.pin_memory = options.config.offload_optimizer.pin_memory = true;
  options.model.units = {{.name = "first", .parameters = {{"weight", ElementCount(200'000), 0}}},
                         {.name = "second", .parameters = {{"weight", ElementCount(200'000), 0}}}};
  expect_same_bits(options, [&directory](Engine& engine) -> Result<void> {
    const auto count = [](const char* function) { return fake_cuda::count().of(function); };
    const auto registered = count("cudaHostRegister"), ended = count("cudaHostUnregister");
    PENSTOCK_TRY_ASSIGN(const auto out, engine.park(tiers::Tier::nvme, ParkKinds::all, {directory.path()}));
    EXPECT_GE(out[tiers::Tier::host].given_back, 2_MiB);
    EXPECT_EQ(count("cudaHostUnregister") - ended, 1u);
    EXPECT_EQ(count("cudaHostRegister") - registered, 0u);
    PENSTOCK_TRY(engine.unpark());
    EXPECT_EQ(count("cudaHostRegister") - registered, 1u);
    return ok();
  });
}

// Copies of both engines use the registration, also of the one that has not asked for it.
TEST(EngineParkOnCuda, KeepsMemoryThatIsRegisteredForAnotherEngineToo) {
  for (const bool parks_the_one_that_pins : {false, true}) {
    SCOPED_TRACE(parks_the_one_that_pins);
    const penstock::test::ScratchDirectory directory;
    RunOptions options = on_cuda(OffloadDevice::cpu), critic = options;
    const auto set_pinning = [](RunOptions& run, bool pins) {
      run.config.offload_param.pin_memory = run.config.offload_optimizer.pin_memory = pins;
    };
    set_pinning(options, !parks_the_one_that_pins);
    set_pinning(critic, parks_the_one_that_pins);
    critic.model.units = {{.name = "only", .parameters = {{"weight", ElementCount(300'000), 0}}}};
    fake_cuda::restart({.seed = 1});
    RunOptions alone = critic;
    alone.accelerator = {};
    const std::string expected = train(alone).digest;
    critic.without_leases = [&directory](Engine& engine,
                                         const RunOptions::ProgramPoint& point) -> Result<void> {
      if (point.place != RunOptions::ProgramPoint::Place::backward) return ok();
      const auto ended = fake_cuda::count().of("cudaHostUnregister");
      PENSTOCK_TRY_ASSIGN(const auto out, engine.park(tiers::Tier::nvme, ParkKinds::all, {directory.path()}));
      EXPECT_EQ(out[tiers::Tier::host].given_back, ByteCount());
      EXPECT_EQ(fake_cuda::count().of("cudaHostUnregister"), ended);
      EXPECT_NE(out.stays.front().find("for several engines"), std::string::npos) << out.stays.front();
      PENSTOCK_TRY(engine.unpark());
      return ok();
    };
    options.beside = {critic};

    const RunResult result = train(options);

    ASSERT_FALSE(result.error) << result.error->message();
    ASSERT_FALSE(result.beside[0].error) << result.beside[0].error->message();
    EXPECT_EQ(result.beside[0].digest, expected);
  }
  fake_cuda::restart();
}

}  // namespace
}  // namespace penstock::zero::test
