#pragma once

#include "kit/cluster.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace penstock::zero::test {

/// The runs have the same bits, and the first one is within its plan.
inline void expect_same(const RunResult& result, const RunResult& expected) {
  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.digest, expected.digest);
  EXPECT_EQ(result.parameters, expected.parameters);
  EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
  ASSERT_EQ(result.outcomes.size(), expected.outcomes.size());
  for (std::size_t step = 0; step < result.outcomes.size(); ++step)
    EXPECT_EQ(result.outcomes[step].gradient_norm, expected.outcomes[step].gradient_norm);
}

}  // namespace penstock::zero::test
