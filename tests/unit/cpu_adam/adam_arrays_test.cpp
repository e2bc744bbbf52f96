// Adam on arrays of the caller, beside the same step on a tile.
#include "format_tile.hpp"

#include <gtest/gtest.h>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace penstock::test {
namespace {

constexpr AdamConfig config{.learning_rate = 1e-2f, .weight_decay = 0.1f};

/// Arrays of numbers of one type each, which end at inaccessible pages.
class Arrays {
 public:
  Arrays(const TileValues& values, DType dtype, DType moment_dtype)
      : dtype_(dtype), moment_dtype_(moment_dtype) {
    fill(parameter_, dtype, values.master);
    fill(gradient_, dtype, values.gradient);
    fill(m_, moment_dtype, values.m);
    fill(v_, moment_dtype, values.v);
  }
  [[nodiscard]] AdamArrays arrays() {
    return {.parameter = HostSpan(std::span(parameter_)),
            .gradient = HostSpan(std::span(gradient_)),
            .first_moment = HostSpan(std::span(m_)),
            .second_moment = HostSpan(std::span(v_)),
            .parameter_dtype = dtype_,
            .gradient_dtype = dtype_,
            .moment_dtype = moment_dtype_};
  }
  [[nodiscard]] float parameter(std::size_t i) const { return value(parameter_, dtype_, i); }
  [[nodiscard]] float m(std::size_t i) const { return value(m_, moment_dtype_, i); }
  [[nodiscard]] float v(std::size_t i) const { return value(v_, moment_dtype_, i); }
  [[nodiscard]] TileValues values(std::size_t count) const {
    TileValues values;
    for (std::size_t i = 0; i < count; ++i) {
      values.master.push_back(parameter(i));
      values.gradient.push_back(value(gradient_, dtype_, i));
      values.m.push_back(m(i));
      values.v.push_back(v(i));
    }
    return values;
  }

 private:
  static void fill(std::vector<std::byte>& bytes, DType dtype, const std::vector<float>& values) {
    const std::size_t size = size_of(dtype).value();
    bytes.resize(size * values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      put(dtype, bytes.data() + size * i, rounded_to(dtype, values[i]));
  }
  static float value(const std::vector<std::byte>& bytes, DType dtype, std::size_t i) {
    return get(dtype, bytes.data() + size_of(dtype).value() * i);
  }

  DType dtype_, moment_dtype_;
  std::vector<std::byte> parameter_, gradient_, m_, v_;
};

struct Types {
  DType values, moments;
};
class AdamArraysOf : public testing::TestWithParam<Types> {};

TEST_P(AdamArraysOf, HaveTheBitsOfATileThatIsRounded) {
  const auto [dtype, moment_dtype] = GetParam();
  for (const std::size_t count : {1u, 1000u, 16384u, 50'001u}) {
    Arrays arrays(random_values(count, count), dtype, moment_dtype);
    const TileValues before = arrays.values(count);
    FormatTile tile(StateFormat::moments, count);
    tile.set_gradient(before.gradient);
    ASSERT_TRUE(restore_tile({before.master, before.m, before.v}, tile.tile()));
    parallel::Workers workers = parallel::Workers::create({.threads = 2}).value();

    const auto updated = adam_step_in_arrays(config, 7, 0.5f, arrays.arrays(), {.workers = &workers});

    ASSERT_TRUE(updated) << updated.error().message();
    ASSERT_TRUE(adam_step(config, 7, 0.5f, tile.tile()));
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(arrays.parameter(i), rounded_to(dtype, tile.parameter(i))) << i;
      ASSERT_EQ(arrays.m(i), rounded_to(moment_dtype, tile.m(i))) << i;
      ASSERT_EQ(arrays.v(i), rounded_to(moment_dtype, tile.v(i))) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, AdamArraysOf,
                         testing::Values(Types{DType::fp32, DType::fp32}, Types{DType::bf16, DType::fp32},
                                         Types{DType::bf16, DType::bf16}, Types{DType::fp16, DType::fp32},
                                         Types{DType::fp16, DType::fp16}),
                         [](const auto& tested) {
                           return std::string(to_string(tested.param.values)) + "_" +
                                  std::string(to_string(tested.param.moments));
                         });

TEST(AdamArrays, TellWhereAValueIsNotFinite) {
  TileValues values = random_values(40'000, 1);
  values.gradient[20'000] = std::numeric_limits<float>::infinity();
  Arrays arrays(values, DType::fp32, DType::fp32);
  EXPECT_EQ(adam_step_in_arrays(config, 1, 1.0f, arrays.arrays()).value().first_non_finite_block, 1u);
}

TEST(AdamArrays, TellWhereARoundedValueIsNotFinite) {
  const auto block_of = [](const TileValues& values, DType dtype, float factor) {
    Arrays arrays(values, dtype, dtype);
    const AdamConfig large{.learning_rate = 100.0f};
    return adam_step_in_arrays(large, 1, factor, arrays.arrays()).value().first_non_finite_block;
  };
  const TileValues values{.master = std::vector(40'000, 1.0f),
                          .m = std::vector(40'000, 0.0f),
                          .v = std::vector(40'000, 0.0f),
                          .gradient = std::vector(40'000, 1.0f)};
  EXPECT_FALSE(block_of(values, DType::fp16, 1.0f));
  TileValues large = values;
  large.master[20'000] = 65504.0f;
  EXPECT_EQ(block_of(large, DType::fp16, -1.0f), 1u);
  EXPECT_FALSE(block_of(large, DType::bf16, -1.0f));
  large = values;
  large.gradient[39'999] = 65504.0f;  // its square
  EXPECT_EQ(block_of(large, DType::fp16, 1.0f), 2u);
  EXPECT_FALSE(block_of(large, DType::bf16, 1.0f));
}

TEST(AdamArrays, AreCheckedBeforeAnythingIsWritten) {
  Arrays good(random_values(100, 1), DType::fp32, DType::fp32);
  const auto refused = [&](const AdamArrays& arrays, const AdamConfig& with, std::uint64_t step,
                           const std::string& text) {
    const auto result = adam_step_in_arrays(with, step, 1.0f, arrays);
    ASSERT_FALSE(result) << text;
    EXPECT_NE(result.error().message().find(text), std::string::npos) << result.error().message();
  };
  const TileValues before = good.values(100);
  AdamArrays bad = good.arrays();
  bad.gradient = bad.gradient.subspan(ByteCount(0), ByteCount(396));
  refused(bad, config, 1, "gradient");
  bad = good.arrays();
  bad.second_moment = bad.first_moment;
  refused(bad, config, 1, "second_moment and first_moment");
  bad = good.arrays();
  bad.gradient = bad.parameter;
  refused(bad, config, 1, "gradient and parameter");
  bad = good.arrays();
  bad.moment_dtype = DType::bf16;
  refused(bad, config, 1, "first_moment");
  refused(good.arrays(), config, 0, "step");
  refused(good.arrays(), {.beta1 = 1.5f}, 1, "beta1");
  EXPECT_EQ(good.values(100).master, before.master);
}

}  // namespace
}  // namespace penstock::test
