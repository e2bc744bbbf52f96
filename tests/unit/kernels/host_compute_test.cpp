#include "kit/guard_pages.hpp"
#include "kit/host_queue.hpp"
#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include "kernels/host_compute.hpp"
#include "kernels/host_gradient.hpp"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock::test {
namespace {

constexpr std::uint64_t sizes[] = {0, 1, 7, 15, 16, 17, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097, 20000};

/// The bits of `value` as bf16, truncated; callers use exact values.
std::uint16_t bf16(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}
float wide(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
/// Nearest even through the neighbours of the truncated value, in double; for values of ordinary size.
std::uint16_t rounded(double value) {
  const std::uint16_t low = bf16(static_cast<float>(value));
  const auto high = static_cast<std::uint16_t>(low + 1);
  const double below = std::abs(value - static_cast<double>(wide(low)));
  const double above = std::abs(value - static_cast<double>(wide(high)));
  return below < above || (below == above && low % 2 == 0) ? low : high;
}

template <class T>
class Memory {
 public:
  explicit Memory(std::uint64_t count) : bytes_(ByteCount(count * sizeof(T))) {}
  Memory(std::uint64_t count, std::uint64_t seed) : Memory(count) {
    SeededRandom random(seed);
    for (T& value : values()) {
      const float x = random.symmetric() + 1.5f;
      if constexpr (sizeof(T) == 2) {
        value = bf16(x);
      } else {
        value = static_cast<T>(x);
      }
    }
  }
  [[nodiscard]] std::span<T> values() const { return bytes_.span().as<T>(); }
  [[nodiscard]] DeviceSpan bytes() const {
    return {DeviceAddress(reinterpret_cast<std::uintptr_t>(bytes_.span().data())), bytes_.span().size()};
  }
  [[nodiscard]] DeviceTensor tensor() const { return {bytes(), sizeof(T) == 2 ? DType::bf16 : DType::fp32}; }

 private:
  GuardedBytes bytes_;
};
using Bf16Memory = Memory<std::uint16_t>;
using Fp32Memory = Memory<float>;

/// Compute::square_sums implemented from its documentation, element by element.
std::vector<double> square_sums_by_the_book(const auto& value_at, std::uint64_t count) {
  std::vector<double> partials;
  for (std::uint64_t first = 0; first < count; first += 4096) {
    double lanes[16] = {};
    for (std::uint64_t i = first; i < std::min<std::uint64_t>(first + 4096, count); ++i) {
      lanes[i % 16] += static_cast<double>(value_at(i)) * static_cast<double>(value_at(i));
    }
    for (const int half : {8, 4, 2, 1}) {
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    partials.push_back(lanes[0]);
  }
  return partials;
}

class HostCompute : public testing::Test {
 protected:
  DeferredQueue queue;
  StreamHandle stream = StreamHandle::of(queue);
  std::unique_ptr<Compute> compute = kernels::make_host_compute();
};

TEST_F(HostCompute, RunsNothingBeforeTheStreamDoes) {
  const Fp32Memory x(100, 1);
  const float before = x.values()[7];

  ASSERT_TRUE(compute->scale(stream, x.tensor(), 2.0f).has_value());

  EXPECT_EQ(x.values()[7], before);
  queue.run();
  EXPECT_EQ(x.values()[7], 2 * before);
}

TEST_F(HostCompute, CastsScalesAndAccumulatesWithOneRounding) {
  for (const std::uint64_t count : sizes) {
    const Fp32Memory x(count, 1), sum32(count, 2);
    const Bf16Memory narrow(count), scaled(count, 3), sum16(count, 4), addend(count, 5);
    const std::vector<float> sum32_before(sum32.values().begin(), sum32.values().end());
    const std::vector<std::uint16_t> scaled_before(scaled.values().begin(), scaled.values().end());
    const std::vector<std::uint16_t> sum16_before(sum16.values().begin(), sum16.values().end());

    ASSERT_TRUE(compute->cast(stream, x.tensor(), narrow.tensor()).has_value());
    ASSERT_TRUE(compute->scale(stream, scaled.tensor(), 0.7f).has_value());
    ASSERT_TRUE(compute->accumulate(stream, addend.tensor(), sum32.tensor()).has_value());
    ASSERT_TRUE(compute->accumulate(stream, addend.tensor(), sum16.tensor()).has_value());
    queue.run();

    for (std::uint64_t i = 0; i < count; ++i) {
      ASSERT_EQ(narrow.values()[i], rounded(x.values()[i]));
      ASSERT_EQ(scaled.values()[i], rounded(wide(scaled_before[i]) * 0.7f));
      ASSERT_EQ(sum32.values()[i], sum32_before[i] + wide(addend.values()[i]));
      ASSERT_EQ(sum16.values()[i], rounded(wide(sum16_before[i]) + wide(addend.values()[i])));
    }
  }
}

TEST_F(HostCompute, ACastToTheSameDtypeCopiesEveryBit) {
  const Fp32Memory from(100, 1), to(100);
  from.values()[3] = std::bit_cast<float>(0x7f800001u);  // a signalling NaN
  ASSERT_TRUE(compute->cast(stream, from.tensor(), to.tensor()).has_value());
  queue.run();
  EXPECT_EQ(std::memcmp(from.values().data(), to.values().data(), 400), 0);
}

TEST_F(HostCompute, MeanAddsInTheOrderGivenAndMayOverwriteAnInput) {
  for (const std::uint64_t count : sizes) {
    const Bf16Memory a(count, 1), b(count, 2), c(count, 3);
    std::vector<std::uint16_t> wanted;
    for (std::uint64_t i = 0; i < count; ++i) {
      const float sum = wide(c.values()[i]) + wide(a.values()[i]) + wide(b.values()[i]);
      wanted.push_back(rounded(sum * (1.0f / 3.0f)));
    }
    const DeviceTensor inputs[] = {c.tensor(), a.tensor(), b.tensor()};

    ASSERT_TRUE(compute->mean(stream, inputs, a.tensor()).has_value());
    queue.run();

    EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), a.values().begin()));
  }
}

TEST_F(HostCompute, MeanDependsOnTheOrderOfItsInputs) {
  const Fp32Memory big(1), small(1), negative(1), out(1);
  big.values()[0] = 0x1p30f, small.values()[0] = 1.0f, negative.values()[0] = -0x1p30f;
  const DeviceTensor cancels_first[] = {big.tensor(), negative.tensor(), small.tensor()};
  const DeviceTensor loses_first[] = {big.tensor(), small.tensor(), negative.tensor()};

  ASSERT_TRUE(compute->mean(stream, cancels_first, out.tensor()).has_value());
  queue.run();
  EXPECT_EQ(out.values()[0], 1.0f / 3.0f);
  ASSERT_TRUE(compute->mean(stream, loses_first, out.tensor()).has_value());
  queue.run();
  EXPECT_EQ(out.values()[0], 0.0f);
}

TEST_F(HostCompute, SquareSumsFollowTheDocumentedOrderBitForBit) {
  for (const std::uint64_t count : sizes) {
    const Fp32Memory x(count, 1);
    const Bf16Memory y(count, 2);
    const Memory<double> x_partials(ceil_divide(count, 4096)), y_partials(ceil_divide(count, 4096));

    ASSERT_TRUE(compute->square_sums(stream, x.tensor(), x_partials.bytes()).has_value());
    ASSERT_TRUE(compute->square_sums(stream, y.tensor(), y_partials.bytes()).has_value());
    queue.run();

    const auto x_wanted = square_sums_by_the_book([&](std::uint64_t i) { return x.values()[i]; }, count);
    const auto y_wanted =
        square_sums_by_the_book([&](std::uint64_t i) { return wide(y.values()[i]); }, count);
    EXPECT_TRUE(std::equal(x_wanted.begin(), x_wanted.end(), x_partials.values().begin()));
    EXPECT_TRUE(std::equal(y_wanted.begin(), y_wanted.end(), y_partials.values().begin()));
  }
}

TEST_F(HostCompute, APartialIsNonFiniteExactlyWhenAnElementOfItsBlockIs) {
  const Fp32Memory x(3 * 4096, 1);
  const Memory<double> partials(3);
  x.values()[5] = 3.4e38f;
  x.values()[4096 + 77] = std::numeric_limits<float>::infinity();
  x.values()[2 * 4096 + 4095] = std::numeric_limits<float>::quiet_NaN();

  ASSERT_TRUE(compute->square_sums(stream, x.tensor(), partials.bytes()).has_value());
  queue.run();

  EXPECT_TRUE(std::isfinite(partials.values()[0]));
  EXPECT_TRUE(std::isinf(partials.values()[1]));
  EXPECT_TRUE(std::isnan(partials.values()[2]));
}

TEST_F(HostCompute, RefusesWhatDoesNotFitAndEnqueuesNothing) {
  const Fp32Memory a(100, 1), b(99, 2);
  const Bf16Memory c(100, 3);
  const DeviceTensor mixed[] = {a.tensor(), c.tensor()};
  const DeviceTensor one[] = {a.tensor()};
  const std::vector<DeviceTensor> many(65, a.tensor());
  DeviceTensor misaligned = a.tensor();
  misaligned.bytes = DeviceSpan(DeviceAddress(static_cast<std::uintptr_t>(a.bytes().address()) + 2), 396_B);
  DeviceTensor broken = a.tensor();
  broken.bytes = a.bytes().subspan(0_B, 399_B);
  const Memory<double> partials(2);

  EXPECT_FALSE(compute->cast(stream, a.tensor(), b.tensor()).has_value());
  EXPECT_FALSE(compute->cast(stream, a.tensor(), a.tensor()).has_value());
  EXPECT_FALSE(compute->cast(stream, misaligned, b.tensor()).has_value());
  EXPECT_FALSE(compute->scale(stream, broken, 1.0f).has_value());
  EXPECT_FALSE(compute->accumulate(stream, a.tensor(), b.tensor()).has_value());
  EXPECT_FALSE(compute->accumulate(stream, a.tensor(), a.tensor()).has_value());
  EXPECT_FALSE(compute->mean(stream, {}, a.tensor()).has_value());
  EXPECT_FALSE(compute->mean(stream, mixed, a.tensor()).has_value());
  EXPECT_FALSE(compute->mean(stream, many, a.tensor()).has_value());
  EXPECT_FALSE(compute->mean(stream, one, b.tensor()).has_value());
  EXPECT_FALSE(compute->square_sums(stream, a.tensor(), partials.bytes()).has_value());
  EXPECT_EQ(queue.waiting(), 0u);
}

TEST(HostGradient, CopiesTheFirstMicroBatchAndAddsTheNext) {
  for (const std::uint64_t count : sizes) {
    const Bf16Memory first(count, 1), second(count, 2), narrow(count, 9);
    const Fp32Memory sum(count, 9);
    const auto accumulate = [&](const Bf16Memory& incoming, kernels::GradientWrite write) {
      const HostSpan from(incoming.values());
      EXPECT_TRUE(
          kernels::accumulate_gradient({from, DType::bf16, HostSpan(sum.values()), DType::fp32}, write)
              .has_value());
      EXPECT_TRUE(
          kernels::accumulate_gradient({from, DType::bf16, HostSpan(narrow.values()), DType::bf16}, write)
              .has_value());
    };

    accumulate(first, kernels::GradientWrite::overwrite);
    accumulate(second, kernels::GradientWrite::accumulate);

    for (std::uint64_t i = 0; i < count; ++i) {
      const float exact = wide(first.values()[i]) + wide(second.values()[i]);
      ASSERT_EQ(sum.values()[i], exact);
      ASSERT_EQ(narrow.values()[i], rounded(exact));
    }
  }
}

TEST(HostGradient, SquareSumsDoNotDependOnHowAShardIsDivided) {
  constexpr std::uint64_t count = 5 * 4096 + 33;
  const Bf16Memory x(count, 1);
  const std::span<std::uint16_t> values = x.values();
  const auto wanted = square_sums_by_the_book([&](std::uint64_t i) { return wide(values[i]); }, count);

  std::vector<double> whole(6), cut(6);
  ASSERT_TRUE(kernels::square_sums(HostSpan(values), DType::bf16, whole).has_value());
  ASSERT_TRUE(
      kernels::square_sums(HostSpan(values.first(8192)), DType::bf16, std::span(cut).first(2)).has_value());
  ASSERT_TRUE(kernels::square_sums(HostSpan(values.subspan(8192)), DType::bf16, std::span(cut).subspan(2))
                  .has_value());

  EXPECT_EQ(whole, wanted);
  EXPECT_EQ(cut, wanted);
}

TEST(HostGradient, RefusesPiecesThatDoNotFit) {
  const Fp32Memory a(100, 1), b(99, 2);
  std::vector<double> partials(2);
  const auto refused = [](HostSpan from, DType from_dtype, HostSpan to, DType to_dtype) {
    const auto result =
        kernels::accumulate_gradient({from, from_dtype, to, to_dtype}, kernels::GradientWrite::accumulate);
    return !result && result.error().code() == ErrorCode::invalid_argument;
  };
  const HostSpan x(a.values()), y(b.values());
  EXPECT_TRUE(refused(x, DType::fp32, y, DType::fp32));
  EXPECT_TRUE(refused(x, DType::bf16, y, DType::fp32));
  EXPECT_TRUE(refused(x, DType::fp32, x, DType::fp32));
  EXPECT_TRUE(refused(x.subspan(2_B, 396_B), DType::fp32, y, DType::fp32));
  EXPECT_FALSE(kernels::square_sums(x, DType::fp32, partials).has_value());
}

#if defined(__x86_64__)
TEST(HostGradient, TheCallersFloatingPointModeChangesNothingAndComesBack) {
  const std::vector<float> tiny(100, 1e-40f);
  std::vector<float> sum(100, 2e-40f), mean(1, 0.0f);
  std::vector<double> partials(1);
  std::vector<float> one = {1.0f};
  DeferredQueue queue;
  const auto tensor = [](std::vector<float>& x) {
    return DeviceTensor{{DeviceAddress(reinterpret_cast<std::uintptr_t>(x.data())), ByteCount(4 * x.size())},
                        DType::fp32};
  };
  const std::vector<DeviceTensor> inputs(3, tensor(one));
  const unsigned saved = _mm_getcsr(), hostile = 0x1f80u | 0x8040u | 0x6000u;

  _mm_setcsr(hostile);
  const bool accumulated = kernels::accumulate_gradient({.incoming = ConstHostSpan(std::span(tiny)),
                                                         .incoming_dtype = DType::fp32,
                                                         .accumulator = HostSpan(std::span(sum)),
                                                         .accumulator_dtype = DType::fp32},
                                                        kernels::GradientWrite::accumulate)
                               .has_value();
  const bool meant =
      kernels::make_host_compute()->mean(StreamHandle::of(queue), inputs, tensor(mean)).has_value();
  queue.run();
  const unsigned after = _mm_getcsr() & 0xffc0u;
  _mm_setcsr(saved);

  ASSERT_TRUE(accumulated && meant);
  EXPECT_EQ(after, hostile);
  for (const float x : sum) EXPECT_EQ(x, 1e-40f + 2e-40f);
  EXPECT_EQ(mean[0], 1.0f) << "1/3 rounded to zero";
}
#endif

}  // namespace
}  // namespace penstock::test
