#pragma once

#include "arguments.hpp"
#include "device_adam.hpp"
#include "runtime.hpp"
#include "tile.hpp"

#include <nanobind/stl/string.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace penstock::python {

using Address = std::uintptr_t;

/// What TileState::step() makes of a parameter.
struct TileStep {
  Address parameter, gradient;
  penstock_dtype gradient_dtype;
  std::uint64_t number;
  const penstock_hyperparameters* hyperparameters;
  float gradient_factor;
};

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

/// penstock._core.TileState.
class TileState {
 public:
  TileState(const Runtime& runtime, const std::string& name, std::uint64_t elements, const std::string& dtype,
            const std::string& format, std::uint64_t first_element, bool in_memory)
      : runtime_(runtime.handle()),
        name_(name),
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

  /// Makes a step, unless it has completed that one. Without the GIL.
  penstock_error* step(penstock_runtime* runtime, const TileStep& step, penstock_workers* workers,
                       std::int64_t* non_finite) {
    *non_finite = -1;
    if (step.number == completed_) return nullptr;
    penstock_tile tile = tile_;
    tile.gradient = reinterpret_cast<const void*>(step.gradient);
    tile.gradient_dtype = step.gradient_dtype;
    penstock_update_outcome outcome{.size = sizeof(outcome), .non_finite_element = -1};
    penstock_error* error =
        with_state(runtime, is_empty_ ? PENSTOCK_OVERWRITE : PENSTOCK_MODIFY, tile, step.parameter, [&] {
          penstock_error* failed = is_empty_ ? initialize(tile, workers) : nullptr;
          if (failed != nullptr) return failed;
          return penstock_tile_step(&tile, step.hyperparameters, step.number, step.gradient_factor, workers,
                                    &outcome);
        });
    if (error != nullptr) return error;
    is_empty_ = false;
    completed_ = step.number;
    *non_finite = outcome.non_finite_element;
    return nullptr;
  }

  /// Before the first step, as step() does it.
  void initialize(Address parameter, const Workers* workers) {
    constexpr const char* function = "TileState.initialize";
    const auto threads = get(workers, function);
    penstock_tile tile = tile_;
    with_state(function, PENSTOCK_OVERWRITE, tile, parameter,
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

  [[nodiscard]] std::shared_ptr<penstock_runtime> runtime(const char* function) const {
    return runtime_->get(function);
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
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] penstock_dtype parameter_dtype() const { return tile_.parameter_dtype; }
  [[nodiscard]] std::uint64_t elements() const { return tile_.elements; }
  [[nodiscard]] std::uint64_t completed() const { return completed_; }
  [[nodiscard]] bool is_empty() const { return is_empty_; }

 private:
  /// Calls `update` with the state in host memory. Without the GIL.
  template <class Update>
  penstock_error* with_state(penstock_runtime* runtime, penstock_access access, penstock_tile& tile,
                             Address parameter, const Update& update) {
    tile.parameter = reinterpret_cast<void*>(parameter);
    penstock_lease* lease = nullptr;
    penstock_error* error = penstock_lease_begin(runtime, tensor_, access, &lease, &tile.state, nullptr);
    if (error == nullptr) error = update();
    penstock_lease_end(lease);
    return error;
  }
  /// The same, with the GIL, which it releases. Throws.
  template <class Update>
  void with_state(const char* function, penstock_access access, penstock_tile& tile, Address parameter,
                  const Update& update) {
    const auto runtime = runtime_->get(function);
    run([&] { return with_state(runtime.get(), access, tile, parameter, update); });
  }
  /// A tile must not be made of values in the memory that it writes.
  static penstock_error* initialize(const penstock_tile& tile, penstock_workers* workers) {
    const auto* bytes = static_cast<const std::byte*>(tile.parameter);
    const std::uint64_t size = tile.elements * (tile.parameter_dtype == PENSTOCK_FP32 ? 4 : 2);
    const std::vector<std::byte> initial(bytes, bytes + size);
    return penstock_tile_initialize(&tile, initial.data(), tile.parameter_dtype, workers);
  }

  std::shared_ptr<Runtime::Owner> runtime_;
  std::string name_;
  penstock_tile tile_;
  penstock_tensor tensor_ = 0;
  bool is_empty_ = true;
  std::uint64_t completed_ = 0;  // the step whose results it holds
};

}  // namespace penstock::python
