#include <penstock/zero/exchange/safetensors_weights.hpp>

#include "zero/config/json_text.hpp"
#include "zero/exchange/states_description.hpp"
#include "zero/exchange/tensor_files.hpp"

#include <map>
#include <set>
#include <utility>

namespace penstock::zero {

struct SafetensorsWeights::State {
  ModelLayout model;
  std::map<ParameterId, std::string> names;
  exchange::TensorFiles files;
  std::vector<std::string> unused = {};
};

SafetensorsWeights::SafetensorsWeights(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsWeights::SafetensorsWeights(SafetensorsWeights&& other) noexcept = default;
SafetensorsWeights& SafetensorsWeights::operator=(SafetensorsWeights&& other) noexcept = default;
SafetensorsWeights::~SafetensorsWeights() = default;

Result<SafetensorsWeights> SafetensorsWeights::open(const ModelLayout& model, Options options) {
  constexpr const char* operation = "SafetensorsWeights::open";
  PENSTOCK_TRY(model.validate());
  PENSTOCK_TRY_ASSIGN(exchange::TensorFiles files, exchange::TensorFiles::open(options.path, "model"));
  auto state = std::make_unique<State>(State{.model = model, .files = std::move(files)});
  std::set<std::string> used;
  for (const ParameterId id : exchange::owned_parameters(model)) {
    const ParameterLayout& parameter = model.parameter(id);
    std::string name = options.name ? options.name(id) : exchange::full_name(model, id);
    PENSTOCK_TRY(state->files.check(name, parameter.count, parameter.shape));
    if (!used.insert(name).second) {
      return Error::invalid_argument(operation)
          .object("tensor " + config::printable(name))
          .reason("two parameters have it")
          .got(exchange::full_name(model, id))
          .advice("share the parameter in the layout, see UnitLayout::shared");
    }
    state->names[id] = std::move(name);
  }
  for (std::string& name : state->files.names()) {
    if (!used.contains(name)) state->unused.push_back(std::move(name));
  }
  if (options.allow_unused || state->unused.empty()) return SafetensorsWeights(std::move(state));
  return Error::invalid_argument(operation)
      .object(options.path.string() + ", tensor " + config::printable(state->unused.front()))
      .reason("no parameter of the model has this tensor")
      .got(std::to_string(state->unused.size()) + " such tensors")
      .advice("correct the layout, or set allow_unused if they are masks, positions or the like");
}

Result<void> SafetensorsWeights::initialize(Engine& engine) {
  return engine.restore(0,
                        [this](ParameterId parameter, cpu_adam::StateKind kind, std::uint64_t first,
                               std::span<float> values) -> Result<void> {
                          if (kind != cpu_adam::StateKind::master) return ok();  // moments are 0
                          return read(parameter, first, values);
                        });
}

Result<void> SafetensorsWeights::read(ParameterId parameter, std::uint64_t first, std::span<float> values) {
  const std::uint64_t count = state_->model.parameter(parameter).count.value();
  if (first > count || values.size() > count - first) {
    return Error::invalid_argument("SafetensorsWeights::read")
        .object("parameter " + std::to_string(parameter.index) + " of unit " + std::to_string(parameter.unit))
        .wanted(std::to_string(count) + " elements, at most")
        .got("from " + std::to_string(first) + " on, " + std::to_string(values.size()));
  }
  if (values.empty()) return ok();
  return state_->files.read(state_->names.at(parameter), first, values);
}

const std::vector<std::string>& SafetensorsWeights::unused() const {
  return state_->unused;
}

}  // namespace penstock::zero
