#include "kit/golden.hpp"
#include "kit/print.hpp"

#include <gtest/gtest.h>
#include <bit>
#include <cmath>
#include "kernels/host_gradient.hpp"

namespace penstock::test {
namespace {

/// Converts through the vectorised loops, as all callers do.
template <class To, class From>
std::vector<To> converted(const std::vector<From>& from, DType from_dtype, DType to_dtype) {
  std::vector<To> to(from.size());
  EXPECT_TRUE(kernels::accumulate_gradient({.incoming = ConstHostSpan(std::span(from)),
                                            .incoming_dtype = from_dtype,
                                            .accumulator = HostSpan(std::span(to)),
                                            .accumulator_dtype = to_dtype},
                                           kernels::GradientWrite::overwrite)
                  .has_value());
  return to;
}

struct Format {
  std::uint16_t infinity, sign_and_quiet;
};
class Rounding : public testing::TestWithParam<DType> {
 protected:
  [[nodiscard]] bool is_nan(std::uint16_t bits) const { return (bits & 0x7fffu) > format.infinity; }

  Format format = GetParam() == DType::bf16 ? Format{0x7f80, 0x8040} : Format{0x7c00, 0x8200};
  std::string name{to_string(GetParam())};
};

TEST_P(Rounding, NarrowsEveryReferencePatternAsTorchAndKeepsNaNsOfTheirSign) {
  const Safetensors file(golden_directory() / "rounding.safetensors");
  const auto inputs = file.elements<std::uint32_t>("f32_bits");
  const auto wanted = file.elements<std::uint16_t>(name + "_bits_scalar");
  ASSERT_EQ(inputs.size(), 4096u);

  const auto got = converted<std::uint16_t>(inputs, DType::fp32, GetParam());

  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (std::isnan(std::bit_cast<float>(inputs[i]))) {
      EXPECT_TRUE(is_nan(got[i])) << std::hex << inputs[i];
      EXPECT_EQ(got[i] & format.sign_and_quiet,
                (inputs[i] >> 16 & 0x8000u) | (format.sign_and_quiet & 0x7fffu));
    } else {
      EXPECT_EQ(got[i], wanted[i]) << std::hex << inputs[i];
    }
  }
}

TEST_P(Rounding, WidensEveryReferencePatternAsTorch) {
  const Safetensors file(golden_directory() / "rounding.safetensors");
  const auto inputs = file.elements<std::uint16_t>(name + "_bits_scalar");
  const auto wanted = file.elements<std::uint32_t>(name + "_back_to_f32_bits");

  const auto got = converted<std::uint32_t>(inputs, GetParam(), DType::fp32);

  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (is_nan(inputs[i])) {
      EXPECT_TRUE(std::isnan(std::bit_cast<float>(got[i])));
    } else {
      EXPECT_EQ(got[i], wanted[i]) << std::hex << inputs[i];
    }
  }
}

TEST_P(Rounding, EveryPatternSurvivesConversionToFp32AndBack) {
  std::vector<std::uint16_t> every(1 << 16);
  for (std::size_t i = 0; i < every.size(); ++i) every[i] = static_cast<std::uint16_t>(i);

  const auto wide = converted<std::uint32_t>(every, GetParam(), DType::fp32);
  const auto back = converted<std::uint16_t>(wide, DType::fp32, GetParam());

  const auto quiet = static_cast<std::uint16_t>(format.sign_and_quiet & 0x7fffu);
  for (std::size_t i = 0; i < every.size(); ++i) {
    ASSERT_EQ(back[i], is_nan(every[i]) ? every[i] | quiet : every[i]) << std::hex << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Rounding, testing::Values(DType::bf16, DType::fp16),
                         [](const auto& dtype) { return std::string(to_string(dtype.param)); });

}  // namespace
}  // namespace penstock::test
