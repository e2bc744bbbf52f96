#include "zero/estimate/named_model.hpp"

#include "kit/safetensors_bytes.hpp"
#include "kit/scratch_directory.hpp"
#include "zero/estimate/model_presets.hpp"
#include "zero/estimate/tensor_units.hpp"

#include <gtest/gtest.h>

namespace penstock::zero::estimate {
namespace {

using test::FileTensor;
using test::safetensors_bytes;
using test::small_gpt2;
using test::write_file;

std::vector<std::string> unit_names(const ModelLayout& layout) {
  std::vector<std::string> names;
  for (const UnitLayout& unit : layout.units) names.push_back(unit.name);
  return names;
}

Result<ModelLayout> units_of(const std::vector<FileTensor>& tensors,
                             std::vector<std::string>* notes = nullptr) {
  const auto header = exchange::SafetensorsHeader::parse(test::safetensors_json(tensors), {}, "f");
  std::vector<std::string> ignored;
  return units_of_tensors(header.value().tensors, notes != nullptr ? *notes : ignored);
}

/// The tensors of a layout, as Hugging Face's files have them.
std::vector<FileTensor> tensors_of(const ModelLayout& layout) {
  std::vector<FileTensor> tensors;
  for (const UnitLayout& unit : layout.units) {
    for (const ParameterLayout& parameter : unit.parameters) {
      FileTensor tensor{parameter.name, {parameter.count.value()}};
      if (parameter.group == 0) tensor.shape.push_back(1);
      tensors.push_back(tensor);
    }
  }
  return tensors;
}

TEST(TensorUnits, AreLayersInTheOrderOfTheirNumbersBetweenEmbeddingAndHead) {
  std::vector<std::string> notes;
  const auto layout = units_of(small_gpt2(11), &notes);

  ASSERT_TRUE(layout) << layout.error().message();
  EXPECT_EQ(unit_names(*layout),
            (std::vector<std::string>{"embedding", "h.0", "h.1", "h.2", "h.3", "h.4", "h.5", "h.6", "h.7",
                                      "h.8", "h.9", "h.10", "head"}));
  EXPECT_EQ(layout->element_count(), ElementCount(11 * (8 * 24 + 24 + 8) + 8 + 16 * 8 + 100 * 8))
      << "without the masks";
  EXPECT_EQ(layout->parameter({1, 0}).group, 0u) << "a matrix";
  EXPECT_EQ(layout->parameter({1, 1}).group, 1u) << "a bias";
  ASSERT_EQ(layout->units.back().shared.size(), 1u) << "the head is tied";
  EXPECT_EQ(layout->parameter(layout->units.back().shared[0]).name, "wte.weight");
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_NE(notes[0].find("11 tensors of 11.0 KiB are left out"), std::string::npos) << notes[0];
}

TEST(TensorUnits, OfThePresetsAreThePresets) {
  for (const ModelShape& shape : model_presets()) {
    SCOPED_TRACE(shape.name);
    const ModelLayout preset = layout_of(shape);
    const auto layout = units_of(tensors_of(preset));

    ASSERT_TRUE(layout) << layout.error().message();
    ASSERT_EQ(layout->units.size(), preset.units.size());
    for (std::size_t i = 0; i < preset.units.size(); ++i) {
      EXPECT_EQ(layout->units[i].parameters.size(), preset.units[i].parameters.size())
          << preset.units[i].name;
      EXPECT_EQ(layout->units[i].shared.size(), preset.units[i].shared.size());
    }
    EXPECT_EQ(layout->element_count(), preset.element_count());
  }
}

TEST(TensorUnits, KeepExpertsInTheirLayerAndFollowEncodersWithDecoders) {
  const auto experts = units_of({{"m.layers.0.experts.0.w", {2, 2}},
                                 {"m.layers.0.experts.1.w", {2, 2}},
                                 {"m.layers.1.experts.0.w", {2, 2}},
                                 {"lm_head.weight", {2, 2}}});
  const auto stacks = units_of({{"decoder.block.0.w", {2, 2}},
                                {"decoder.block.1.w", {2, 2}},
                                {"encoder.block.0.w", {2, 2}},
                                {"encoder.block.1.w", {2, 2}},
                                {"shared.weight", {2, 2}}});

  EXPECT_EQ(unit_names(experts.value()), (std::vector<std::string>{"m.layers.0", "m.layers.1", "head"}));
  EXPECT_EQ(unit_names(stacks.value()),
            (std::vector<std::string>{"embedding", "encoder.block.0", "encoder.block.1", "decoder.block.0",
                                      "decoder.block.1"}));
}

TEST(TensorUnits, TakeAStackOfOneLayerForNone) {
  const auto layout = units_of({{"classifier.0.weight", {2, 2}}, {"embed.weight", {2, 2}}});

  EXPECT_EQ(unit_names(layout.value()), (std::vector<std::string>{"embedding", "head"}));
}

TEST(TensorUnits, RefuseATensorThatIsTooLargeAndNeverPrintAControlCharacter) {
  const auto layout = units_of({{"\\u001b[31m", {std::uint64_t{1} << 37}, "F8_E4M3"}});

  ASSERT_FALSE(layout);
  EXPECT_NE(layout.error().message().find("too many elements"), std::string::npos)
      << layout.error().message();
  EXPECT_EQ(layout.error().message().find('\x1b'), std::string::npos);
}

TEST(TensorUnits, RefuseAFileWithoutParameters) {
  const auto layout = units_of({{"qweight", {2, 2}, "I32"}, {"empty", {0}}});

  ASSERT_FALSE(layout);
  EXPECT_NE(layout.error().message().find("no parameters"), std::string::npos);
}

TEST(NamedModel, IsAPresetAFileAnIndexOrADirectory) {
  test::ScratchDirectory directory;
  const auto& folder = directory.path();
  write_file(folder / "a.safetensors", safetensors_bytes({{"h.0.w", {2, 2}}, {"wte.weight", {4, 2}}}));
  write_file(folder / "b.safetensors", safetensors_bytes({{"h.1.w", {2, 2}}}));
  const auto index = write_file(folder / "model.safetensors.index.json",
                                R"({"metadata": {"total_size": 32}, "weight_map": {"h.0.w": "a.safetensors",
                                    "wte.weight": "a.safetensors", "h.1.w": "b.safetensors"}})");
  const auto file = write_file(folder / "model.layout.json",
                               R"({"units": [{"name": "u", "parameters": [{"name": "w", "count": 7}]}]})");

  for (const auto& path : {index, folder}) {
    const auto model = NamedModel::load(path.string());
    ASSERT_TRUE(model) << model.error().message();
    EXPECT_EQ(model->source, "safetensors header");
    EXPECT_EQ(unit_names(model->layout), (std::vector<std::string>{"embedding", "h.0", "h.1"}));
  }
  EXPECT_EQ(NamedModel::load(file.string()).value().layout.element_count(), ElementCount(7));
  EXPECT_EQ(NamedModel::load("GPT2").value().source, "preset");
}

TEST(NamedModel, SaysWhatAnIndexLacks) {
  test::ScratchDirectory directory;
  const auto& folder = directory.path();
  const auto load = [&](const std::string& map) {
    const auto index = write_file(folder / "m.safetensors.index.json", map);
    const auto model = NamedModel::load(index.string());
    EXPECT_FALSE(model) << map;
    return model ? std::string() : model.error().message();
  };
  const auto says = [](const std::string& message, const char* words) {
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };

  says(load(R"({"weight_map": {"w": "a.safetensors"}})"), "the index has no shapes, and none of its 1 files");
  write_file(folder / "a.safetensors", safetensors_bytes({{"w", {2}}}));
  says(load(R"({"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}})"), "and 1 of its 2 files");
  says(load(R"({"weight_map": {"v": "a.safetensors"}})"), "does not say that the tensor is in this file");
  says(load(R"({"weight_map": {"w": "a.safetensors", "v": "a.safetensors"}})"), "lacks tensors");
  says(load(R"({"weight_map": {"w": "../a.safetensors"}})"), "the name of a file beside the index");
  says(load(R"({"weight_map": {"w": "/etc/passwd"}})"), "weight_map.w, line 1");
  says(load(R"({"weight_map": {"w": 7}})"), "the name of a file beside the index");
  says(load(R"({"weight_map": {}})"), "weight_map");
  says(load(R"([])"), "weight_map");
  says(load(R"({"weight_map")"), "the index cannot be used");
  write_file(folder / "b.safetensors", safetensors_bytes({{"w", {2}}}));
  says(load(R"({"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}})"), "one that two files have");
  says(load(R"({"weight_map": {"w": "b.safetensors", "v": "a.safetensors"}})"), "got b.safetensors");
}

TEST(NamedModel, SaysThatADirectoryHasNoModel) {
  test::ScratchDirectory directory;
  const auto model = NamedModel::load(directory.path().string());

  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code(), ErrorCode::not_found);
  EXPECT_NE(model.error().message().find("the directory has no such file"), std::string::npos);
}

TEST(NamedModel, NamesTheNearestPreset) {
  const auto message = [](const std::string& name) { return NamedModel::load(name).error().message(); };

  EXPECT_NE(message("lama-3-8b").find("did you mean llama-3-8b?"), std::string::npos) << message("lama-3-8b");
  EXPECT_NE(message("Llama-3-8B-Instrukt").find("neither a preset nor a file"), std::string::npos);
  EXPECT_EQ(message("zzzzzzzzzzzz").find("did you mean"), std::string::npos);
  EXPECT_FALSE(NamedModel::load(""));
  EXPECT_FALSE(NamedModel::load(std::string(100000, 'x')));
  EXPECT_FALSE(NamedModel::load(std::string("gpt2\0", 5)));
}

TEST(NamedModel, HasTheLargestModuleThatDeepSpeedCounts) {
  EXPECT_EQ(NamedModel::load("gpt2").value().largest_module(), ElementCount(50257 * 768));
  EXPECT_EQ(NamedModel::load("llama-2-7b").value().largest_module(), ElementCount(32000 * 4096));
  NamedModel model{.layout = {.units = {{.name = "u",
                                         .parameters = {{"l.weight", ElementCount(6)},
                                                        {"l.bias", ElementCount(3)},
                                                        {"m", ElementCount(7)}}}}}};
  EXPECT_EQ(model.largest_module(), ElementCount(9));
}

TEST(NamedModel, GivesMuonTheMatricesOfTheLayers) {
  NamedModel model = NamedModel::load("llama-3-8b").value();
  model.use_muon().value();
  ASSERT_EQ(model.layout.groups.size(), 3u);
  EXPECT_TRUE(model.layout.groups[2].use_muon);
  std::size_t matrices = 0;
  for (const UnitLayout& unit : model.layout.units) {
    for (const ParameterLayout& parameter : unit.parameters) {
      if (parameter.group != 2) continue;
      ++matrices;
      EXPECT_EQ(parameter.rows() * parameter.columns(), parameter.count.value()) << parameter.name;
    }
  }
  EXPECT_EQ(matrices, 32u * 7);
  EXPECT_TRUE(model.layout.validate());
  ASSERT_EQ(model.notes.size(), 1u);
  EXPECT_NE(model.notes[0].find("224 matrices"), std::string::npos) << model.notes[0];
}

TEST(TensorUnits, HaveTheShapesOfMatrices) {
  const ModelLayout layout = units_of(small_gpt2(3)).value();
  EXPECT_EQ(layout.parameter({1, 0}).rows(), 8u);
  EXPECT_EQ(layout.parameter({1, 0}).columns(), 24u);
  EXPECT_EQ(layout.parameter({1, 1}).rows(), 0u) << "a bias";
  EXPECT_TRUE(is_hidden_matrix(layout.parameter({1, 0})));
  EXPECT_FALSE(is_hidden_matrix(layout.parameter({0, 0}))) << "an embedding";
}

TEST(TensorUnits, TellTheHeadFromTheOutputOfALayer) {
  const auto matrix = [](const char* name) {
    return ParameterLayout{.name = name, .count = ElementCount(6), .shape = {2, 3}};
  };
  EXPECT_TRUE(is_hidden_matrix(matrix("layers.3.attention.output.weight")));
  EXPECT_FALSE(is_hidden_matrix(matrix("output.weight")));
}

TEST(NamedModel, SaysWhereMuonHasNoMatrix) {
  NamedModel model{.name = "vectors",
                   .source = "layout file",
                   .layout = {.units = {{.name = "unit", .parameters = {{"w", ElementCount(6)}}}}},
                   .notes = {}};
  const auto used = model.use_muon();
  ASSERT_FALSE(used);
  EXPECT_NE(used.error().message().find("\"shape\" instead of \"count\""), std::string::npos)
      << used.error().message();
}

}  // namespace
}  // namespace penstock::zero::estimate
