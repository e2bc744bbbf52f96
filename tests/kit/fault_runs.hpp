#pragma once

#include "kit/cluster.hpp"

#include <gtest/gtest.h>
#include <cerrno>
#include <cstdint>

// Runs of a cluster with one fault of rank 0's first simulated disk each. `options` has a seed and no fault.
namespace penstock::zero::test {

/// Each `distance`-th request fails. Repeated calls continue to the same bits, but for a gather, which fails the
/// engine.
inline void expect_to_continue_after_faults(RunOptions options, std::uint64_t distance) {
  const RunResult clean = train(options);
  ASSERT_FALSE(clean.error) << clean.error->message();
  options.attempts = 3;
  std::uint64_t repeated = 0;
  for (std::uint64_t request = 0; request < clean.requests; request += distance) {
    options.faults = {tiers::Fault::fail({}, request, ENODEV)};
    const RunResult run = train(options);
    if (run.error) {
      EXPECT_STREQ(run.error->operation(), "BlockFile::read") << run.error->message();
      continue;
    }
    ASSERT_EQ(run.digest, clean.digest) << "request " << request;
    repeated += run.repeated;
  }
  EXPECT_GT(repeated, 0u);
}

/// Each `distance`-th write is reported as done and lost. The run fails, unless the bytes are not read again.
inline void expect_to_detect_lost_writes(RunOptions options, std::uint64_t distance) {
  const RunResult clean = train(options);
  ASSERT_FALSE(clean.error) << clean.error->message();
  std::uint64_t seen = 0;
  for (std::uint64_t write = 0; write < clean.requests; write += distance) {
    options.faults = {
        {.operation = tiers::IoOperation::write, .occurrence = write, .effect = tiers::Fault::Effect::lose}};
    const RunResult run = train(options);
    if (run.injected == 0) break;
    if (!run.error) {
      EXPECT_EQ(run.digest, clean.digest) << write;
      continue;
    }
    EXPECT_EQ(run.error->code(), ErrorCode::corrupted) << run.error->message();
    ++seen;
  }
  EXPECT_GT(seen, 0u);
}

}  // namespace penstock::zero::test
