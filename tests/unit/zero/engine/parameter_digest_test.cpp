#include "zero/engine/parameter_digest.hpp"

#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <vector>

namespace penstock::zero {
namespace {

ModelLayout two_parameters(const char* second = "bias") {
  return {.units = {{.name = "unit",
                     .parameters = {{"weight", ElementCount(1000), 0}, {second, ElementCount(300), 0}}}}};
}

std::vector<float> ramp(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
  return values;
}

std::string whole(const ModelLayout& model, std::vector<float> weight, std::vector<float> bias) {
  ParameterDigest digest(model);
  digest.add({0, 0}, 0, weight);
  digest.add({0, 1}, 0, bias);
  return digest.to_string();
}

TEST(ParameterDigest, IsTheSameForAnyPartsInAnyOrderOnAnyNumberOfRanks) {
  const ModelLayout model = two_parameters();
  const auto weight = ramp(1000), bias = ramp(300);
  const std::string expected = whole(model, weight, bias);
  test::SeededRandom random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<ParameterDigest> ranks(1 + random.below(4), ParameterDigest(model));
    for (const auto& [id, values] :
         {std::pair(ParameterId{0, 1}, &bias), std::pair(ParameterId{0, 0}, &weight)}) {
      for (std::size_t at = 0; at < values->size();) {
        const std::size_t count =
            std::min<std::size_t>(ParameterDigest::chunk * (1 + random.below(3)), values->size() - at);
        ranks[random.below(ranks.size())].add(id, at, std::span(*values).subspan(at, count));
        at += count;
      }
    }
    ParameterDigest sum(model);
    for (const ParameterDigest& rank : ranks) sum.add(rank.sum());
    EXPECT_EQ(sum.to_string(), expected);
  }
}

TEST(ParameterDigest, DoesNotDependOnTheDivisionIntoUnits) {
  const ModelLayout split = {.units = {{.name = "first", .parameters = {{"weight", ElementCount(1000), 0}}},
                                       {.name = "second", .parameters = {{"bias", ElementCount(300), 0}}}}};
  ParameterDigest digest(split);
  digest.add({0, 0}, 0, ramp(1000));
  digest.add({1, 0}, 0, ramp(300));

  EXPECT_EQ(digest.to_string(), whole(two_parameters(), ramp(1000), ramp(300)));
}

TEST(ParameterDigest, ChangesWithAnyValueNameOrPlace) {
  const std::string reference = whole(two_parameters(), ramp(1000), ramp(300));
  EXPECT_EQ(reference.size(), 32u);
  EXPECT_NE(whole(two_parameters("offset"), ramp(1000), ramp(300)), reference);
  auto changed = ramp(1000);
  changed[999] = -changed[999];
  EXPECT_NE(whole(two_parameters(), changed, ramp(300)), reference);
  auto swapped = ramp(1000);
  std::swap_ranges(swapped.begin(), swapped.begin() + 128, swapped.begin() + 128);
  EXPECT_NE(whole(two_parameters(), swapped, ramp(300)), reference);
  const ModelLayout reversed = {
      .units = {{.name = "unit",
                 .parameters = {{"bias", ElementCount(300), 0}, {"weight", ElementCount(1000), 0}}}}};
  EXPECT_NE(whole(reversed, ramp(300), ramp(1000)), reference);
}

}  // namespace
}  // namespace penstock::zero
