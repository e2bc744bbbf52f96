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

/// A tensor in host memory, by its methods.
class Memory {
 public:
  Memory(nb::handle tensor, const nb::str& address, const nb::str& bytes)
      : tensor_(tensor), address_(address), bytes_(bytes) {}
  [[nodiscard]] Address address() const { return nb::cast<Address>(tensor_.attr(address_)()); }
  [[nodiscard]] std::uint64_t bytes() const { return nb::cast<std::uint64_t>(tensor_.attr(bytes_)); }

 private:
  nb::handle tensor_;
  nb::handle address_, bytes_;
};

/// Of a parameter whose tiles make a step.
struct Given {
  nb::tuple fields;
  Memory parameter, gradient;
  Address parameter_address, gradient_address;
  const std::string* name;
};

struct Step {
  std::size_t given;
  TileState& tile;
  std::uint64_t first_element;  // in the given tensors
  std::shared_ptr<penstock_runtime> runtime;
  TileStep step;
};

std::uint64_t bytes_of(penstock_dtype dtype) {
  return dtype == PENSTOCK_FP32 ? 4 : 2;
}

/// What one call does. Python code, such as a signal handler, runs only in refresh(), and may change tensors there.
class Steps {
 public:
  explicit Steps(const nb::list& given) {
    given_.reserve(nb::len(given));
    steps_.reserve(nb::len(given));
    for (const nb::handle one : given) read(nb::cast<nb::tuple>(one));
  }
  [[nodiscard]] std::size_t size() const { return steps_.size(); }
  [[nodiscard]] const Step& operator[](std::size_t index) const { return steps_[index]; }

  /// Runs signal handlers. Throws what they raise, and FailedState if a tensor that steps from `next` on use is elsewhere
  /// then: its former memory may be another's.
  void refresh(std::size_t next) const {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    for (std::size_t i = steps_[next].given; i < given_.size(); ++i) {
      const Given& one = given_[i];
      if (one.parameter.address() == one.parameter_address && one.gradient.address() == one.gradient_address)
        continue;
      refuse({.function = function,
              .argument = one.name->c_str(),
              .reason = "it has got other memory during its update",
              .advice = "change parameters and gradients between steps",
              .code = PENSTOCK_FAILED_STATE});
    }
  }
  /// Appends what the caller is told of a tile with a value that is not finite.
  void report(const Step& step, std::int64_t element, nb::list& found) const {
    const nb::tuple& fields = given_[step.given].fields;
    const auto first = nb::cast<std::int64_t>(fields[7]) + static_cast<std::int64_t>(step.first_element);
    found.append(nb::make_tuple(fields[6], first + element));
  }

 private:
  void read(nb::tuple fields) {
    const nb::handle hyperparameters = fields[5];
    if (groups_.empty() || !groups_.back().given.is(hyperparameters))
      groups_.push_back(group_of(hyperparameters));
    const Memory parameter(fields[1], address_, bytes_), gradient(fields[2], address_, bytes_);
    TileStep step{.parameter = parameter.address(),
                  .gradient = gradient.address(),
                  .gradient_dtype = number_of(nb::cast<std::string>(fields[3]), dtypes, function, "dtype"),
                  .number = nb::cast<std::uint64_t>(fields[4]),
                  .hyperparameters = &groups_.back().hyperparameters,
                  .gradient_factor = groups_.back().gradient_factor};
    given_.push_back({fields, parameter, gradient, step.parameter, step.gradient, nullptr});
    std::uint64_t elements = 0;
    penstock_dtype dtype = PENSTOCK_FP32;
    for (const nb::handle each : nb::cast<nb::list>(fields[0])) {
      auto& tile = nb::cast<TileState&>(each);
      given_.back().name = &tile.name();
      steps_.push_back({given_.size() - 1, tile, elements, tile.runtime(function), step});
      dtype = tile.parameter_dtype();
      elements += tile.elements();
      step.parameter += tile.elements() * bytes_of(dtype);
      step.gradient += tile.elements() * bytes_of(step.gradient_dtype);
    }
    check_size("parameter", parameter, elements * bytes_of(dtype));
    check_size("gradient", gradient, elements * bytes_of(step.gradient_dtype));
  }
  static void check_size(const char* argument, const Memory& memory, std::uint64_t wanted) {
    const std::uint64_t got = memory.bytes();
    if (got >= wanted) return;
    refuse({.function = function,
            .argument = argument,
            .reason = "it does not have the elements of its tiles",
            .wanted = std::to_string(wanted) + " bytes or more",
            .got = std::to_string(got)});
  }

  nb::str address_{"data_ptr"}, bytes_{"nbytes"};
  std::deque<Group> groups_;
  std::vector<Given> given_;
  std::vector<Step> steps_;
};

/// Python's signal handlers run after the tile during which so much time has passed.
constexpr std::chrono::milliseconds signal_interval{50};

void step_tiles(const nb::list& given, const Workers* workers, nb::list& found) {
  const auto threads = get(workers, function);
  const Steps steps(given);
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
    for (const auto& [index, element] : non_finite) steps.report(steps[index], element, found);
    check(error);
    if (i < steps.size()) steps.refresh(i);
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

Each of `steps` is a tuple: a list of TileStates; the parameter and the gradient, with data_ptr() and nbytes, in which the
tiles' elements follow each other; the gradient's type; the number of the step; the hyperparameters (learning rate, beta1, beta2,
epsilon, weight decay, and the factor of gradients); any object, and an integer. A tile that has completed the step already
is left out. After an error or a signal handler's exception, the tiles before have completed their steps; FailedState is
raised when a handler has given a tensor other memory. Appends to `found`, for each tile with a value that is not finite now,
the object, and the integer plus the first element of a block with one. The caller keeps the list of steps as it is
meanwhile.)");
}

}  // namespace penstock::python
