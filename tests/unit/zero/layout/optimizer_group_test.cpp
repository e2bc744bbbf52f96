#include <penstock/zero/layout/optimizer_group.hpp>

#include <penstock/zero/layout/model_layout.hpp>

#include <gtest/gtest.h>
#include <array>
#include <limits>
#include <utility>

namespace penstock::zero {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

TEST(OptimizerGroup, RefusesASettingThatNoOptimizerTakes) {
  const std::array<std::pair<OptimizerGroup, const char*>, 7> wrong = {{
      {{.learning_rate_factor = -1}, "groups[1].learning_rate_factor"},
      {{.learning_rate_factor = nan}, "groups[1].learning_rate_factor"},
      {{.learning_rate_factor = 1e39}, "groups[1].learning_rate_factor"},
      {{.betas = {{0.9, 1}}}, "groups[1].betas[1]"},
      {{.betas = {{0.99999999999, 0}}}, "groups[1].betas[0]"},
      {{.epsilon = -1e-8}, "groups[1].epsilon"},
      {{.weight_decay = nan}, "groups[1].weight_decay"},
  }};
  for (const auto& [group, names] : wrong) {
    const std::array groups = {OptimizerGroup{}, group};
    const auto refused = validate("test", groups);
    ASSERT_FALSE(refused) << names;
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message().find(names), std::string::npos) << refused.error().message();

    ModelLayout model{.units = {{.name = "u", .parameters = {{"w", ElementCount(8), 0}}}},
                      .groups = {{}, group}};
    EXPECT_FALSE(model.validate()) << names;
  }
  const std::array usual = {
      OptimizerGroup{.learning_rate_factor = 0, .betas = {{0, 0.999}}, .epsilon = 0, .weight_decay = 0}};
  EXPECT_TRUE(validate("test", usual));
}

TEST(OptimizerGroup, IsWrittenWithTheSettingsThatItHas) {
  EXPECT_EQ(to_string(OptimizerGroup()), "learning_rate_factor 1");
  EXPECT_EQ(
      to_string(OptimizerGroup{.learning_rate_factor = 0.1,
                               .betas = {{0.5, 0.25}},
                               .epsilon = 1e-9,
                               .weight_decay = 0.30000000000000004}),
      "learning_rate_factor 0.1 betas[0] 0.5 betas[1] 0.25 epsilon 1e-09 weight_decay 0.30000000000000004");
}

}  // namespace
}  // namespace penstock::zero
