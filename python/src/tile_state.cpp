// penstock.TileState: the state of a Tile in a Runtime, which moves between host memory and disk.
#include "arguments.hpp"
#include "bind.hpp"
#include "device_adam.hpp"
#include "runtime.hpp"
#include "tile.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::python {

namespace {

using Address = std::uintptr_t;

const Choices devices{{"cpu", PENSTOCK_DEVICE_HOST}, {"cuda", PENSTOCK_DEVICE_CUDA}};

/// Adds 1 to the float at each address.
void count_up(const std::vector<Address>& numbers) {
  for (const Address number : numbers) *reinterpret_cast<float*>(number) += 1;
}

/// Of a state, which a device reads and writes meanwhile.
class StateLease {
 public:
  StateLease(penstock_lease* lease, void* data, std::uint64_t bytes)
      : handle_(lease, "StateLease"), data_(data), bytes_(bytes) {}
  [[nodiscard]] Address address() const { return reinterpret_cast<Address>(data_); }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  void end() { handle_.close(); }

 private:
  Handle<penstock_lease, penstock_lease_end> handle_;
  void* data_;
  std::uint64_t bytes_;
};

class TileState {
 public:
  TileState(const Runtime& runtime, const std::string& name, std::uint64_t elements, const std::string& dtype,
            const std::string& format, std::uint64_t first_element, bool in_memory)
      : runtime_(runtime.handle()),
        tile_{.size = sizeof(tile_),
              .elements = elements,
              .parameter_dtype = number_of(dtype, dtypes, "TileState", "dtype"),
              .format = number_of(format, state_formats, "TileState", "format"),
              .optimizer = PENSTOCK_ADAM,
              .first_element = first_element} {
    std::uint64_t bytes = 0;
    check(penstock_tile_state_bytes(tile_.format, tile_.optimizer, elements, &bytes));
    const penstock_tensor_options options{.size = sizeof(options),
                                          .name = name.c_str(),
                                          .bytes = bytes,
                                          .in_memory = in_memory ? 1 : 0,
                                          .write_behind = 1};
    const auto owner = runtime_->get("TileState");
    run([&] { return penstock_runtime_add(owner.get(), &options, &tensor_); });
  }

  std::optional<std::int64_t> step(Address parameter, Address gradient, const std::string& gradient_dtype,
                                   std::uint64_t number, float learning_rate, float beta1, float beta2,
                                   float epsilon, float weight_decay, float gradient_factor,
                                   const Workers* workers) {
    constexpr const char* function = "TileState.step";
    if (number == completed_) return std::nullopt;
    const auto threads = get(workers, function);
    const penstock_hyperparameters hyperparameters =
        hyperparameters_of(learning_rate, beta1, beta2, epsilon, weight_decay, true, true);
    penstock_tile tile = tile_;
    tile.gradient = reinterpret_cast<const void*>(gradient);
    tile.gradient_dtype = number_of(gradient_dtype, dtypes, function, "gradient_dtype");
    penstock_update_outcome outcome{.size = sizeof(outcome), .non_finite_element = -1};
    with_state(function, is_empty_ ? PENSTOCK_OVERWRITE : PENSTOCK_MODIFY, tile, parameter, [&] {
      penstock_error* error = is_empty_ ? initialize(tile, threads.get()) : nullptr;
      if (error != nullptr) return error;
      return penstock_tile_step(&tile, &hyperparameters, number, gradient_factor, threads.get(), &outcome);
    });
    is_empty_ = false;
    completed_ = number;
    if (outcome.non_finite_element < 0) return std::nullopt;
    return outcome.non_finite_element;
  }

  /// Before the first step, as step() does it.
  void initialize(Address parameter, const Workers* workers) {
    const auto threads = get(workers, "TileState.initialize");
    penstock_tile tile = tile_;
    with_state("TileState.initialize", PENSTOCK_OVERWRITE, tile, parameter,
               [&] { return initialize(tile, threads.get()); });
    is_empty_ = false;
  }
  [[nodiscard]] std::unique_ptr<StateLease> lease() {
    const auto runtime = runtime_->get("TileState.lease");
    penstock_lease* lease = nullptr;
    void* data = nullptr;
    std::uint64_t bytes = 0;
    run([&] { return penstock_lease_begin(runtime.get(), tensor_, PENSTOCK_MODIFY, &lease, &data, &bytes); });
    return std::make_unique<StateLease>(lease, data, bytes);
  }
  void enqueue_step(const DeviceAdam& adam, Address stream, Address state, Address parameter,
                    Address gradient, const std::string& gradient_dtype, std::uint64_t number,
                    float learning_rate, float beta1, float beta2, float epsilon, float weight_decay,
                    float gradient_factor, Address non_finite_block) const {
    constexpr const char* function = "TileState.enqueue_step";
    const auto update = adam.get(function);
    const penstock_hyperparameters hyperparameters =
        hyperparameters_of(learning_rate, beta1, beta2, epsilon, weight_decay, true, true);
    penstock_tile tile = tile_;
    tile.state = reinterpret_cast<void*>(state);
    tile.parameter = reinterpret_cast<void*>(parameter);
    tile.gradient = reinterpret_cast<const void*>(gradient);
    tile.gradient_dtype = number_of(gradient_dtype, dtypes, function, "gradient_dtype");
    run([&] {
      return penstock_device_adam_step(update.get(), reinterpret_cast<void*>(stream), &tile, &hyperparameters,
                                       number, gradient_factor,
                                       reinterpret_cast<std::uint64_t*>(non_finite_block));
    });
  }
  void complete(std::uint64_t number) { completed_ = number; }

  void read(const std::string& kind, Address parameter, Address into) {
    constexpr const char* function = "TileState.read";
    const std::int32_t number = number_of(kind, state_kinds, function, "kind");
    penstock_tile tile = tile_;
    with_state(function, PENSTOCK_READ, tile, parameter, [&] {
      return penstock_tile_read(&tile, number, 0, tile.elements, reinterpret_cast<float*>(into));
    });
  }

  void restore(Address parameter, Address master, Address first, Address second, std::uint64_t completed,
               const Workers* workers) {
    constexpr const char* function = "TileState.restore";
    const auto threads = get(workers, function);
    penstock_tile tile = tile_;
    with_state(function, PENSTOCK_OVERWRITE, tile, parameter, [&] {
      return penstock_tile_restore(&tile, reinterpret_cast<const float*>(master),
                                   reinterpret_cast<const float*>(first),
                                   reinterpret_cast<const float*>(second), threads.get());
    });
    is_empty_ = false;
    completed_ = completed;
  }

  void reset() {
    is_empty_ = true;
    completed_ = 0;
  }
  void prefetch() {
    if (is_empty_) return;
    const auto runtime = runtime_->get("TileState.prefetch");
    run([&] { return penstock_runtime_prefetch(runtime.get(), tensor_); });
  }
  [[nodiscard]] std::uint64_t elements() const { return tile_.elements; }
  [[nodiscard]] std::uint64_t completed() const { return completed_; }
  [[nodiscard]] bool is_empty() const { return is_empty_; }

 private:
  /// Calls `update` with the state in host memory, without the GIL.
  template <class Update>
  void with_state(const char* function, penstock_access access, penstock_tile& tile, Address parameter,
                  const Update& update) {
    const auto runtime = runtime_->get(function);
    tile.parameter = reinterpret_cast<void*>(parameter);
    run([&]() -> penstock_error* {
      penstock_lease* lease = nullptr;
      penstock_error* error =
          penstock_lease_begin(runtime.get(), tensor_, access, &lease, &tile.state, nullptr);
      if (error == nullptr) error = update();
      penstock_lease_end(lease);
      return error;
    });
  }
  /// A tile must not be made of values in the memory that it writes.
  static penstock_error* initialize(const penstock_tile& tile, penstock_workers* workers) {
    const auto* bytes = static_cast<const std::byte*>(tile.parameter);
    const std::uint64_t size = tile.elements * (tile.parameter_dtype == PENSTOCK_FP32 ? 4 : 2);
    const std::vector<std::byte> initial(bytes, bytes + size);
    return penstock_tile_initialize(&tile, initial.data(), tile.parameter_dtype, workers);
  }

  std::shared_ptr<Runtime::Owner> runtime_;
  penstock_tile tile_;
  penstock_tensor tensor_ = 0;
  bool is_empty_ = true;
  std::uint64_t completed_ = 0;  // the step whose results it holds
};

}  // namespace

DeviceAdam::DeviceAdam(const std::string& device, std::int32_t ordinal) {
  const std::int32_t number = number_of(device, devices, "DeviceAdam", "device");
  penstock_device_adam* made = nullptr;
  run([&] { return penstock_device_adam_create(number, ordinal, &made); });
  handle_ = {made, "DeviceAdam"};
}

void bind_tile_state(nb::module_& module) {
  module.def("_count_up", &count_up, nb::arg("numbers"), "Adds 1 to the float32 at each address.");
  nb::class_<DeviceAdam>(module, "DeviceAdam",
                         "Updates tiles in the memory of a device: \"cuda\", or \"cpu\", for tests.")
      .def(nb::init<const std::string&, std::int32_t>(), nb::arg("device"), nb::arg("ordinal"));
  nb::class_<StateLease>(module, "StateLease",
                         "A TileState's bytes in host memory, where they stay meanwhile.")
      .def_prop_ro("address", &StateLease::address)
      .def_prop_ro("nbytes", &StateLease::bytes)
      .def("end", &StateLease::end);
  nb::class_<TileState>(module, "TileState",
                        R"(The state of a penstock.Tile, AdamW's, in a tensor of a Runtime.

The parts of penstock.torch are made of it. Addresses are of `elements` contiguous elements in host memory, which the
caller keeps alive; `master` and moments are float32. Its first step begins with moments of 0 and the parameter as
master. One thread at a time calls it.)")
      .def(nb::init<const Runtime&, const std::string&, std::uint64_t, const std::string&, const std::string&,
                    std::uint64_t, bool>(),
           nb::arg("runtime"), nb::arg("name"), nb::arg("elements"), nb::arg("dtype"), nb::arg("format"),
           nb::arg("first_element"), nb::arg("in_memory"))
      .def("step", &TileState::step, nb::arg("parameter"), nb::arg("gradient"), nb::arg("gradient_dtype"),
           nb::arg("number"), nb::arg("learning_rate"), nb::arg("beta1"), nb::arg("beta2"),
           nb::arg("epsilon"), nb::arg("weight_decay"), nb::arg("gradient_factor"), nb::arg("workers").none(),
           "Makes step `number`, or nothing, if that is the one that it has completed. Returns the first "
           "element of a block with a value that is not finite now, or None.")
      .def("initialize", nb::overload_cast<Address, const Workers*>(&TileState::initialize),
           nb::arg("parameter"), nb::arg("workers").none(),
           "Makes it as step() finds it before the first step.")
      .def("lease", &TileState::lease,
           "Its bytes, for a device that updates them. They are loaded, if they are not in memory.")
      .def("enqueue_step", &TileState::enqueue_step, nb::arg("adam"), nb::arg("stream"), nb::arg("state"),
           nb::arg("parameter"), nb::arg("gradient"), nb::arg("gradient_dtype"), nb::arg("number"),
           nb::arg("learning_rate"), nb::arg("beta1"), nb::arg("beta2"), nb::arg("epsilon"),
           nb::arg("weight_decay"), nb::arg("gradient_factor"), nb::arg("non_finite_block"),
           "Makes step `number` on a device, in the order of `stream`. All addresses are of the device, that "
           "of the "
           "state too. complete() follows, once its bytes are back.")
      .def("complete", &TileState::complete, nb::arg("number"))
      .def_prop_ro("is_empty", &TileState::is_empty, "Whether it has no contents.")
      .def("read", &TileState::read, nb::arg("kind"), nb::arg("parameter"), nb::arg("into"),
           "Writes \"master\", \"first_moment\" or \"second_moment\" to `into`, in float32.")
      .def("restore", &TileState::restore, nb::arg("parameter"), nb::arg("master"), nb::arg("first_moment"),
           nb::arg("second_moment"), nb::arg("completed"), nb::arg("workers").none(),
           "Sets all states, after step `completed`, and writes the parameter.")
      .def("reset", &TileState::reset, "Makes it as it was before its first step.")
      .def("prefetch", &TileState::prefetch, "Hints that it is used soon.")
      .def_prop_ro("elements", &TileState::elements)
      .def_prop_ro("completed", &TileState::completed, "The step whose results it holds; 0: none.");
}

}  // namespace penstock::python
