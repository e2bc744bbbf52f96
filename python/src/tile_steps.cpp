// penstock._core._step_tiles: steps of many tiles in one call, which costs each less than a call of its own.
#include "bind.hpp"
#include "tile_state.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

constexpr const char* function = "_step_tiles";

/// The hyperparameters of a parameter group, converted once.
struct Group {
  nb::handle given;
  penstock_hyperparameters hyperparameters;
  float gradient_factor;
};

Group group_of(nb::handle given) {
  const auto [learning_rate, beta1, beta2, epsilon, weight_decay, gradient_factor] =
      nb::cast<std::tuple<float, float, float, float, float, float>>(given);
  return {given, hyperparameters_of(learning_rate, beta1, beta2, epsilon, weight_decay, true, true),
          gradient_factor};
}

struct Step {
  nb::tuple given;
  TileState& tile;
  std::shared_ptr<penstock_runtime> runtime;
  TileStep step;
};

/// The steps, whose hyperparameters are those of `groups`.
std::vector<Step> read(const nb::list& given, std::deque<Group>& groups) {
  std::vector<Step> steps;
  steps.reserve(nb::len(given));
  for (const nb::handle one : given) {
    auto fields = nb::cast<nb::tuple>(one);
    const nb::handle hyperparameters = fields[5];
    if (groups.empty() || !groups.back().given.is(hyperparameters))
      groups.push_back(group_of(hyperparameters));
    auto& tile = nb::cast<TileState&>(fields[0]);
    const TileStep step{
        .parameter = nb::cast<Address>(fields[1]),
        .gradient = nb::cast<Address>(fields[2]),
        .gradient_dtype = number_of(nb::cast<std::string>(fields[3]), dtypes, function, "dtype"),
        .number = nb::cast<std::uint64_t>(fields[4]),
        .hyperparameters = &groups.back().hyperparameters,
        .gradient_factor = groups.back().gradient_factor};
    steps.push_back({std::move(fields), tile, tile.runtime(function), step});
  }
  return steps;
}

/// Python's signal handlers run after the tile during which so much time has passed.
constexpr std::chrono::milliseconds signal_interval{50};

void step_tiles(const nb::list& given, const Workers* workers, nb::list& found) {
  const auto threads = get(workers, function);
  std::deque<Group> groups;
  const std::vector<Step> steps = read(given, groups);
  for (std::size_t i = 0; i < steps.size();) {
    std::vector<std::pair<std::size_t, std::int64_t>> non_finite;
    penstock_error* error = nullptr;
    {
      const WithoutGil released;
      const auto until = std::chrono::steady_clock::now() + signal_interval;
      do {
        std::int64_t element = -1;
        const Step& one = steps[i];
        error = one.tile.step(one.runtime.get(), one.step, threads.get(), &element);
        if (element >= 0) non_finite.emplace_back(i, element);
        ++i;
      } while (error == nullptr && i < steps.size() && std::chrono::steady_clock::now() < until);
    }
    for (const auto& [index, element] : non_finite) {
      const nb::tuple& fields = steps[index].given;
      found.append(nb::make_tuple(fields[6], nb::cast<std::int64_t>(fields[7]) + element));
    }
    check(error);
    if (i < steps.size() && PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

/// Writes a number to each address.
void set_counts(const std::vector<std::pair<Address, float>>& counts) {
  for (const auto& [address, number] : counts) *reinterpret_cast<float*>(address) = number;
}

}  // namespace

void bind_tile_steps(nb::module_& module) {
  module.def("_set_counts", &set_counts, nb::arg("counts"), "Writes to each address a number, as float32.");
  module.def("_step_tiles", &step_tiles, nb::arg("steps"), nb::arg("workers").none(), nb::arg("found"),
             R"(Makes steps of tiles in host memory, in this order.

Each is a tuple: a TileState, the addresses of parameter and gradient, the gradient's type, the number of the step, the
hyperparameters (learning rate, beta1, beta2, epsilon, weight decay, and the factor of gradients), any object, and an
integer. A tile that has completed the step already is left out. After an error or a signal handler's exception, the tiles
before have completed their steps. Appends to `found`, for each tile with a value that is not finite now, the object, and
the integer plus the first element of a block with one. The caller keeps the list of steps as it is meanwhile.)");
}

}  // namespace penstock::python
