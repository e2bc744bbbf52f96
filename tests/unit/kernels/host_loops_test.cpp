#include "kernels/host_loops.hpp"

#include "kit/seeded_random.hpp"

#include <penstock/base/dtype.hpp>
#include <penstock/kernels/variants.hpp>

#include <gtest/gtest.h>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace penstock::kernels {
namespace {

constexpr DType dtypes[] = {DType::fp32, DType::bf16, DType::fp16};
constexpr std::size_t sizes[] = {0, 1, 7, 15, 16, 17, 31, 33, 63, 65, 1000, 4096};

struct Compiled {
  std::string name;
  const HostLoops* loops;
};
std::vector<Compiled> others_than_baseline() {
  std::vector<Compiled> some;
#if defined(__x86_64__)
  if (is_runnable(Isa::x86_64_v3)) some.push_back({"v3", &host_loops_x86_64_v3});
  if (is_runnable(Isa::x86_64_v4)) some.push_back({"v4", &host_loops_x86_64_v4});
#endif
  return some;
}

constexpr std::size_t canary = 64;  // bytes after the elements, which must not be written

/// Random bits of `count` elements; without infinities and NaNs where told, for of two NaNs either is the
/// sum. Of fp32 numbers a third are halfway between two of bf16, a third between two of fp16.
std::vector<std::byte> random_elements(DType dtype, std::size_t count, bool finite, std::uint64_t seed) {
  test::SeededRandom random(seed);
  std::vector<std::byte> bytes(count * size_of(dtype).value() + canary, std::byte{0xa5});
  for (std::size_t i = 0; i < count; ++i) {
    auto bits = static_cast<std::uint32_t>(random.next());
    const std::uint32_t exponent = dtype == DType::fp32   ? 0x7f800000u
                                   : dtype == DType::bf16 ? 0x7f80u
                                                          : 0x7c00u;
    if (dtype == DType::fp32 && i % 3 == 0) bits = (bits & ~0xffffu) | 0x8000u;
    if (dtype == DType::fp32 && i % 3 == 1) {  // and of fp16's range
      bits = (bits & 0x807fe000u) | 0x1000u | static_cast<std::uint32_t>(103 + random.below(40)) << 23;
    }
    if (finite && (bits & exponent) == exponent) bits &= ~exponent;
    std::memcpy(&bytes[i * size_of(dtype).value()], &bits, size_of(dtype).value());
  }
  return bytes;
}

TEST(HostLoops, GiveTheSameBitsForEveryInstructionSet) {
  if (others_than_baseline().empty()) GTEST_SKIP() << "this machine runs the baseline only";
  for (const auto& [name, loops] : others_than_baseline()) {
    for (const std::size_t count : sizes) {
      for (const DType x : dtypes) {
        const std::string what = name + " " + std::to_string(count) + " " + std::string(to_string(x));
        const auto ix = static_cast<std::size_t>(x);
        const auto finite = random_elements(x, count, true, count + 1);
        EXPECT_EQ(loops->square_sum[ix](finite.data(), count),
                  host_loops_baseline.square_sum[ix](finite.data(), count))
            << what;

        auto scaled = finite, wanted = finite;
        loops->scale[ix](scaled.data(), 0.37f, count);
        host_loops_baseline.scale[ix](wanted.data(), 0.37f, count);
        EXPECT_EQ(scaled, wanted) << what;

        for (const DType y : dtypes) {
          const auto iy = static_cast<std::size_t>(y);
          if (x != y) {
            const auto any = random_elements(x, count, false, count + 2);
            auto cast = random_elements(y, count, false, 3), wanted_cast = cast;
            loops->cast[ix][iy](any.data(), cast.data(), count);
            host_loops_baseline.cast[ix][iy](any.data(), wanted_cast.data(), count);
            EXPECT_EQ(cast, wanted_cast) << what << " to " << to_string(y);
          }
          auto sum = random_elements(y, count, true, count + 4), wanted_sum = sum;
          loops->accumulate[ix][iy](finite.data(), sum.data(), count);
          host_loops_baseline.accumulate[ix][iy](finite.data(), wanted_sum.data(), count);
          EXPECT_EQ(sum, wanted_sum) << what << " into " << to_string(y);
        }
      }
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
