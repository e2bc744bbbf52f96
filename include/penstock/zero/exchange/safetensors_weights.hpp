#pragma once

#include <penstock/base/result.hpp>
#include <penstock/zero/engine/engine.hpp>
#include <penstock/zero/layout/model_layout.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace penstock::zero {

/// Weights in safetensors files, as the initial values of a model.
///
///     auto weights = SafetensorsWeights::open(layout, {.path = "models/llama"}).value();
///     weights.initialize(engine).value();             // instead of engine.initialize(fill)
///
/// F32, F16, BF16 and F64 are read, and keep their values: an F64 that fp32 does not hold is an error. Only the values
/// that are asked for are read; in memory are the headers and one piece of a tensor. Used by one thread; each rank has
/// its own.
class SafetensorsWeights {
 public:
  struct Options {
    /// A safetensors file, an index of such files (*.safetensors.index.json), or a directory with model.safetensors or
    /// model.safetensors.index.json.
    std::filesystem::path path;
    /// The name of a parameter's tensor; empty: "unit.parameter", as penstock export writes it.
    std::function<std::string(ParameterId parameter)> name = {};
    /// Leaves out tensors that are no parameter's, see unused(), instead of refusing them.
    bool allow_unused = false;
  };

  /// Reads the headers, and checks that each parameter of `model` has a tensor of its shape; of a parameter whose shape
  /// is not known, of its number of elements. Blocks.
  ///
  /// Errors: not_found and permission, of the files; not_found, naming the tensor that is missing and the nearest name;
  /// invalid_argument, naming the tensor: one of another shape or type, one that no parameter has, one that two have,
  /// and for a file of another format; truncated, for a file that is cut; those of ModelLayout::validate().
  [[nodiscard]] static Result<SafetensorsWeights> open(const ModelLayout& model, Options options);
  SafetensorsWeights(SafetensorsWeights&& other) noexcept;
  SafetensorsWeights& operator=(SafetensorsWeights&& other) noexcept;
  ~SafetensorsWeights();

  /// Sets the initial values of an engine with the model of open(), as Engine::initialize() does. Collective.
  ///
  /// Errors: those of read() and of Engine::restore().
  Result<void> initialize(Engine& engine);
  /// Values [first, first + values.size()) of `parameter`. Blocks.
  ///
  /// Errors: invalid_argument, for values that the model does not have, and for a number that is not one of fp32, with
  /// the element and its place in the file; truncated and io.
  Result<void> read(ParameterId parameter, std::uint64_t first, std::span<float> values);
  /// The tensors that are no parameter's, ascending; with Options::allow_unused.
  [[nodiscard]] const std::vector<std::string>& unused() const;

 private:
  struct State;
  explicit SafetensorsWeights(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace penstock::zero
