#include "zero/estimate/tensor_units.hpp"

#include "zero/config/json_text.hpp"
#include "zero/estimate/model_presets.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <tuple>

namespace penstock::zero::estimate {

namespace {

using exchange::TensorEntry;

/// Where a tensor stands in the order of the forward.
struct Place {
  enum class Part : std::uint8_t { embedding, layer, head };
  Part part = Part::head;
  bool after_encoder = false;  ///< a decoder's
  std::string stack;           ///< "model.layers"
  std::uint64_t number = 0;    ///< of the layer

  bool operator<(const Place& other) const {
    return std::tie(part, after_encoder, stack, number) <
           std::tie(other.part, other.after_encoder, other.stack, other.number);
  }
  [[nodiscard]] std::string unit_name() const {
    if (part == Part::layer) return config::printable(stack) + "." + std::to_string(number);
    return part == Part::embedding ? "embedding" : "head";
  }
};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

/// The layer that the name begins with: what stands before the first part that is a number, and that number.
std::optional<Place> layer_of(const std::string& name) {
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    std::uint64_t number = 0;
    const auto parsed = std::from_chars(name.data() + begin, name.data() + end, number);
    if (begin > 0 && end < name.size() && end > begin && parsed.ptr == name.data() + end &&
        parsed.ec == std::errc()) {
      const std::string stack = name.substr(0, begin - 1);
      return Place{Place::Part::layer, contains(stack, "decoder"), stack, number};
    }
    begin = end + 1;
  }
  return std::nullopt;
}

/// Whether the last parts of the name are these: "lm_head.weight", but not "my_lm_head.weight".
bool ends_with_parts(std::string_view name, std::string_view parts) {
  return name.ends_with(parts) &&
         (name.size() == parts.size() || name[name.size() - parts.size() - 1] == '.');
}

bool is_embedding(std::string_view name) {
  for (const std::string_view part : {"embed", "wte", "wpe", "shared.weight"}) {
    // embed_out is GPT-NeoX's head.
    if (contains(name, part) && !contains(name, "embed_out")) return true;
  }
  return false;
}

bool is_token_embedding(std::string_view name) {
  for (const std::string_view end : {"embed_tokens.weight", "wte.weight", "word_embeddings.weight",
                                     "tok_embeddings.weight", "embed_in.weight"}) {
    if (ends_with_parts(name, end)) return true;
  }
  return false;
}

bool is_head_matrix(std::string_view name) {
  for (const std::string_view end : {"lm_head.weight", "output.weight", "embed_out.weight"}) {
    if (ends_with_parts(name, end)) return true;
  }
  return false;
}

/// Masks and tables of positions that files of older models have among their parameters.
bool is_buffer(const TensorEntry& tensor) {
  const std::string_view name = tensor.name;
  return name.ends_with(".masked_bias") || name.ends_with("rotary_emb.inv_freq") ||
         (name.ends_with(".bias") && tensor.shape.size() == 4 && tensor.shape[0] == 1 &&
          tensor.shape[1] == 1);
}

bool is_parameter(const TensorEntry& tensor) {
  return tensor.is_floating_point && !tensor.count.is_zero() && !is_buffer(tensor);
}

/// Stacks of a single layer are none: "classifier.0.weight".
std::map<std::string, std::size_t> layers_of_stacks(const std::vector<TensorEntry>& tensors) {
  std::map<std::string, std::map<std::uint64_t, bool>> numbers;
  for (const TensorEntry& tensor : tensors) {
    if (const auto place = layer_of(tensor.name)) numbers[place->stack][place->number] = true;
  }
  std::map<std::string, std::size_t> layers;
  for (const auto& [stack, of_stack] : numbers) layers[stack] = of_stack.size();
  return layers;
}

void note_left_out(std::size_t count, ByteCount bytes, std::vector<std::string>& notes) {
  if (count == 0) return;
  notes.push_back(
      std::to_string(count) + " tensors of " + to_string(bytes) +
      " are left out, because masks, positions and integers are no parameters; a quantized model has "
      "more parameters than are counted here");
}

/// Where the head has no matrix of its own.
void tie_head(ModelLayout& layout, std::vector<std::string>& notes) {
  UnitLayout& head = layout.units.back();
  if (layout.units.size() < 2 || head.name != "head") return;
  if (std::any_of(head.parameters.begin(), head.parameters.end(),
                  [](const ParameterLayout& one) { return is_head_matrix(one.name); })) {
    return;
  }
  const auto& embedding = layout.units.front().parameters;
  for (std::uint32_t i = 0; i < embedding.size(); ++i) {
    if (!is_token_embedding(embedding[i].name)) continue;
    head.shared.push_back({.unit = 0, .index = i});
    notes.push_back("the head has no matrix of its own and uses " + config::printable(embedding[i].name));
    return;
  }
}

}  // namespace

void set_shape(ParameterLayout& parameter, std::span<const std::uint64_t> shape) {
  if (shape.size() > ModelLayout::dimensions_max) return;
  if (shape.size() == 2 && std::max(shape[0], shape[1]) > ModelLayout::matrix_side_max) return;
  parameter.shape.assign(shape.begin(), shape.end());
}

bool is_hidden_matrix(const ParameterLayout& parameter) {
  if (!parameter.is_matrix() || is_embedding(parameter.name)) return false;
  return layer_of(parameter.name) || !is_head_matrix(parameter.name);
}

Result<ModelLayout> units_of_tensors(const std::vector<TensorEntry>& tensors,
                                     std::vector<std::string>& notes) {
  const auto layers = layers_of_stacks(tensors);
  std::map<Place, std::vector<const TensorEntry*>> units;
  std::size_t left_out = 0;
  ByteCount left_out_bytes;
  for (const TensorEntry& tensor : tensors) {
    if (!is_parameter(tensor)) {
      ++left_out;
      left_out_bytes += tensor.end - tensor.begin;
      continue;
    }
    std::optional<Place> place = layer_of(tensor.name);
    if (!place || layers.at(place->stack) < 2) {
      place = Place{is_embedding(tensor.name) ? Place::Part::embedding : Place::Part::head, false, {}, 0};
    }
    units[*place].push_back(&tensor);
  }
  note_left_out(left_out, left_out_bytes, notes);
  if (units.empty()) {
    return Error::invalid_argument("units_of_tensors")
        .reason("the file has no parameters")
        .wanted("tensors of F32, F16, BF16, F64 or F8")
        .got(std::to_string(tensors.size()) + " tensors of other types");
  }
  ModelLayout layout{.groups = groups_by_decay()};
  for (const auto& [place, members] : units) {
    UnitLayout& unit = layout.units.emplace_back();
    unit.name = place.unit_name();
    for (const TensorEntry* tensor : members) {
      unit.parameters.push_back({.name = config::printable(tensor->name),
                                 .count = tensor->count,
                                 .group = tensor->shape.size() <= 1 ? 1u : 0u});
      set_shape(unit.parameters.back(), tensor->shape);
    }
  }
  tie_head(layout, notes);
  PENSTOCK_TRY(layout.validate());
  return layout;
}

}  // namespace penstock::zero::estimate
