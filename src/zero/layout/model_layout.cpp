#include <penstock/zero/layout/model_layout.hpp>

#include "base/utf8.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_set>

namespace penstock::zero {

ElementCount ModelLayout::element_count() const {
  ElementCount total;
  for (const UnitLayout& unit : units) {
    for (const ParameterLayout& parameter : unit.parameters) total += parameter.count;
  }
  return total;
}

const ParameterLayout& ModelLayout::parameter(ParameterId id) const {
  static const ParameterLayout none;
  const bool exists = id.unit < units.size() && id.index < units[id.unit].parameters.size();
  return exists ? units[id.unit].parameters[id.index] : none;
}

std::vector<ParameterId> ModelLayout::parameters_of(std::uint32_t unit) const {
  std::vector<ParameterId> ids;
  if (unit >= units.size()) return ids;
  for (std::uint32_t i = 0; i < units[unit].parameters.size(); ++i) ids.push_back({unit, i});
  ids.insert(ids.end(), units[unit].shared.begin(), units[unit].shared.end());
  return ids;
}

namespace {

std::string text_of(std::span<const std::uint64_t> shape) {
  std::string text;
  for (const std::uint64_t length : shape)
    text.append(text.empty() ? "" : " x ").append(std::to_string(length));
  return text;
}

/// None if it is larger than 64 bits can count.
std::optional<ElementCount> element_count(std::span<const std::uint64_t> shape) {
  std::uint64_t count = 1;
  for (const std::uint64_t length : shape) {
    if (length != 0 && count > std::numeric_limits<std::uint64_t>::max() / length) return std::nullopt;
    count *= length;
  }
  return ElementCount(count);
}

Result<void> check_shape(const std::string& name, const ParameterLayout& parameter,
                         const OptimizerGroup& group) {
  const auto invalid = [&](const char* reason) {
    return Error::invalid_argument("ModelLayout::validate").reason(reason).object(name);
  };
  const bool is_muons = group.use_muon && !group.frozen;
  if (is_muons && !parameter.is_matrix()) {
    return invalid("its optimizer group uses Muon, which needs a matrix")
        .wanted("a shape of rows and columns")
        .got(parameter.shape.empty() ? "none" : text_of(parameter.shape))
        .advice("give the matrix's shape, or put the parameter into a group without use_muon");
  }
  if (parameter.shape.empty()) return ok();
  if (parameter.shape.size() > ModelLayout::dimensions_max) {
    return invalid("a shape with too many dimensions")
        .wanted("at most " + std::to_string(ModelLayout::dimensions_max))
        .got(parameter.shape.size());
  }
  if (is_muons && std::max(parameter.rows(), parameter.columns()) > ModelLayout::matrix_side_max) {
    return invalid("a matrix with too many rows or columns")
        .wanted("at most " + std::to_string(ModelLayout::matrix_side_max) + " of each")
        .got(text_of(parameter.shape));
  }
  if (element_count(parameter.shape) == parameter.count) return ok();
  return invalid("the product of its shape is not its count")
      .wanted(to_string(parameter.count))
      .got(text_of(parameter.shape))
      .advice("correct the shape, or leave it out");
}

Error invalid(std::string object, std::string reason) {
  return Error::invalid_argument("ModelLayout::validate").reason(std::move(reason)).object(std::move(object));
}

/// Of a name, which is printed and is written to files of other programs.
std::optional<std::size_t> first_not_text(const std::string& name) {
  const auto control =
      std::find_if(name.begin(), name.end(), [](unsigned char one) { return one < 0x20 || one == 0x7f; });
  if (control != name.end()) return control - name.begin();
  return first_not_utf8(name);
}

Result<void> check_checkpoints(const CheckpointLayout& checkpoints) {
  const auto& [count, size, leased_max, reads] = checkpoints;
  if (count == 0) return ok();
  if (count > ModelLayout::checkpoints_max) {
    return invalid("checkpoints", "too many")
        .wanted("at most " + std::to_string(ModelLayout::checkpoints_max))
        .got(count);
  }
  if (size.is_zero()) return invalid("checkpoints", "a checkpoint has at least one byte");
  if (leased_max == 0)
    return invalid("checkpoints", "leased_max is 0: a trainer leases one at a time at least");
  if (constexpr std::uint32_t reads_max = 1 << 16; reads > reads_max) {
    return invalid("checkpoints", "too many reads").wanted("at most " + std::to_string(reads_max)).got(reads);
  }
  if (size <= ModelLayout::checkpoint_bytes_max / count) return ok();
  return invalid("checkpoints", "too many bytes")
      .wanted("at most " + to_string(ModelLayout::checkpoint_bytes_max) + " in all")
      .got(std::to_string(count) + " of " + to_string(size));
}

}  // namespace

Result<void> ModelLayout::validate() const {
  const auto too_large = [](std::string object, ElementCount wanted, ElementCount got) -> Result<void> {
    return Error::invalid_argument("ModelLayout::validate")
        .reason("too many elements")
        .object(std::move(object))
        .wanted("at most " + to_string(wanted))
        .got(got);
  };
  ElementCount of_model;
  std::unordered_set<std::string> names;
  if (units.empty()) return invalid("model", "a model has at least one unit");
  for (std::uint32_t u = 0; u < units.size(); ++u) {
    const UnitLayout& unit = units[u];
    if (unit.parameters.empty() && unit.shared.empty())
      return invalid(unit.name, "a unit has at least one parameter");
    ElementCount of_unit;
    for (const ParameterLayout& parameter : unit.parameters) {
      const std::string name = unit.name + "." + parameter.name;
      if (unit.name.empty() || parameter.name.empty())
        return invalid(name, "a unit and each of its parameters have a name");
      if (const auto bad = first_not_text(name)) {
        return invalid("byte " + std::to_string(*bad) + " of the name of parameter " +
                           std::to_string(&parameter - unit.parameters.data()) + " of unit " +
                           std::to_string(u),
                       "a name is a text in UTF-8 without control characters");
      }
      if (!names.insert(name).second) {
        return invalid(name, "two parameters of a model have different names")
            .advice("give each unit a name of its own");
      }
      if (parameter.count.is_zero()) return invalid(name, "a parameter has at least one element");
      if (parameter.count > unit_elements_max) return too_large(name, unit_elements_max, parameter.count);
      of_unit += parameter.count;
      if (of_unit > unit_elements_max) return too_large(unit.name, unit_elements_max, of_unit);
      if (parameter.group >= groups.size()) {
        return invalid(name, "its optimizer group does not exist")
            .wanted("a number below " + std::to_string(groups.size()))
            .got(parameter.group);
      }
      PENSTOCK_TRY(check_shape(name, parameter, groups[parameter.group]));
    }
    of_model += of_unit;
    if (of_model > model_elements_max) return too_large("model", model_elements_max, of_model);
    std::set<ParameterId> seen;
    for (const ParameterId& shared : unit.shared) {
      if (shared.unit >= units.size() || shared.index >= units[shared.unit].parameters.size()) {
        return invalid(unit.name, "a shared parameter does not exist")
            .got("unit " + std::to_string(shared.unit) + ", parameter " + std::to_string(shared.index));
      }
      if (shared.unit == u) return invalid(unit.name, "a unit cannot share a parameter with itself");
      if (!seen.insert(shared).second) return invalid(unit.name, "a parameter is shared twice");
    }
  }
  PENSTOCK_TRY(zero::validate("ModelLayout::validate", groups));
  return check_checkpoints(checkpoints);
}

}  // namespace penstock::zero
