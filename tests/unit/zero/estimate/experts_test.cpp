#include "zero/estimate/experts.hpp"

#include "zero/estimate/model_presets.hpp"
#include "zero/estimate/named_model.hpp"

#include <gtest/gtest.h>

namespace penstock::zero::estimate {
namespace {

ParameterLayout parameter(const char* name, std::vector<std::uint64_t> shape) {
  std::uint64_t count = 1;
  for (const std::uint64_t length : shape) count *= length;
  return {.name = name, .count = ElementCount(count), .shape = std::move(shape)};
}

TEST(Experts, AreThoseThatComputeAToken) {
  const ModelLayout separate = {
      .units = {
          {.name = "layer",
           .parameters = {
               parameter("layer.attention", {10, 10}), parameter("layer.shared_experts.w", {10, 10}),
               parameter("layer.mlp.experts.0.w1", {10, 10}), parameter("layer.mlp.experts.0.w2", {10, 10}),
               parameter("layer.mlp.experts.1.w1", {10, 10}), parameter("layer.mlp.experts.1.w2", {10, 10}),
               parameter("layer.mlp.experts.2.w1", {10, 10}), parameter("layer.mlp.experts.2.w2", {10, 10}),
               parameter("layer.mlp.experts.10.w1", {10, 10}),
               parameter("layer.mlp.experts.10.w2", {10, 10})}}}};
  EXPECT_TRUE(has_experts(separate));
  EXPECT_EQ(elements_of_token(separate, 1), ElementCount(400));
  EXPECT_EQ(elements_of_token(separate, 3), ElementCount(800));
  for (const std::uint64_t all : {0u, 4u, 100u})
    EXPECT_EQ(elements_of_token(separate, all), ElementCount(1000)) << all;

  const ModelLayout stacked = {.units = {{.name = "layer",
                                          .parameters = {parameter("layer.attention", {10, 10}),
                                                         parameter("layer.experts.up", {8, 10, 10}),
                                                         parameter("layer.experts.bias", {8, 10})}}}};
  EXPECT_TRUE(has_experts(stacked));
  EXPECT_EQ(elements_of_token(stacked, 2), ElementCount(100 + 200 + 80));
  EXPECT_FALSE(has_experts(layout_of(*find_preset("llama-3-8b"))));
}

// 46.7e9 parameters, of which a token uses 12.9e9: https://mistral.ai/news/mixtral-of-experts
TEST(Experts, OfMixtralUseTheParametersThatItsAuthorsName) {
  auto mixtral = NamedModel::load("mixtral-8x7b");
  ASSERT_TRUE(mixtral);
  EXPECT_NEAR(static_cast<double>(mixtral->used_by_token(0)->value()), 12.9e9, 0.05e9);
  EXPECT_TRUE(mixtral->notes.empty());
  EXPECT_NEAR(static_cast<double>(mixtral->used_by_token(8)->value()), 46.7e9, 0.05e9);

  // As if a file had given the same layout.
  mixtral->experts_of_token = 0;
  EXPECT_EQ(*mixtral->used_by_token(0), mixtral->layout.element_count());
  ASSERT_EQ(mixtral->notes.size(), 1u);
  EXPECT_NE(mixtral->notes[0].find("--experts-per-token"), std::string::npos);
}

TEST(Experts, AreRefusedOfAModelWithoutAny) {
  const auto refused = NamedModel::load("llama-3-8b")->used_by_token(2);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().fields().object, "--experts-per-token");
}

}  // namespace
}  // namespace penstock::zero::estimate
