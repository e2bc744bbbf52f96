#include "zero/estimate/model_presets.hpp"

#include <algorithm>

namespace penstock::zero::estimate {

namespace {

using enum ModelShape::Family;

constexpr std::string_view gpt2_source =
                               "Radford et al. 2019, table 2; config.json of openai-community/gpt2*",
                           llama2_source =
                               "Touvron et al. 2023 (Llama 2); config.json of meta-llama/Llama-2-*",
                           llama3_source = "Llama team 2024, table 3; config.json of meta-llama/Llama-3*",
                           llama32_source = "config.json of meta-llama/Llama-3.2-*",
                           qwen_source = "Qwen2.5 technical report, table 1; config.json of Qwen/Qwen2.5-*",
                           mixtral_source =
                               "Jiang et al. 2024 (Mixtral); config.json of mistralai/Mixtral-*-v0.1";

ModelShape gpt2_shape(std::string_view name, std::uint64_t hidden, std::uint64_t layers,
                      std::uint64_t heads) {
  return {.name = name,
          .family = gpt2,
          .hidden = hidden,
          .intermediate = 4 * hidden,
          .layers = layers,
          .heads = heads,
          .kv_heads = heads,
          .vocabulary = 50257,
          .positions = 1024,
          .tied = true,
          .source = gpt2_source};
}

const std::vector<ModelShape>& table() {
  // clang-format off
  static const std::vector<ModelShape> shapes = {
      gpt2_shape("gpt2", 768, 12, 12),
      gpt2_shape("gpt2-medium", 1024, 24, 16),
      gpt2_shape("gpt2-large", 1280, 36, 20),
      gpt2_shape("gpt2-xl", 1600, 48, 25),
      {.name = "llama-2-7b", .hidden = 4096, .intermediate = 11008, .layers = 32, .heads = 32, .kv_heads = 32,
       .vocabulary = 32000, .source = llama2_source},
      {.name = "llama-2-13b", .hidden = 5120, .intermediate = 13824, .layers = 40, .heads = 40, .kv_heads = 40,
       .vocabulary = 32000, .source = llama2_source},
      {.name = "llama-2-70b", .hidden = 8192, .intermediate = 28672, .layers = 80, .heads = 64, .kv_heads = 8,
       .vocabulary = 32000, .source = llama2_source},
      {.name = "llama-3-8b", .hidden = 4096, .intermediate = 14336, .layers = 32, .heads = 32, .kv_heads = 8,
       .vocabulary = 128256, .source = llama3_source, .alias = "llama-3.1-8b"},
      {.name = "llama-3-70b", .hidden = 8192, .intermediate = 28672, .layers = 80, .heads = 64, .kv_heads = 8,
       .vocabulary = 128256, .source = llama3_source, .alias = "llama-3.1-70b"},
      {.name = "llama-3.1-405b", .hidden = 16384, .intermediate = 53248, .layers = 126, .heads = 128, .kv_heads = 8,
       .vocabulary = 128256, .source = llama3_source, .alias = "llama-3-405b"},
      {.name = "llama-3.2-1b", .hidden = 2048, .intermediate = 8192, .layers = 16, .heads = 32, .kv_heads = 8,
       .vocabulary = 128256, .tied = true, .source = llama32_source},
      {.name = "llama-3.2-3b", .hidden = 3072, .intermediate = 8192, .layers = 28, .heads = 24, .kv_heads = 8,
       .vocabulary = 128256, .tied = true, .source = llama32_source},
      {.name = "qwen2.5-0.5b", .hidden = 896, .intermediate = 4864, .layers = 24, .heads = 14, .kv_heads = 2,
       .vocabulary = 151936, .tied = true, .qkv_bias = true, .source = qwen_source},
      {.name = "qwen2.5-1.5b", .hidden = 1536, .intermediate = 8960, .layers = 28, .heads = 12, .kv_heads = 2,
       .vocabulary = 151936, .tied = true, .qkv_bias = true, .source = qwen_source},
      {.name = "qwen2.5-3b", .hidden = 2048, .intermediate = 11008, .layers = 36, .heads = 16, .kv_heads = 2,
       .vocabulary = 151936, .tied = true, .qkv_bias = true, .source = qwen_source},
      {.name = "qwen2.5-7b", .hidden = 3584, .intermediate = 18944, .layers = 28, .heads = 28, .kv_heads = 4,
       .vocabulary = 152064, .qkv_bias = true, .source = qwen_source},
      {.name = "qwen2.5-14b", .hidden = 5120, .intermediate = 13824, .layers = 48, .heads = 40, .kv_heads = 8,
       .vocabulary = 152064, .qkv_bias = true, .source = qwen_source},
      {.name = "qwen2.5-32b", .hidden = 5120, .intermediate = 27648, .layers = 64, .heads = 40, .kv_heads = 8,
       .vocabulary = 152064, .qkv_bias = true, .source = qwen_source},
      {.name = "qwen2.5-72b", .hidden = 8192, .intermediate = 29568, .layers = 80, .heads = 64, .kv_heads = 8,
       .vocabulary = 152064, .qkv_bias = true, .source = qwen_source},
      {.name = "mixtral-8x7b", .hidden = 4096, .intermediate = 14336, .layers = 32, .heads = 32, .kv_heads = 8,
       .vocabulary = 32000, .experts = 8, .source = mixtral_source},
      {.name = "mixtral-8x22b", .hidden = 6144, .intermediate = 16384, .layers = 56, .heads = 48, .kv_heads = 8,
       .vocabulary = 32000, .experts = 8, .source = mixtral_source},
  };
  // clang-format on
  return shapes;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

/// Adds parameters to a unit.
struct Unit {
  UnitLayout layout;

  void matrix(std::string name, std::uint64_t rows, std::uint64_t columns) {
    layout.parameters.push_back(
        {.name = std::move(name), .count = ElementCount(rows * columns), .shape = {rows, columns}});
  }
  void vector(std::string name, std::uint64_t count) {
    layout.parameters.push_back({.name = std::move(name), .count = ElementCount(count), .group = 1});
  }
  void norm(const std::string& name, const ModelShape& shape) {
    vector(name + ".weight", shape.hidden);
    if (shape.family == gpt2) vector(name + ".bias", shape.hidden);
  }
  void linear(const std::string& name, std::uint64_t rows, std::uint64_t columns, bool bias) {
    matrix(name + ".weight", rows, columns);
    if (bias) vector(name + ".bias", rows);
  }
};

UnitLayout gpt2_block(const ModelShape& shape, const std::string& prefix) {
  const std::uint64_t hidden = shape.hidden;
  Unit unit{{.name = prefix}};
  unit.norm(prefix + ".ln_1", shape);
  unit.linear(prefix + ".attn.c_attn", 3 * hidden, hidden, true);
  unit.linear(prefix + ".attn.c_proj", hidden, hidden, true);
  unit.norm(prefix + ".ln_2", shape);
  unit.linear(prefix + ".mlp.c_fc", shape.intermediate, hidden, true);
  unit.linear(prefix + ".mlp.c_proj", hidden, shape.intermediate, true);
  return unit.layout;
}

void add_experts(Unit& unit, const ModelShape& shape, const std::string& prefix) {
  unit.linear(prefix + ".gate", shape.experts, shape.hidden, false);
  for (std::uint64_t expert = 0; expert < shape.experts; ++expert) {
    const std::string name = prefix + ".experts." + std::to_string(expert);
    unit.linear(name + ".w1", shape.intermediate, shape.hidden, false);
    unit.linear(name + ".w2", shape.hidden, shape.intermediate, false);
    unit.linear(name + ".w3", shape.intermediate, shape.hidden, false);
  }
}

UnitLayout llama_block(const ModelShape& shape, const std::string& prefix) {
  const std::uint64_t hidden = shape.hidden, of_head = hidden / shape.heads;
  Unit unit{{.name = prefix}};
  unit.norm(prefix + ".input_layernorm", shape);
  unit.linear(prefix + ".self_attn.q_proj", hidden, hidden, shape.qkv_bias);
  unit.linear(prefix + ".self_attn.k_proj", shape.kv_heads * of_head, hidden, shape.qkv_bias);
  unit.linear(prefix + ".self_attn.v_proj", shape.kv_heads * of_head, hidden, shape.qkv_bias);
  unit.linear(prefix + ".self_attn.o_proj", hidden, hidden, false);
  unit.norm(prefix + ".post_attention_layernorm", shape);
  if (shape.experts > 0) {
    add_experts(unit, shape, prefix + ".block_sparse_moe");
    return unit.layout;
  }
  unit.linear(prefix + ".mlp.gate_proj", shape.intermediate, hidden, false);
  unit.linear(prefix + ".mlp.up_proj", shape.intermediate, hidden, false);
  unit.linear(prefix + ".mlp.down_proj", hidden, shape.intermediate, false);
  return unit.layout;
}

UnitLayout embedding(const ModelShape& shape) {
  Unit unit{{.name = "embedding"}};
  if (shape.family == gpt2) {
    unit.matrix("wte.weight", shape.vocabulary, shape.hidden);
    unit.matrix("wpe.weight", shape.positions, shape.hidden);
  } else {
    unit.matrix("model.embed_tokens.weight", shape.vocabulary, shape.hidden);
  }
  return unit.layout;
}

UnitLayout head(const ModelShape& shape) {
  Unit unit{{.name = "head"}};
  unit.norm(shape.family == gpt2 ? "ln_f" : "model.norm", shape);
  if (shape.tied) {
    unit.layout.shared = {{.unit = 0, .index = 0}};
  } else {
    unit.matrix("lm_head.weight", shape.vocabulary, shape.hidden);
  }
  return unit.layout;
}

}  // namespace

std::span<const ModelShape> model_presets() {
  return table();
}

const ModelShape* find_preset(std::string_view name) {
  const std::string wanted = lower(name);
  for (const ModelShape& shape : table()) {
    if (shape.name == wanted || (!shape.alias.empty() && shape.alias == wanted)) return &shape;
  }
  return nullptr;
}

Result<const ModelShape*> find_shape(const std::string& name, const char* option) {
  if (const ModelShape* const shape = find_preset(name)) return shape;
  return Error::invalid_argument("find_shape")
      .object(option)
      .reason("the shapes of the model's blocks are not known")
      .wanted("a preset")
      .got(name)
      .advice("penstock estimate --presets lists them");
}

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const ModelShape& shape : table()) {
    names.push_back(shape.name);
    if (!shape.alias.empty()) names.push_back(shape.alias);
  }
  return names;
}

std::vector<OptimizerGroup> groups_by_decay() {
  return {{}, {.weight_decay = 0}};
}

ModelLayout layout_of(const ModelShape& shape) {
  ModelLayout layout{.units = {embedding(shape)}, .groups = groups_by_decay()};
  for (std::uint64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string number = std::to_string(layer);
    layout.units.push_back(shape.family == gpt2 ? gpt2_block(shape, "h." + number)
                                                : llama_block(shape, "model.layers." + number));
  }
  layout.units.push_back(head(shape));
  return layout;
}

}  // namespace penstock::zero::estimate
