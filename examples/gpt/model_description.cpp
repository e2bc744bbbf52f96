#include "gpt/model_description.hpp"

#include "gpt/counter_random.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gpt {

namespace {

using penstock::ElementCount;

// GPT-2's rule: 0.02; for projections that are added to the residual stream, divided by the square root of the number
// of additions (Radford et al. 2019, section 2.3).
constexpr float deviation = 0.02f;

ParameterDescription matrix(std::string name, std::uint64_t rows, std::uint64_t columns, float spread) {
  return {.name = std::move(name),
          .count = ElementCount(rows * columns),
          .initial = {.deviation = spread},
          .weight_decay = true};
}
ParameterDescription vector(std::string name, std::uint64_t count, float constant) {
  return {.name = std::move(name), .count = ElementCount(count), .initial = {.constant = constant}};
}

UnitDescription embed(const ModelConfig& config) {
  return {.name = "embed",
          .parameters = {matrix("token_embedding", ModelConfig::vocabulary, config.width, deviation),
                         matrix("position_embedding", config.context, config.width, deviation / 2)},
          .uses = {}};
}

UnitDescription block(const ModelConfig& config, std::uint32_t layer) {
  const std::uint64_t width = config.width;
  const float residual = deviation / std::sqrt(2.0f * static_cast<float>(config.layers));
  return {.name = "block." + std::to_string(layer),
          .parameters = {vector("norm1.gain", width, 1), vector("norm1.bias", width, 0),
                         matrix("qkv.weight", 3 * width, width, deviation), vector("qkv.bias", 3 * width, 0),
                         matrix("proj.weight", width, width, residual), vector("proj.bias", width, 0),
                         vector("norm2.gain", width, 1), vector("norm2.bias", width, 0),
                         matrix("up.weight", 4 * width, width, deviation), vector("up.bias", 4 * width, 0),
                         matrix("down.weight", width, 4 * width, residual), vector("down.bias", width, 0)},
          .uses = {}};
}

UnitDescription head(const ModelConfig& config) {
  return {.name = "head",
          .parameters = {vector("norm.gain", config.width, 1), vector("norm.bias", config.width, 0)},
          .uses = {ParameterId{.unit = 0, .index = 0}}};
}

// The sum of four uniform 16-bit numbers: close to normal (|x| < 3.47), and computed exactly on every platform.
float standard_draw(std::uint64_t bits) {
  const auto sum = static_cast<std::int64_t>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) +
                                             (bits >> 48));
  constexpr float root3 = 1.7320508f;  // four uniforms on a unit interval have variance 1/3
  return static_cast<float>(sum - 2 * 0xffff) * (root3 / 65536.0f);
}

}  // namespace

ElementCount UnitDescription::element_count() const {
  ElementCount sum;
  for (const ParameterDescription& parameter : parameters) sum += parameter.count;
  return sum;
}

ModelDescription::ModelDescription(const ModelConfig& config) : width_(config.width), seed_(config.seed) {
  units_.push_back(embed(config));
  for (std::uint32_t layer = 0; layer < config.layers; ++layer) units_.push_back(block(config, layer));
  units_.push_back(head(config));
}

ElementCount ModelDescription::element_count() const {
  ElementCount sum;
  for (const UnitDescription& unit : units_) sum += unit.element_count();
  return sum;
}

ElementCount ModelDescription::scratch_count() const {
  // Of the embedding, the gradient of the tokens' table and one row of the positions'; of the others one parameter at a
  // time.
  const UnitDescription& embedding = units_.front();
  ElementCount most = embedding.parameters[0].count + ElementCount(width_);
  for (const UnitDescription& unit : std::span(units_).subspan(1)) {
    for (const ParameterDescription& parameter : unit.parameters) most = std::max(most, parameter.count);
  }
  return most;
}

std::uint64_t ModelDescription::number(ParameterId id) const {
  std::uint64_t result = id.index;
  for (std::size_t unit = 0; unit < id.unit; ++unit) result += units_[unit].parameters.size();
  return result;
}

float ModelDescription::initial_value(ParameterId id, std::uint64_t element) const {
  float value = 0;
  initial_values(id, element, {&value, 1});
  return value;
}

void ModelDescription::initial_values(ParameterId id, std::uint64_t first, std::span<float> values) const {
  const InitialRule rule = parameter(id).initial;
  const std::uint64_t stream = random_bits({seed_, number(id)});
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = rule.constant + rule.deviation * standard_draw(random_bits({stream, first + i}));
  }
}

}  // namespace gpt
