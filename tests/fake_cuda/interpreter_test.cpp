#include "kit/ptx.hpp"
#include "kit/ptx_memory.hpp"
#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <numeric>

namespace penstock::test {
namespace {

const PtxModule& module() {
  static const PtxModule read(PENSTOCK_INTERPRETER_PTX, ptx::Arithmetic::approximate);
  return read;
}

std::vector<float> numbers(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

std::string error_of(const std::string& kernel, std::vector<float> values, std::uint32_t blocks = 1) {
  try {
    module().launch(kernel, {.blocks = blocks, .threads = static_cast<std::uint32_t>(values.size())},
                    values.data());
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "none";
}

TEST(PtxInterpreter, RunsAllThreadsOfABlockToABarrierBeforeAnyGoesOn) {
  std::vector<float> values = numbers(64);

  module().launch("reverse_kernel<true>", {.blocks = 1, .threads = 64}, values.data());

  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<float>(63 - i));
}

TEST(PtxInterpreter, FindsAMissingBarrier) {
  const auto error = [](const char* missing) {
    return error_of("broadcast_kernel<(Missing)" + std::string(missing) + ">", numbers(64));
  };

  EXPECT_EQ(error("0"), "PTX: no barrier between a thread's write of shared memory and another's read");
  EXPECT_EQ(error("1"), "PTX: no barrier between a thread's use of shared memory and another's write");
  EXPECT_EQ(error("2"), "PTX: no barrier between a thread's use of shared memory and another's write");
  EXPECT_EQ(error("3"), "none");
}

TEST(PtxInterpreter, TakesABarrierOfAWarpForItsOwnThreadsOnly) {
  const auto error = [](const char* missing, std::uint32_t writer) {
    std::vector<float> values = numbers(64);
    try {
      module().launch("warp_kernel<(Missing)" + std::string(missing) + ">", {.blocks = 1, .threads = 64},
                      values.data(), writer);
    } catch (const std::runtime_error& thrown) {
      return std::string(thrown.what());
    }
    return std::string("none");
  };

  EXPECT_EQ(error("0", 61), "PTX: no barrier between a thread's write of shared memory and another's read");
  EXPECT_EQ(error("1", 61), "PTX: no barrier between a thread's use of shared memory and another's write");
  EXPECT_EQ(error("3", 61), "none");
  EXPECT_EQ(error("3", 5), "PTX: no barrier between a thread's write of shared memory and another's read")
      << "of another warp";
}

TEST(PtxInterpreter, FindsAReadOfSharedMemoryThatTheBlockHasNotWritten) {
  EXPECT_EQ(error_of("copy_kernel", numbers(64)), "none");
  EXPECT_NE(error_of("copy_kernel", numbers(64), /*blocks=*/2).find("never written"), std::string::npos);
}

TEST(PtxInterpreter, RefusesABarrierThatNotAllThreadsReach) {
  std::vector<float> values = numbers(64);
  const auto reached_by = [&](std::uint32_t threads) {
    module().launch("barrier_kernel", {.blocks = 1, .threads = 64}, values.data(), threads);
  };

  EXPECT_NO_THROW(reached_by(64));
  EXPECT_THROW(reached_by(32), std::runtime_error);
  EXPECT_THROW(reached_by(63), std::runtime_error);
}

TEST(PtxInterpreter, AccessesSeveralValuesAtOnce) {
  alignas(16) float from[256], to[256];
  const std::vector<float> values = numbers(256);
  std::ranges::copy(values, from);
  const CountedMemory memory{ConstHostSpan(std::span<const float>(from)),
                             ConstHostSpan(std::span<const float>(to))};
  const auto copy = [&](const char* kernel, std::uint32_t threads) {
    std::ranges::fill(to, -1.0f);
    const float* const source = from;
    float* const target = to;
    const void* const arguments[] = {&source, &target};
    module().bind(kernel, {.blocks = 1, .threads = threads}, arguments)(memory);
  };

  copy("copy_16_kernel", 64);
  EXPECT_TRUE(std::ranges::equal(to, values));
  copy("copy_8_kernel", 128);
  EXPECT_TRUE(std::ranges::equal(to, values));
  EXPECT_EQ(memory.accesses(), (CountedMemory::Accesses{{16, 2 * 64}, {8, 2 * 128}}));
}

TEST(PtxInterpreter, RefusesAnAccessThatIsNotAligned) {
  alignas(16) float from[8] = {}, to[8];
  const PtxModule::Grid one{.blocks = 1, .threads = 1};

  EXPECT_THROW(module().launch("copy_16_kernel", one, &from[2], &to[0]), ptx::MisalignedAccess);
  EXPECT_THROW(module().launch("copy_16_kernel", one, &from[0], &to[2]), ptx::MisalignedAccess);
  EXPECT_NO_THROW(module().launch("copy_8_kernel", one, &from[2], &to[2]));
}

TEST(PtxInterpreter, FindsTheLargestValueOfEachWarp) {
  std::vector<std::uint32_t> values(64);
  for (std::uint32_t i = 0; i < 64; ++i) values[i] = i == 5 ? 0xffffffff : i * 7 % 64;
  const std::uint32_t largest = *std::max_element(values.begin() + 32, values.end());

  module().launch("largest_kernel", {.blocks = 1, .threads = 64}, values.data(), 0xffffffffu);

  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(values[i], i < 32 ? 0xffffffff : largest) << i;
  EXPECT_THROW(module().launch("largest_kernel", {.blocks = 1, .threads = 64}, values.data(), 0xffffu),
               std::runtime_error);
}

TEST(PtxInterpreter, RefusesFusedAndApproximateInstructionsWhereBitsMustBeThoseOfTheCpu) {
  const PtxModule exact(PENSTOCK_INTERPRETER_PTX);
  std::vector<float> x = numbers(1), y = x, z = x;
  const PtxModule::Grid one{.blocks = 1, .threads = 1};

  EXPECT_THROW(exact.launch("multiply_add_kernel", one, x.data(), y.data(), z.data()), std::runtime_error);
  EXPECT_THROW(exact.launch("exponential_kernel", one, x.data(), y.data()), std::runtime_error);
  EXPECT_NO_THROW(module().launch("exponential_kernel", one, x.data(), y.data()));
}

TEST(PtxInterpreter, ComputesExponentialsAndLogarithmsToTwoUnitsInTheLastPlace) {
  const auto units = [](double wanted) { return std::ldexp(1.0, std::ilogb(wanted) - 23); };
  std::vector<float> x(1000), y(1000), z(1000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = -87.0f + 0.175f * static_cast<float>(i);
  const PtxModule::Grid all{.blocks = 1, .threads = 1000};

  module().launch("exponential_kernel", all, x.data(), y.data());
  module().launch("logarithm_kernel", all, y.data(), z.data());

  for (std::size_t i = 0; i < x.size(); ++i) {
    const double power = std::exp(double{x[i]}), back = std::log(double{y[i]});
    EXPECT_NEAR(y[i], power, 2 * units(power)) << "exp(" << x[i] << ")";
    EXPECT_NEAR(z[i], back, 2 * units(back)) << "log(" << y[i] << ")";
  }
}

TEST(PtxInterpreter, RoundsAFusedMultiplicationOnceAsItsModeSays) {
  SeededRandom choices(5);
  std::vector<float> x(512), y(512), z(512);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = choices.symmetric();
    y[i] = choices.symmetric();
    // Sums that cancel, sums of far exponents, and exact ones.
    z[i] = i % 4 == 0   ? -x[i] * y[i]
           : i % 4 == 1 ? 0x1p30f * choices.symmetric()
           : i % 4 == 2 ? 0.0f
                        : choices.symmetric();
  }
  std::vector<float> nearest = z, down = z;
  const PtxModule::Grid all{.blocks = 1, .threads = 512};

  module().launch("multiply_add_kernel", all, x.data(), y.data(), nearest.data());
  module().launch("multiply_add_down_kernel", all, x.data(), y.data(), down.data());

  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(nearest[i], std::fma(x[i], y[i], z[i])) << i;
    std::fesetround(FE_DOWNWARD);
    volatile float a = x[i], b = y[i], c = z[i];
    volatile float wanted = std::fma(a, b, c);
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(down[i], wanted) << i;
  }
}

TEST(PtxInterpreter, ExchangesValuesOfLanesWhoseNumbersDifferInSomeBits) {
  std::vector<float> values = numbers(32);

  module().launch("butterfly_kernel", {.blocks = 1, .threads = 32}, values.data(), 5);

  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<float>(i ^ 5));
}

TEST(PtxInterpreter, LoadsFourMatricesIntoTheRegistersOfAWarp) {
  // Each number says where it is: matrix, row, column.
  const auto number = [](std::size_t matrix, std::size_t row, std::size_t column) {
    return static_cast<std::uint32_t>(matrix << 8 | row << 4 | column);
  };
  std::vector<std::uint32_t> from, straight(128), transposed(128);
  for (std::size_t matrix = 0; matrix < 4; ++matrix) {
    for (std::size_t row = 0; row < 8; ++row) {
      for (std::size_t column = 0; column < 8; column += 2) {
        from.push_back(number(matrix, row, column) | number(matrix, row, column + 1) << 16);
      }
    }
  }

  module().launch("load_matrices_kernel<false>", {.blocks = 1, .threads = 32}, from.data(), straight.data());
  module().launch("load_matrices_kernel<true>", {.blocks = 1, .threads = 32}, from.data(), transposed.data());

  for (std::size_t lane = 0; lane < 32; ++lane) {
    const std::size_t first = lane / 4, second = lane % 4 * 2;
    for (std::size_t matrix = 0; matrix < 4; ++matrix) {
      EXPECT_EQ(straight[4 * lane + matrix], number(matrix, first, second) | number(matrix, first, second + 1)
                                                                                 << 16);
      EXPECT_EQ(transposed[4 * lane + matrix],
                number(matrix, second, first) | number(matrix, second + 1, first) << 16);
    }
  }
}

TEST(PtxInterpreter, MultipliesMatricesInTheFragmentsOfAWarp) {
  // Element (row, column) of the operands, in bf16; their register and half by the tables of the PTX ISA.
  const auto left = [](std::size_t row, std::size_t column) {
    return static_cast<float>(3 * row) - static_cast<float>(column);
  };
  const auto right = [](std::size_t row, std::size_t column) {
    return static_cast<float>(row * (column + 1) % 7) - 2;
  };
  const auto bf16 = [](float x) { return std::bit_cast<std::uint32_t>(x) >> 16; };
  std::vector<std::uint32_t> a(128), b(64);
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t column = 0; column < 16; ++column) {
      const std::size_t lane = row % 8 * 4 + column % 8 / 2, i = row / 8 + column / 8 * 2;
      a[4 * lane + i] |= bf16(left(row, column)) << column % 2 * 16;
    }
    for (std::size_t column = 0; column < 8; ++column) {
      b[2 * (column * 4 + row % 8 / 2) + row / 8] |= bf16(right(row, column)) << row % 2 * 16;
    }
  }
  std::vector<float> sums(128, 100.0f);

  module().launch("multiply_matrices_kernel", {.blocks = 1, .threads = 32}, a.data(), b.data(), sums.data());

  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t column = 0; column < 8; ++column) {
      float wanted = 100;
      for (std::size_t k = 0; k < 16; ++k) wanted += left(row, k) * right(k, column);
      EXPECT_EQ(sums[4 * (row % 8 * 4 + column / 2) + row / 8 * 2 + column % 2], wanted)
          << row << ", " << column;
    }
  }
}

}  // namespace
}  // namespace penstock::test
