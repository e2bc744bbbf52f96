#include "zero/estimate/model_presets.hpp"

#include <gtest/gtest.h>
#include <set>
#include <utility>

namespace penstock::zero::estimate {
namespace {

/// Exact numbers: the total_size of model.safetensors.index.json divided by the 2 bytes of BF16, or what Hugging Face
/// counts in the headers of the published files ("safetensors.total" of its API).
constexpr std::pair<std::string_view, std::uint64_t> published[] = {
    {"gpt2", 124'439'808},
    {"gpt2-medium", 354'823'168},
    {"gpt2-large", 774'030'080},
    {"gpt2-xl", 1'557'611'200},
    {"llama-2-7b", 6'738'415'616},
    {"llama-2-13b", 13'015'864'320},
    {"llama-2-70b", 68'976'648'192},
    {"llama-3-8b", 8'030'261'248},
    {"llama-3-70b", 70'553'706'496},
    {"llama-3.1-405b", 405'853'388'800},
    {"llama-3.2-1b", 1'235'814'400},
    {"llama-3.2-3b", 3'212'749'824},
    {"qwen2.5-0.5b", 494'032'768},
    {"qwen2.5-1.5b", 1'543'714'304},
    {"qwen2.5-3b", 3'085'938'688},
    {"qwen2.5-7b", 7'615'616'512},
    {"qwen2.5-14b", 14'770'033'664},
    {"qwen2.5-32b", 32'763'876'352},
    {"qwen2.5-72b", 72'706'203'648},
    {"mixtral-8x7b", 46'702'792'704},
    {"mixtral-8x22b", 140'620'634'112},
};

TEST(ModelPresets, HaveThePublishedNumberOfParameters) {
  EXPECT_EQ(std::size(published), model_presets().size());
  for (const auto& [name, parameters] : published) {
    const ModelShape* shape = find_preset(name);

    ASSERT_NE(shape, nullptr) << name;
    EXPECT_EQ(layout_of(*shape).element_count().value(), parameters) << name;
    EXPECT_FALSE(shape->source.empty()) << name;
  }
}

TEST(ModelPresets, AreLaidOutAsATrainerDoesIt) {
  for (const ModelShape& shape : model_presets()) {
    SCOPED_TRACE(shape.name);
    const ModelLayout layout = layout_of(shape);

    EXPECT_TRUE(layout.validate());
    ASSERT_EQ(layout.units.size(), shape.layers + 2);
    EXPECT_EQ(layout.units.front().name, "embedding");
    EXPECT_EQ(layout.units.back().name, "head");
    const auto& shared = layout.units.back().shared;
    ASSERT_EQ(shared.size(), shape.tied ? 1u : 0u);
    if (shape.tied) {
      EXPECT_EQ(layout.parameter(shared[0]).count.value(), shape.vocabulary * shape.hidden);
    }
    EXPECT_EQ(layout.groups.size(), 2u);
    EXPECT_EQ(layout.groups[1].weight_decay, 0.0) << "norms and biases do not decay";
    std::set<std::string> names;
    for (const UnitLayout& unit : layout.units) {
      for (const ParameterLayout& parameter : unit.parameters) {
        EXPECT_TRUE(names.insert(parameter.name).second) << parameter.name;
        const bool is_vector = parameter.count.value() <= 4 * shape.hidden;
        EXPECT_EQ(parameter.group, is_vector ? 1u : 0u) << parameter.name;
      }
    }
  }
}

TEST(ModelPresets, AreFoundInAnyCaseAndByTheirAliases) {
  EXPECT_EQ(find_preset("Llama-3.1-8B"), find_preset("llama-3-8b"));
  EXPECT_NE(find_preset("GPT2"), nullptr);
  EXPECT_EQ(find_preset("llama-3-9b"), nullptr);
  EXPECT_EQ(find_preset(""), nullptr);
  const auto names = preset_names();
  EXPECT_EQ(std::set<std::string_view>(names.begin(), names.end()).size(), names.size());
}

}  // namespace
}  // namespace penstock::zero::estimate
