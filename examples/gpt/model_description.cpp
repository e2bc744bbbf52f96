#include "gpt/model_description.hpp"

#include "gpt/counter_random.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
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
          .weight_decay = true,
          .shape = {rows, columns}};
}
ParameterDescription vector(std::string name, std::uint64_t count, float constant) {
  return {.name = std::move(name), .count = ElementCount(count), .initial = {.constant = constant}};
}

constexpr std::size_t parameters_of_embed = 2, parameters_of_block = 12, parameters_of_head = 2;

/// The names of a piece's two parameters, and the number of the first among its block's parameters, or adapters.
struct PieceNames {
  const char *first, *second;
  std::size_t number;
};
constexpr std::size_t adapters_of_block = 4;
PieceNames names_of(BlockPiece::Kind kind) {
  using Kind = BlockPiece::Kind;
  switch (kind) {
    case Kind::norm1: return {"norm1.gain", "norm1.bias", 0};
    case Kind::qkv: return {"qkv.weight", "qkv.bias", 2};
    case Kind::qkv_adapter: return {"qkv.lora_a", "qkv.lora_b", 0};
    case Kind::proj: return {"proj.weight", "proj.bias", 4};
    case Kind::proj_adapter: return {"proj.lora_a", "proj.lora_b", 2};
    case Kind::norm2: return {"norm2.gain", "norm2.bias", 6};
    case Kind::up: return {"up.weight", "up.bias", 8};
    case Kind::down: return {"down.weight", "down.bias", 10};
  }
  return {"unknown", "unknown", 0};
}

/// Adapters come after all other parameters, whose numbers do not depend on them.
std::size_t number_of(const BlockPiece& piece, const ModelConfig& config, std::uint32_t layer) {
  const std::size_t within = names_of(piece.kind).number;
  if (!piece.is_adapter()) return parameters_of_embed + parameters_of_block * layer + within;
  return parameters_of_embed + parameters_of_block * config.layers + parameters_of_head +
         adapters_of_block * layer + within;
}

/// A whole matrix of a block, which Muon may update.
ParameterDescription hidden_matrix(std::string name, std::uint64_t rows, std::uint64_t columns,
                                   float spread) {
  ParameterDescription description = matrix(std::move(name), rows, columns, spread);
  description.is_hidden_matrix = true;
  return description;
}

UnitDescription embed(const ModelConfig& config) {
  return {.name = "embed",
          .parameters = {matrix("token_embedding", ModelConfig::vocabulary, config.width, deviation),
                         matrix("position_embedding", config.context, config.width, deviation / 2)}};
}

/// The two parameters of a piece. Row blocks are named by their rows: "up.weight[64:128]".
std::vector<ParameterDescription> parameters_of(const BlockPiece& piece, const ModelConfig& config) {
  using Kind = BlockPiece::Kind;
  const PieceNames names = names_of(piece.kind);
  std::string rows;
  if (!piece.is_whole()) {
    rows.append("[").append(std::to_string(piece.first)).append(":");
    rows.append(std::to_string(piece.first + piece.outputs)).append("]");
  }
  if (piece.is_adapter()) {
    // As of Kaiming's rule with a slope of sqrt(5), which PyTorch's layers use; b of zeros leaves the model as it is.
    const float spread = 1 / std::sqrt(3.0f * static_cast<float>(piece.inputs));
    return {hidden_matrix(names.first, piece.rank, piece.inputs, spread),
            hidden_matrix(names.second, piece.outputs, piece.rank, 0)};
  }
  if (piece.inputs == 0)
    return {vector(names.first, piece.outputs, 1), vector(names.second, piece.outputs, 0)};
  const bool to_residual = piece.kind == Kind::proj || piece.kind == Kind::down;
  const float spread =
      to_residual ? deviation / std::sqrt(2.0f * static_cast<float>(config.layers)) : deviation;
  return {
      (piece.is_whole() ? hidden_matrix : matrix)(names.first + rows, piece.outputs, piece.inputs, spread),
      vector(names.second + rows, piece.outputs, 0)};
}

UnitDescription block_unit(const ModelConfig& config, std::uint32_t layer, std::vector<BlockPiece> pieces,
                           std::string name) {
  UnitDescription unit{.name = std::move(name), .parameters = {}, .layer = layer};
  for (const BlockPiece& piece : pieces) {
    std::vector<ParameterDescription> two = parameters_of(piece, config);
    const std::size_t number = number_of(piece, config, layer);
    const PieceNames names = names_of(piece.kind);
    const std::string block = "block." + std::to_string(layer) + ".";
    two[0].path = block + names.first;
    two[1].path = block + names.second;
    for (ParameterDescription& parameter : two) parameter.frozen = config.lora && !piece.is_adapter();
    two[0].number = number;
    two[0].first = std::uint64_t{piece.first} * piece.inputs;
    two[1].number = number + 1;
    two[1].first = piece.first;
    std::move(two.begin(), two.end(), std::back_inserter(unit.parameters));
  }
  unit.pieces = std::move(pieces);
  return unit;
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

ElementCount UnitDescription::trained_count() const {
  ElementCount sum;
  for (const ParameterDescription& parameter : parameters) {
    if (!parameter.frozen) sum += parameter.count;
  }
  return sum;
}

ModelDescription::ModelDescription(const ModelConfig& config) : width_(config.width), seed_(config.seed) {
  const auto number_from = [&](UnitDescription unit, std::uint64_t first) {
    for (ParameterDescription& parameter : unit.parameters) {
      parameter.number = first++;
      parameter.path = unit.name + "." + parameter.name;
      parameter.frozen = config.lora.has_value();
    }
    return unit;
  };
  const auto of_block = block_pieces(config).value();
  units_per_block_ = of_block.size();
  units_.push_back(number_from(embed(config), 0));
  for (std::uint32_t layer = 0; layer < config.layers; ++layer) {
    for (std::size_t part = 0; part < of_block.size(); ++part) {
      std::string name = "block." + std::to_string(layer);
      if (blocks_are_cut()) name.append(".part.").append(std::to_string(part));
      units_.push_back(block_unit(config, layer, of_block[part], std::move(name)));
    }
  }
  units_.push_back(number_from(head(config), parameters_of_embed + parameters_of_block * config.layers));
}

ElementCount ModelDescription::element_count() const {
  ElementCount sum;
  for (const UnitDescription& unit : units_) sum += unit.element_count();
  return sum;
}

ElementCount ModelDescription::trained_count() const {
  ElementCount sum;
  for (const UnitDescription& unit : units_) sum += unit.trained_count();
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

std::vector<BackwardVisit> ModelDescription::backward_visits(bool checkpoint) const {
  const auto count = static_cast<std::uint32_t>(units_.size());
  const auto parts = static_cast<std::uint32_t>(units_per_block_);
  std::vector<BackwardVisit> visits = {{.unit = count - 1, .recompute = false, .backward = true}};
  for (std::uint32_t last = count - 2; last > 0; last -= parts) {
    const std::uint32_t first = last - parts + 1;
    // The output of a block is the input of the next one, which is kept.
    const auto recomputes = [&](std::uint32_t unit) {
      return checkpoint && units_[unit].pieces.front().kind != BlockPiece::Kind::down;
    };
    for (std::uint32_t unit = first; unit < last; ++unit) {
      if (recomputes(unit)) visits.push_back({.unit = unit, .recompute = true, .backward = false});
    }
    visits.push_back({.unit = last, .recompute = recomputes(last), .backward = true});
    for (std::uint32_t unit = last; unit-- > first;) {
      visits.push_back({.unit = unit, .recompute = false, .backward = true});
    }
  }
  // Nothing before the embedding needs its gradient. Blocks have adapters, if not all is trained.
  if (!units_[0].trained_count().is_zero())
    visits.push_back({.unit = 0, .recompute = false, .backward = true});
  return visits;
}

float ModelDescription::initial_value(ParameterId id, std::uint64_t element) const {
  float value = 0;
  initial_values(id, element, {&value, 1});
  return value;
}

void ModelDescription::initial_values(ParameterId id, std::uint64_t first, std::span<float> values) const {
  const ParameterDescription& described = parameter(id);
  const InitialRule rule = described.initial;
  const std::uint64_t stream = random_bits({seed_, described.number});
  first += described.first;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = rule.constant + rule.deviation * standard_draw(random_bits({stream, first + i}));
  }
}

}  // namespace gpt
