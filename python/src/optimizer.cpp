// penstock.Tile and penstock.Workers: updates of elements in memory of the caller.
#include "arguments.hpp"
#include "bind.hpp"
#include "handle.hpp"
#include "memory.hpp"
#include "tile.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <optional>
#include <string>

namespace penstock::python {

namespace {

std::uint64_t state_bytes(const std::string& format, const Count& elements, const std::string& optimizer) {
  std::uint64_t bytes = 0;
  check(penstock_tile_state_bytes(number_of(format, state_formats, "state_bytes", "format"),
                                  number_of(optimizer, optimizers, "state_bytes", "optimizer"),
                                  elements.get("state_bytes", "elements"), &bytes));
  return bytes;
}

/// Values of float32, as many as `count` says, if it does.
Elements floats_of(nb::handle object, Use use, std::optional<std::uint64_t> count, const char* function,
                   const char* argument) {
  Elements values = Elements::of(object, use, function, argument);
  if (values.dtype == PENSTOCK_FP32 && (!count || *count == values.count)) return values;
  refuse({.function = function,
          .argument = argument,
          .reason = "its size or its type is another one",
          .wanted = (count ? std::to_string(*count) + " elements of " : "") + std::string("float32"),
          .got = std::to_string(values.count) + ", of type " + values.memory.type_name()});
}
const float* floats(const std::optional<Elements>& values) {
  return values ? reinterpret_cast<const float*>(values->memory.data()) : nullptr;
}

class Tile {
 public:
  Tile(nb::handle state, nb::handle parameter, const std::string& format, const std::string& optimizer,
       std::uint64_t first_element)
      : state_(Memory::of(state, Use::write, "Tile", "state")),
        parameter_(Elements::of(parameter, Use::write, "Tile", "parameter")) {
    tile_ = {.size = sizeof(tile_),
             .state = state_.data(),
             .parameter = parameter_.memory.data(),
             .elements = parameter_.count,
             .parameter_dtype = parameter_.dtype,
             .format = number_of(format, state_formats, "Tile", "format"),
             .optimizer = number_of(optimizer, optimizers, "Tile", "optimizer"),
             .first_element = first_element};
    std::uint64_t wanted = 0;
    check(penstock_tile_state_bytes(tile_.format, tile_.optimizer, tile_.elements, &wanted));
    if (state_.bytes() == wanted) return;
    refuse({.function = "Tile",
            .argument = "state",
            .reason = "its size is another one",
            .wanted = std::to_string(wanted) + " bytes, of " + std::to_string(tile_.elements) +
                      " elements in " + format,
            .got = std::to_string(state_.bytes()),
            .advice = "make it of state_bytes()"});
  }

  void initialize(nb::handle initial, const Workers* workers) {
    constexpr const char* function = "Tile.initialize";
    const auto own_workers = get(workers, function);
    const Elements values = Elements::of(initial, Use::read, function, "initial");
    check_count(values, function, "initial");
    run([&] {
      return penstock_tile_initialize(&tile_, values.memory.data(), values.dtype, own_workers.get());
    });
  }

  std::optional<std::int64_t> step(nb::handle gradient, std::uint64_t number, float learning_rate,
                                   float beta1, float beta2, float epsilon, float weight_decay,
                                   bool decoupled_decay, bool bias_correction, float gradient_factor,
                                   const Workers* workers) {
    constexpr const char* function = "Tile.step";
    const auto own_workers = get(workers, function);
    const Elements gradients = Elements::of(gradient, Use::read, function, "gradient");
    check_count(gradients, function, "gradient");
    const penstock_hyperparameters hyperparameters = hyperparameters_of(
        learning_rate, beta1, beta2, epsilon, weight_decay, decoupled_decay, bias_correction);
    penstock_tile tile = tile_;
    tile.gradient = gradients.memory.data();
    tile.gradient_dtype = gradients.dtype;
    penstock_update_outcome outcome{.size = sizeof(outcome), .non_finite_element = -1};
    run([&] {
      return penstock_tile_step(&tile, &hyperparameters, number, gradient_factor, own_workers.get(),
                                &outcome);
    });
    if (outcome.non_finite_element < 0) return std::nullopt;
    return outcome.non_finite_element;
  }

  void read(const std::string& kind, nb::handle into, std::uint64_t first) {
    constexpr const char* function = "Tile.read";
    const Elements values = floats_of(into, Use::write, std::nullopt, function, "into");
    const std::int32_t number = number_of(kind, state_kinds, function, "kind");
    run([&] {
      return penstock_tile_read(&tile_, number, first, values.count,
                                reinterpret_cast<float*>(values.memory.data()));
    });
  }

  void restore(nb::handle master, std::optional<nb::object> first, std::optional<nb::object> second,
               const Workers* workers) {
    constexpr const char* function = "Tile.restore";
    const auto own_workers = get(workers, function);
    const std::optional<Elements> masters = floats_of(master, Use::read, tile_.elements, function, "master");
    std::optional<Elements> moments[2];
    if (first) moments[0] = floats_of(*first, Use::read, tile_.elements, function, "first_moment");
    if (second) moments[1] = floats_of(*second, Use::read, tile_.elements, function, "second_moment");
    run([&] {
      return penstock_tile_restore(&tile_, floats(masters), floats(moments[0]), floats(moments[1]),
                                   own_workers.get());
    });
  }

  [[nodiscard]] std::uint64_t elements() const { return tile_.elements; }

 private:
  void check_count(const Elements& given, const char* function, const char* argument) const {
    if (given.count == tile_.elements) return;
    refuse({.function = function,
            .argument = argument,
            .reason = "its size is another one",
            .wanted = std::to_string(tile_.elements) + " elements",
            .got = std::to_string(given.count) + ", of type " + given.memory.type_name()});
  }

  Memory state_;
  Elements parameter_;
  penstock_tile tile_{};  // of their memory, without a gradient
};

/// Addresses are of `elements` contiguous elements in host memory, which the caller keeps.
std::optional<std::int64_t> adam_step(std::uintptr_t parameter, std::uintptr_t gradient,
                                      std::uintptr_t first_moment, std::uintptr_t second_moment,
                                      std::uint64_t elements, const std::string& dtype,
                                      const std::string& gradient_dtype, const std::string& moment_dtype,
                                      std::uint64_t number, float learning_rate, float beta1, float beta2,
                                      float epsilon, float weight_decay, bool decoupled_decay,
                                      bool bias_correction, const Workers* workers) {
  constexpr const char* function = "adam_step";
  const auto threads = get(workers, function);
  const penstock_adam_arrays arrays{
      .size = sizeof(arrays),
      .parameter = reinterpret_cast<void*>(parameter),
      .gradient = reinterpret_cast<const void*>(gradient),
      .first_moment = reinterpret_cast<void*>(first_moment),
      .second_moment = reinterpret_cast<void*>(second_moment),
      .elements = elements,
      .parameter_dtype = number_of(dtype, dtypes, function, "dtype"),
      .gradient_dtype = number_of(gradient_dtype, dtypes, function, "gradient_dtype"),
      .moment_dtype = number_of(moment_dtype, dtypes, function, "moment_dtype")};
  const penstock_hyperparameters hyperparameters = hyperparameters_of(
      learning_rate, beta1, beta2, epsilon, weight_decay, decoupled_decay, bias_correction);
  penstock_update_outcome outcome{.size = sizeof(outcome), .non_finite_element = -1};
  run([&] { return penstock_adam_step(&arrays, &hyperparameters, number, 1, threads.get(), &outcome); });
  if (outcome.non_finite_element < 0) return std::nullopt;
  return outcome.non_finite_element;
}

double square_sum(std::uintptr_t values, const std::string& dtype, std::uint64_t elements,
                  const Workers* workers) {
  constexpr const char* function = "square_sum";
  const auto threads = get(workers, function);
  const std::int32_t number = number_of(dtype, dtypes, function, "dtype");
  double sum = 0;
  run([&] {
    return penstock_square_sum(reinterpret_cast<const void*>(values), number, elements, threads.get(), &sum);
  });
  return sum;
}

}  // namespace

void bind_optimizer(nb::module_& module) {
  nb::class_<Workers>(
      module, "Workers",
      "Threads that share the work of updates: `threads`, the calling one included, 1 to 1024. Any "
      "thread may use them.")
      .def(nb::init<const Count&>(), nb::arg("threads"));
  module.def("state_bytes", &state_bytes, nb::arg("format"), nb::arg("elements"), nb::kw_only(),
             nb::arg("optimizer") = "adam", "The bytes of the state of a Tile.");
  module.def("_adam_step", &adam_step, nb::arg("parameter"), nb::arg("gradient"), nb::arg("first_moment"),
             nb::arg("second_moment"), nb::arg("elements"), nb::arg("dtype"), nb::arg("gradient_dtype"),
             nb::arg("moment_dtype"), nb::arg("number"), nb::arg("learning_rate"), nb::arg("beta1"),
             nb::arg("beta2"), nb::arg("epsilon"), nb::arg("weight_decay"), nb::arg("decoupled_decay"),
             nb::arg("bias_correction"), nb::arg("workers").none(),
             "One step of Adam on arrays at addresses in host memory. Returns the first element of a block "
             "with a value that is not finite now, or None.");
  module.def("_square_sum", &square_sum, nb::arg("values"), nb::arg("dtype"), nb::arg("elements"),
             nb::arg("workers").none(),
             "The sum of the squares of elements at an address in host memory, in double precision.");
  nb::class_<Tile>(module, "Tile", R"(Elements that are updated together, in memory of the caller.

state: state_bytes() bytes. parameter: float32, bfloat16 (in numpy: uint16) or float16. format: "fp32", "split",
"split_bf16", "split_q8", "moments" or "moments_bf16"; see docs/optimizer.md. optimizer: "adam", "lion" or "adagrad".
first_element: the number of the first element in the model, which seeds stochastic rounding.

A tile keeps the memory of both from being freed. One thread at a time calls it.)")
      .def(nb::init<nb::handle, nb::handle, const std::string&, const std::string&, std::uint64_t>(),
           nb::arg("state").none(), nb::arg("parameter").none(), nb::kw_only(), nb::arg("format") = "fp32",
           nb::arg("optimizer") = "adam", nb::arg("first_element") = 0)
      .def("initialize", &Tile::initialize, nb::arg("initial").none(), nb::arg("workers") = nb::none(),
           "Sets the masters to `initial`, other memory than the parameter's, and the moments to 0; and "
           "writes the "
           "parameter.")
      .def(
          "step", &Tile::step, nb::arg("gradient").none(), nb::arg("number"), nb::kw_only(),
          nb::arg("learning_rate"), nb::arg("beta1") = 0.9f, nb::arg("beta2") = 0.999f,
          nb::arg("epsilon") = 1e-8f, nb::arg("weight_decay") = 0.0f, nb::arg("decoupled_decay") = true,
          nb::arg("bias_correction") = true, nb::arg("gradient_factor") = 1.0f,
          nb::arg("workers") = nb::none(),
          R"(Updates the tile. number: of the step, from 1. decoupled_decay: True as AdamW. gradient_factor unscales and
clips the gradient. Returns the first element of the first block of 16384 with a value that is not finite now, or None.

Bits are equal for every number of threads and every instruction set.)")
      .def(
          "read", &Tile::read, nb::arg("kind"), nb::arg("into").none(), nb::arg("first") = 0,
          R"(Fills `into`, of float32, with elements of a state from `first` on. kind: "master", "first_moment" or
"second_moment".)")
      .def("restore", &Tile::restore, nb::arg("master").none(), nb::arg("first_moment") = nb::none(),
           nb::arg("second_moment") = nb::none(), nb::arg("workers") = nb::none(),
           "Sets all states, in float32, and writes the parameter. A moment that the optimizer does not keep "
           "is None.")
      .def_prop_ro("elements", &Tile::elements);
}

}  // namespace penstock::python
