#include "engine_harness.hpp"

#include <gtest/gtest.h>
#include <cerrno>

namespace penstock::zero {
namespace {

using test::RunOptions;
using test::RunResult;
using test::train;

RunOptions on_simulated_disks(const ModelLayout& model = test::small_model()) {
  RunOptions options{.steps = 2, .model = model, .seed = 7};
  Config& config = options.config;
  config.offload_param.device = config.offload_optimizer.device = OffloadDevice::nvme;
  config.offload_param.nvme_paths = config.offload_optimizer.nvme_paths = {"."};
  config.penstock.host_budget = plan_memory(config, model, 2, 2)->host_minimum * 2;
  return options;
}

/// Fails request 0, then 1, … until the run has fewer requests. Whatever the request was for, the run ends
/// with an error that names operation, file and offset, or with the right digest; it never hangs (the
/// scheduler aborts), never leaks and never computes something else.
void strike_each_request(tiers::Fault fault, std::uint64_t stride, ErrorCode expected) {
  const RunResult clean = train(on_simulated_disks());
  ASSERT_FALSE(clean.error) << clean.error->message();
  std::uint64_t failed = 0;
  for (std::uint64_t request = 0; request < clean.requests; request += stride) {
    RunOptions options = on_simulated_disks();
    fault.occurrence = request;
    options.faults = {fault};
    const RunResult run = train(options);
    if (!run.error) {
      EXPECT_EQ(run.digest, clean.digest) << "request " << request;
      continue;
    }
    ++failed;
    EXPECT_EQ(run.error->code(), expected) << "request " << request << ": " << run.error->message();
    EXPECT_NE(run.error->message().find("simulated file in"), std::string::npos) << run.error->message();
    EXPECT_NE(run.error->message().find("at offset"), std::string::npos) << run.error->message();
  }
  EXPECT_GT(failed, 0u);
}

TEST(EngineFault, NamesFileAndOffsetOfEveryRequestThatFails) {
  strike_each_request({.error = EIO}, 1, ErrorCode::io);
}

TEST(EngineFault, SaysTruncatedWhenAFileEndsUnderIt) {
  strike_each_request({.effect = tiers::Fault::Effect::shorten}, 3, ErrorCode::truncated);
}

TEST(EngineFault, RetriesWhatIsTransientAndLosesNothing) {
  const RunResult clean = train(on_simulated_disks());
  for (std::uint64_t request = 0; request < clean.requests; request += 3) {
    RunOptions options = on_simulated_disks();
    options.faults = {tiers::Fault::fail({}, request, EAGAIN)};
    const RunResult run = train(options);
    ASSERT_FALSE(run.error) << run.error->message();
    EXPECT_EQ(run.digest, clean.digest) << "request " << request;
  }
}

/// Fails each request, and the `count` - 1 after it, once and makes every call again that says it may be.
void go_on_after_each_fault(const ModelLayout& model, std::uint64_t stride, std::uint64_t count = 1) {
  const RunResult clean = train(on_simulated_disks(model));
  std::uint64_t resumed = 0;
  for (std::uint64_t request = 0; request < clean.requests; request += stride) {
    RunOptions options = on_simulated_disks(model);
    options.faults = {tiers::Fault::fail({}, request, EIO, count)};
    options.attempts = 40;
    const RunResult run = train(options);
    // A gather whose shard cannot be read fails the engine. A write that fails never does: its bytes are in
    // memory still, the next call tells of it, and made again it goes on.
    if (run.error) {
      EXPECT_STREQ(run.error->operation(), "BlockFile::read") << run.error->message();
      continue;
    }
    if (run.repeated > 0) ++resumed;
    EXPECT_EQ(run.digest, clean.digest) << "request " << request;
  }
  EXPECT_GT(resumed, clean.requests / stride / 4);
}

TEST(EngineFault, GoesOnToTheSameBitsWhenACallIsMadeAgain) {
  go_on_after_each_fault(test::small_model(), 1);
}

TEST(EngineFault, GoesOnWhileFlatsAreDroppedAndGradientsSpilled) {
  go_on_after_each_fault(test::deep_model(), 7);
  go_on_after_each_fault(test::deep_model(), 11, 12);
}

}  // namespace
}  // namespace penstock::zero
