#include "zero/engine/accumulate_shard.hpp"

#include "kit/seeded_random.hpp"

#include <penstock/base/compute.hpp>

#include <gtest/gtest.h>
#include <cstdint>
#include <vector>

namespace penstock::zero {
namespace {

using kernels::GradientWrite;

/// Gradients in bf16 of a shard whose last block is not full, and their accumulator in fp32.
class AccumulateShard : public testing::Test {
 protected:
  static constexpr std::uint64_t elements = Compute::square_sum_block * 21 + 129;

  AccumulateShard() {
    test::SeededRandom random(3);
    for (auto& each : incoming_) each = static_cast<std::uint16_t>(random.below(0x7f00));  // finite
    for (auto& each : accumulator_) each = static_cast<float>(random.below(1000));
  }
  kernels::GradientPiece shard(std::vector<float>& accumulator) {
    return {.incoming = ConstHostSpan(std::span(incoming_)),
            .incoming_dtype = DType::bf16,
            .accumulator = HostSpan(std::span(accumulator)),
            .accumulator_dtype = DType::fp32};
  }

  std::vector<std::uint16_t> incoming_ = std::vector<std::uint16_t>(elements);
  std::vector<float> accumulator_ = std::vector<float>(elements);
};

TEST_F(AccumulateShard, GivesTheBitsOfOnePassForAnyNumberOfWorkers) {
  for (const auto write : {GradientWrite::overwrite, GradientWrite::accumulate}) {
    std::vector<float> expected = accumulator_;
    std::vector<double> sums(ceil_divide(elements, Compute::square_sum_block));
    ASSERT_TRUE(kernels::accumulate_gradient(shard(expected), write));
    ASSERT_TRUE(kernels::square_sums(HostSpan(std::span(expected)), DType::fp32, sums));
    for (const std::uint32_t threads : {1u, 2u, 5u}) {
      auto workers = parallel::Workers::create({.threads = threads}).value();
      std::vector<float> accumulator = accumulator_;
      std::vector<double> partials(sums.size());

      ASSERT_TRUE(accumulate_shard(shard(accumulator), write, partials, workers));

      EXPECT_EQ(accumulator, expected);
      EXPECT_EQ(partials, sums);
    }
  }
}

TEST_F(AccumulateShard, SumsTheSquaresOfAGradientThatTheAccumulatorHas) {
  auto workers = parallel::Workers::create({.threads = 2}).value();
  std::vector<double> sums(ceil_divide(elements, Compute::square_sum_block)), partials(sums.size());
  ASSERT_TRUE(kernels::square_sums(HostSpan(std::span(accumulator_)), DType::fp32, sums));
  auto there_already = shard(accumulator_);
  there_already.incoming = {};

  ASSERT_TRUE(accumulate_shard(there_already, GradientWrite::overwrite, partials, workers));

  EXPECT_EQ(partials, sums);
}

TEST_F(AccumulateShard, RefusesAnAccumulatorOfAnotherLengthAndChangesNothing) {
  auto workers = parallel::Workers::create({.threads = 2}).value();
  std::vector<float> accumulator = accumulator_;
  auto odd = shard(accumulator);
  odd.incoming = odd.incoming.subspan({}, odd.incoming.size() - size_of(DType::bf16));

  const auto refused = accumulate_shard(odd, GradientWrite::accumulate, {}, workers);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(accumulator, accumulator_);
}

}  // namespace
}  // namespace penstock::zero
