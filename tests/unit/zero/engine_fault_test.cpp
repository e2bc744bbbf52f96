#include "engine_harness.hpp"

#include <gtest/gtest.h>
#include <cerrno>

namespace penstock::zero {
namespace {

using test::RunOptions;
using test::RunResult;
using test::train;

RunOptions on_simulated_disks() {
  RunOptions options{.steps = 2, .seed = 7};
  options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::nvme;
  options.config.offload_param.nvme_paths = {"."};
  options.config.penstock.host_budget = plan_memory(
                                            [&] {
                                              auto c = options.config;
                                              c.offload_optimizer.nvme_paths = {"."};
                                              return c;
                                            }(),
                                            test::small_model(), 2, 2)
                                            ->host_minimum *
                                        2;
  return options;
}

/// Fails request 0, then 1, … until the run has fewer requests. Whatever the request was for, the run ends
/// with an error that names operation, file and offset, or with the right digest; it never hangs (the
/// scheduler aborts), never leaks and never computes something else.
void fail_each_request(std::int64_t result, std::uint64_t stride, ErrorCode expected) {
  const RunResult clean = train(on_simulated_disks());
  ASSERT_FALSE(clean.error) << clean.error->message();
  std::uint64_t failed = 0;
  for (std::uint64_t request = 0; request < clean.requests; request += stride) {
    RunOptions options = on_simulated_disks();
    options.fault = {request, result};
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
  fail_each_request(-EIO, 1, ErrorCode::io);
}

TEST(EngineFault, SaysTruncatedWhenAFileEndsUnderIt) {
  fail_each_request(0, 3, ErrorCode::truncated);
}

TEST(EngineFault, RetriesWhatIsTransientAndLosesNothing) {
  const RunResult clean = train(on_simulated_disks());
  for (std::uint64_t request = 0; request < clean.requests; request += 3) {
    RunOptions options = on_simulated_disks();
    options.fault = {request, -EAGAIN};
    const RunResult run = train(options);
    ASSERT_FALSE(run.error) << run.error->message();
    EXPECT_EQ(run.digest, clean.digest) << "request " << request;
  }
}

TEST(EngineFault, ResumesAStepThatFailedHalfWayToTheSameBits) {
  const RunResult clean = train(on_simulated_disks());
  std::uint64_t resumed = 0;
  for (std::uint64_t request = 0; request < clean.requests; ++request) {
    RunOptions options = on_simulated_disks();
    options.fault = {request, -EIO};
    options.step_attempts = 3;
    const RunResult run = train(options);
    if (run.error || !run.step_repeated) continue;
    ++resumed;
    EXPECT_EQ(run.digest, clean.digest) << "request " << request;
  }
  EXPECT_GT(resumed, 0u);
}

}  // namespace
}  // namespace penstock::zero
