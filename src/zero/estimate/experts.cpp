#include "zero/estimate/experts.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace penstock::zero::estimate {

namespace {

/// The experts that a parameter belongs to.
struct PartOfExperts {
  std::string_view mixture;  ///< the name up to its experts
  std::string_view expert;   ///< its number; empty of a stack
  std::uint64_t stacked = 0;
};

std::optional<PartOfExperts> part_of_experts(const ParameterLayout& parameter) {
  constexpr std::string_view experts = "experts.";
  const std::string_view name = parameter.name;
  const std::size_t at = name.find(experts);
  if (at == name.npos || (at > 0 && name[at - 1] != '.')) return std::nullopt;  // such as shared_experts
  const std::string_view rest = name.substr(at + experts.size());
  const std::string_view number = rest.substr(0, rest.find('.'));
  if (!number.empty() && number.find_first_not_of("0123456789") == number.npos)
    return PartOfExperts{.mixture = name.substr(0, at), .expert = number};
  if (parameter.shape.size() != 3) return std::nullopt;
  return PartOfExperts{.mixture = name.substr(0, at), .expert = {}, .stacked = parameter.shape.front()};
}

/// The parameters of one mixture.
struct Mixture {
  std::set<std::string_view> experts;
  std::uint64_t stacked = 0;  ///< the most experts of a stack
  double elements = 0;

  [[nodiscard]] std::uint64_t count() const { return std::max<std::uint64_t>(experts.size(), stacked); }
};

std::map<std::string_view, Mixture> mixtures_of(const ModelLayout& model) {
  std::map<std::string_view, Mixture> mixtures;
  for (const UnitLayout& unit : model.units) {
    for (const ParameterLayout& parameter : unit.parameters) {
      const auto part = part_of_experts(parameter);
      if (!part) continue;
      Mixture& mixture = mixtures[part->mixture];
      if (!part->expert.empty()) mixture.experts.insert(part->expert);
      mixture.stacked = std::max(mixture.stacked, part->stacked);
      mixture.elements += static_cast<double>(parameter.count.value());
    }
  }
  return mixtures;
}

}  // namespace

bool has_experts(const ModelLayout& model) {
  return !mixtures_of(model).empty();
}

ElementCount elements_of_token(const ModelLayout& model, std::uint64_t of_token) {
  double unused = 0;
  if (of_token > 0) {
    for (const auto& [name, mixture] : mixtures_of(model)) {
      const auto count = static_cast<double>(mixture.count());
      unused += mixture.elements * (1 - std::min(static_cast<double>(of_token) / count, 1.0));
    }
  }
  return model.element_count() - ElementCount(static_cast<std::uint64_t>(unused));
}

}  // namespace penstock::zero::estimate
