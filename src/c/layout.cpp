#include "c/layout.hpp"

#include <penstock/zero/layout/optimizer_group.hpp>

#include <span>

namespace penstock::c {

Result<zero::OptimizerGroup> read_group(const char* function, const penstock_group_options* given) {
  PENSTOCK_TRY_ASSIGN(const auto from, read_struct(function, "options", given));
  constexpr std::uint32_t all = PENSTOCK_GROUP_LEARNING_RATE_FACTOR | PENSTOCK_GROUP_BETAS |
                                PENSTOCK_GROUP_EPSILON | PENSTOCK_GROUP_WEIGHT_DECAY;
  if ((from.given & ~all) != 0) {
    return Error::invalid_argument(function)
        .object("options.given")
        .wanted("the sum of some PENSTOCK_GROUP_...")
        .got(from.given);
  }
  const auto has = [&from](std::uint32_t member) { return (from.given & member) != 0; };
  zero::OptimizerGroup group{.frozen = from.frozen != 0, .use_muon = from.use_muon != 0};
  if (has(PENSTOCK_GROUP_LEARNING_RATE_FACTOR)) group.learning_rate_factor = from.learning_rate_factor;
  if (has(PENSTOCK_GROUP_BETAS)) group.betas = {from.beta1, from.beta2};
  if (has(PENSTOCK_GROUP_EPSILON)) group.epsilon = from.epsilon;
  if (has(PENSTOCK_GROUP_WEIGHT_DECAY)) group.weight_decay = from.weight_decay;
  PENSTOCK_TRY(zero::validate(function, std::span(&group, 1)));
  return group;
}

}  // namespace penstock::c

namespace {

using namespace penstock;

Result<void> check_unit(const char* function, const char* argument, const zero::ModelLayout& model,
                        std::uint32_t unit) {
  if (unit < model.units.size()) return ok();
  return Error::invalid_argument(function)
      .object(argument)
      .reason("the layout has no such unit")
      .wanted("less than " + std::to_string(model.units.size()))
      .got(unit);
}

}  // namespace

penstock_error* penstock_layout_create(penstock_layout** layout) {
  return c::call(__func__, {{"layout", layout}}, [&]() -> Result<void> {
    c::give(layout, penstock_layout{});
    return ok();
  });
}

void penstock_layout_free(penstock_layout* layout) {
  delete layout;
}

penstock_error* penstock_layout_add_group(penstock_layout* layout, const penstock_group_options* options,
                                          std::uint32_t* group) {
  const char* const function = __func__;
  return c::call(function, {{"layout", layout}, {"options", options}, {"group", group}},
                 [&]() -> Result<void> {
                   PENSTOCK_TRY_ASSIGN(auto added, c::read_group(function, options));
                   layout->model.groups.push_back(std::move(added));
                   *group = static_cast<std::uint32_t>(layout->model.groups.size() - 1);
                   return ok();
                 });
}

penstock_error* penstock_layout_add_unit(penstock_layout* layout, const char* name, std::uint32_t* unit) {
  return c::call(__func__, {{"layout", layout}, {"name", name}}, [&]() -> Result<void> {
    layout->model.units.push_back({.name = name, .parameters = {}});
    if (unit != nullptr) *unit = static_cast<std::uint32_t>(layout->model.units.size() - 1);
    return ok();
  });
}

penstock_error* penstock_layout_add_parameter(penstock_layout* layout, std::uint32_t unit,
                                              const penstock_parameter_options* options,
                                              std::uint32_t* parameter) {
  const char* const function = __func__;
  return c::call(function, {{"layout", layout}, {"options", options}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto from, c::read_struct(function, "options", options));
    PENSTOCK_TRY(c::check_not_null(function, {{"options.name", from.name}, {"options.shape", from.shape}}));
    PENSTOCK_TRY(check_unit(function, "unit", layout->model, unit));
    constexpr std::size_t most = zero::ModelLayout::dimensions_max;
    if (from.dimensions == 0 || from.dimensions > most) {
      return Error::invalid_argument(function)
          .object("options.dimensions of " + std::string(from.name))
          .wanted("1 to " + std::to_string(most))
          .got(from.dimensions);
    }
    zero::ParameterLayout added{.name = from.name, .count = ElementCount(1), .group = from.group};
    std::uint64_t count = 1;
    for (std::size_t i = 0; i < from.dimensions; ++i) {
      added.shape.push_back(from.shape[i]);
      if (__builtin_mul_overflow(count, from.shape[i], &count)) {
        return Error::invalid_argument(function)
            .object("options.shape of " + std::string(from.name))
            .reason("its product does not fit 64 bits");
      }
    }
    added.count = ElementCount(count);
    auto& parameters = layout->model.units[unit].parameters;
    parameters.push_back(std::move(added));
    if (parameter != nullptr) *parameter = static_cast<std::uint32_t>(parameters.size() - 1);
    return ok();
  });
}

penstock_error* penstock_layout_share(penstock_layout* layout, std::uint32_t unit, std::uint32_t owner,
                                      std::uint32_t parameter) {
  const char* const function = __func__;
  return c::call(function, {{"layout", layout}}, [&]() -> Result<void> {
    PENSTOCK_TRY(check_unit(function, "unit", layout->model, unit));
    PENSTOCK_TRY(check_unit(function, "owner", layout->model, owner));
    if (const std::size_t count = layout->model.units[owner].parameters.size(); parameter >= count) {
      return Error::invalid_argument(function)
          .object("parameter")
          .reason("unit " + layout->model.units[owner].name + " has no such parameter")
          .wanted("less than " + std::to_string(count))
          .got(parameter);
    }
    layout->model.units[unit].shared.push_back({owner, parameter});
    return ok();
  });
}

penstock_error* penstock_layout_set_activations(penstock_layout* layout, std::uint32_t count,
                                                std::uint64_t bytes, std::uint32_t leased_max) {
  return c::call(__func__, {{"layout", layout}}, [&]() -> Result<void> {
    layout->model.checkpoints = {.count = count, .size = ByteCount(bytes), .leased_max = leased_max};
    return ok();
  });
}
