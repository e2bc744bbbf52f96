// The file of a training's states.
#include "gpt/state_file.hpp"

#include "kit/scratch_directory.hpp"

#include "zero/exchange/safetensors_header.hpp"

#include <gtest/gtest.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace gpt {
namespace {

using penstock::ElementCount;
using penstock::ErrorCode;
using penstock::cpu_adam::StateKind;

constexpr ModelConfig small{.layers = 1, .width = 64, .heads = 2, .context = 16};

class GptStateFile : public testing::Test {
 protected:
  /// A finished file of the model, with `values` as a state of its parameter block.0.proj.weight.
  void write(const ModelConfig& model, StateKind kind, const std::vector<float>& values) {
    auto file = StateFile::create(path_, model).value();
    ASSERT_TRUE(file.write({.path = "block.0.proj.weight"}, kind, 0, values));
    ASSERT_TRUE(file.finish({.steps = 3, .updates = 2}));
  }
  void expect_refused(const ModelConfig& model, ErrorCode code, std::initializer_list<const char*> words) {
    const auto opened = StateFile::open(path_, model);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code(), code);
    for (const char* const word : words)
      EXPECT_NE(opened.error().message().find(word), std::string::npos)
          << word << " in " << opened.error().message();
  }

  penstock::test::ScratchDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "states";
};

TEST_F(GptStateFile, HasTheStatesAndTheProgressThatWereWritten) {
  std::vector<float> values(64 * 64), read(64);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  write(small, StateKind::first_moment, values);

  const StateFile file = StateFile::open(path_, small).value();

  // A row block, as in a model that is cut.
  ASSERT_TRUE(file.read({.path = "block.0.proj.weight", .first = 640}, StateKind::first_moment, 5, read));
  EXPECT_EQ(read, std::vector<float>(values.begin() + 645, values.begin() + 709));
  ASSERT_TRUE(file.read({.path = "block.0.proj.weight"}, StateKind::master, 0, read));
  EXPECT_EQ(read, std::vector<float>(64));
  EXPECT_EQ(file.progress().steps, 3u);
  EXPECT_EQ(file.progress().updates, 2u);
}

TEST_F(GptStateFile, IsASafetensorsFileOfTheTrainedParameters) {
  ModelConfig model = small;
  model.lora = LoraConfig{.rank = 4, .alpha = 4};
  auto file = StateFile::create(path_, model).value();
  ASSERT_TRUE(file.finish({}));

  const auto header = penstock::zero::exchange::SafetensorsHeader::read(path_);

  ASSERT_TRUE(header) << header.error().message();
  ASSERT_EQ(header->tensors.size(), 4u * 3);
  EXPECT_EQ(header->tensors[0].name, "block.0.proj.lora_a");
  EXPECT_EQ(header->tensors[0].count, ElementCount(4 * 64));
  EXPECT_EQ(header->tensors[1].name, "block.0.proj.lora_a.first_moment");
  EXPECT_EQ(header->data.value(), 3 * 4 * ModelDescription(model).trained_count().value());
}

TEST_F(GptStateFile, IsTheSameForAModelThatIsCut) {
  ModelConfig cut = small;
  cut.unit_elements_max = ElementCount(64 * 257);
  write(small, StateKind::master, std::vector<float>(64 * 64, 2));

  EXPECT_TRUE(StateFile::open(path_, cut));
}

TEST_F(GptStateFile, HasItsNameOnceItIsFinished) {
  write(small, StateKind::master, {1});
  auto file = StateFile::create(path_, small).value();
  std::vector<float> read(1);
  ASSERT_TRUE(file.write({.path = "block.0.proj.weight"}, StateKind::master, 0, std::vector<float>{7}));
  const auto master = [&] {
    EXPECT_TRUE(
        StateFile::open(path_, small)->read({.path = "block.0.proj.weight"}, StateKind::master, 0, read));
    return read[0];
  };

  EXPECT_EQ(master(), 1);
  ASSERT_TRUE(file.finish({}));
  EXPECT_EQ(master(), 7);
  EXPECT_FALSE(std::filesystem::exists(path_.string() + ".part"));
}

TEST_F(GptStateFile, TakesThePlaceOfAFileThatWasNotFinished) {
  std::ofstream(path_.string() + ".part") << "of a training that was killed";

  EXPECT_TRUE(StateFile::create(path_, small));
}

TEST_F(GptStateFile, RefusesStatesOfAnotherModelAndNamesTheDifference) {
  write(small, StateKind::master, {1});
  ModelConfig other = small;
  other.heads = 4;
  expect_refused(other, ErrorCode::invalid_argument,
                 {"states", "another model", "heads 4", "heads 2", "--heads"});
  other = small;
  other.width = 128;
  expect_refused(other, ErrorCode::invalid_argument, {"block.0.down.bias", "[128]", "[64]", "--width"});
  other = small;
  other.layers = 2;
  expect_refused(other, ErrorCode::invalid_argument, {"block.1.down.bias", "embed.position_embedding"});
  other = small;
  other.lora = LoraConfig{.rank = 4, .alpha = 4};
  expect_refused(other, ErrorCode::invalid_argument, {"lora alpha", "--lora"});
}

TEST_F(GptStateFile, RefusesAFileThatIsNone) {
  expect_refused(small, ErrorCode::not_found, {"states"});
  std::ofstream(path_) << "short";
  expect_refused(small, ErrorCode::invalid_argument, {"no file of a training's states", "--save"});
  write(small, StateKind::master, {1});
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 1);
  expect_refused(small, ErrorCode::truncated, {"states", "wanted"});
  std::filesystem::resize_file(path_, 1000);
  expect_refused(small, ErrorCode::invalid_argument, {"another model"});
}

}  // namespace
}  // namespace gpt
