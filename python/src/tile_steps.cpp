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

/// What the hyperparameters of a group are.
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
  TileState* tile;
  std::shared_ptr<penstock_runtime> runtime;
  TileStep step;
};

/// The steps, whose hyperparameters are those of `groups`.
std::vector<Step> read(const nb::list& given, std::deque<Group>& groups) {
  std::vector<Step> steps;
  steps.reserve(nb::len(given));
  for (const nb::handle one : given) {
    const auto fields = nb::cast<nb::tuple>(one);
    const nb::handle hyperparameters = fields[5];
    if (groups.empty() || !groups.back().given.is(hyperparameters))
      groups.push_back(group_of(hyperparameters));
    auto* const tile = nb::cast<TileState*>(fields[0]);
    steps.push_back(
        {tile,
         tile->runtime(function),
         {.parameter = nb::cast<Address>(fields[1]),
          .gradient = nb::cast<Address>(fields[2]),
          .gradient_dtype = number_of(nb::cast<std::string>(fields[3]), dtypes, function, "dtype"),
          .number = nb::cast<std::uint64_t>(fields[4]),
          .hyperparameters = &groups.back().hyperparameters,
          .gradient_factor = groups.back().gradient_factor}});
  }
  return steps;
}

/// Signals are handled between tiles, at most so long after they came.
constexpr std::chrono::milliseconds signal_interval{50};

std::vector<std::pair<std::size_t, std::int64_t>> step_tiles(const nb::list& given, const Workers* workers) {
  const auto threads = get(workers, function);
  std::deque<Group> groups;
  const std::vector<Step> steps = read(given, groups);
  std::vector<std::pair<std::size_t, std::int64_t>> found;
  for (std::size_t i = 0; i < steps.size();) {
    run([&] {
      const auto until = std::chrono::steady_clock::now() + signal_interval;
      penstock_error* error = nullptr;
      do {
        std::int64_t non_finite = -1;
        error = steps[i].tile->step(steps[i].runtime.get(), steps[i].step, threads.get(), &non_finite);
        if (non_finite >= 0) found.emplace_back(i, non_finite);
        ++i;
      } while (error == nullptr && i < steps.size() && std::chrono::steady_clock::now() < until);
      return error;
    });
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  return found;
}

/// Adds 1 to the float at each address.
void count_up(const std::vector<Address>& numbers) {
  for (const Address number : numbers) *reinterpret_cast<float*>(number) += 1;
}

}  // namespace

void bind_tile_steps(nb::module_& module) {
  module.def("_count_up", &count_up, nb::arg("numbers"), "Adds 1 to the float32 at each address.");
  module.def("_step_tiles", &step_tiles, nb::arg("steps"), nb::arg("workers").none(),
             R"(Makes steps of tiles in host memory, in this order.

Each is a tuple: a TileState, the addresses of parameter and gradient, the gradient's type, the number of the step, and the
hyperparameters: learning rate, beta1, beta2, epsilon, weight decay, and the factor of gradients. A tile that has completed
the step already is left out. Returns pairs: the index of a step after which a value is not finite, and the first element
of a block of the tile with one. The caller keeps the list as it is meanwhile.)");
}

}  // namespace penstock::python
