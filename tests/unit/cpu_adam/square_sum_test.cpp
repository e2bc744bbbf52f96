#include <penstock/cpu_adam/square_sum.hpp>

#include <penstock/base/compute.hpp>
#include "kernels/host_gradient.hpp"

#include <gtest/gtest.h>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <span>
#include <vector>

namespace penstock::cpu_adam {
namespace {

std::vector<float> random_values(std::size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

template <class T>
ConstHostSpan span_of(const std::vector<T>& values) {
  return ConstHostSpan(std::span(values));
}

TEST(SquareSum, HasTheBitsOfTheEnginesSumsForAnyNumberOfThreads) {
  for (const std::size_t count : {1u, 4095u, 4096u, 4097u, 100'003u}) {
    const auto values = random_values(count);
    std::vector<double> partials(ceil_divide(count, std::size_t{Compute::square_sum_block}));
    kernels::square_sums(span_of(values), DType::fp32, partials).value();
    const double expected = sum_tree(partials);
    EXPECT_EQ(square_sum(span_of(values), DType::fp32).value(), expected) << count;
    for (const std::uint32_t threads : {1u, 2u, 5u}) {
      auto workers = parallel::Workers::create({.threads = threads}).value();
      EXPECT_EQ(square_sum(span_of(values), DType::fp32, &workers).value(), expected)
          << count << " " << threads;
    }
  }
}

TEST(SquareSum, IsTheSumOfTheSquares) {
  const auto values = random_values(50'000);
  double expected = 0;
  for (const float value : values) expected += double{value} * value;
  EXPECT_NEAR(square_sum(span_of(values), DType::fp32).value(), expected, 1e-9 * expected);
  EXPECT_EQ(square_sum({}, DType::bf16).value(), 0);
  const std::vector<std::uint16_t> threes(9000, 0x4040);  // 3 in bf16
  EXPECT_EQ(square_sum(span_of(threes), DType::bf16).value(), 81'000);
}

TEST(SquareSum, IsNotFiniteWhereAnElementIsNot) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    auto values = random_values(10'000);
    values[9'999] = bad;
    EXPECT_FALSE(std::isfinite(square_sum(span_of(values), DType::fp32).value()));
    values[9'999] = 3e38f;  // whose square is no fp32 number
    EXPECT_TRUE(std::isfinite(square_sum(span_of(values), DType::fp32).value()));
  }
}

}  // namespace
}  // namespace penstock::cpu_adam
