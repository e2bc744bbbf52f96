#include <penstock/zero/layout/optimizer_group.hpp>

#include "base/number_text.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::zero {

namespace {

/// The settings by name, those that are empty left out.
std::vector<std::pair<const char*, double>> settings_of(const OptimizerGroup& group) {
  std::vector<std::pair<const char*, double>> settings = {
      {"learning_rate_factor", group.learning_rate_factor}};
  if (group.betas) {
    settings.emplace_back("betas[0]", (*group.betas)[0]);
    settings.emplace_back("betas[1]", (*group.betas)[1]);
  }
  if (group.epsilon) settings.emplace_back("epsilon", *group.epsilon);
  if (group.weight_decay) settings.emplace_back("weight_decay", *group.weight_decay);
  return settings;
}

/// The shortest number that is read back unchanged: ranks compare these texts.
std::string exact(double value) {
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

}  // namespace

Result<void> validate(const char* operation, std::span<const OptimizerGroup> groups) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].use_muon && groups[i].epsilon) {
      return Error::invalid_argument(operation)
          .object("groups[" + std::to_string(i) + "].epsilon")
          .reason("Muon, which updates the group, has none")
          .wanted("an empty one")
          .got(number_text(*groups[i].epsilon));
    }
    for (const auto& [name, value] : settings_of(groups[i])) {
      const bool is_beta = std::string_view(name).starts_with("betas");
      const auto single = static_cast<float>(value);
      if (value >= 0 && std::isfinite(single) && (!is_beta || single < 1)) continue;
      return Error::invalid_argument(operation)
          .object("groups[" + std::to_string(i) + "]." + name)
          .wanted(is_beta ? "at least 0 and, in single precision, below 1" : "a number from 0 to 3.4e38")
          .got(number_text(value));
    }
  }
  return ok();
}

std::string to_string(const OptimizerGroup& group) {
  std::string text = group.frozen ? "frozen" : group.use_muon ? "use_muon" : "";
  for (const auto& [name, value] : settings_of(group)) {
    text.append(text.empty() ? "" : " ").append(name).append(" ").append(exact(value));
  }
  return text;
}

}  // namespace penstock::zero
