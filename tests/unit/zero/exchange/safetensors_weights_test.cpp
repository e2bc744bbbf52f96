#include <penstock/zero/exchange/safetensors_weights.hpp>

#include "kernels/host_kernels.hpp"
#include "kit/safetensors_bytes.hpp"
#include "kit/saved_states.hpp"
#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <cstring>
#include <string>
#include <vector>

namespace penstock::zero {
namespace {

using penstock::test::FileTensor;
using penstock::test::safetensors_bytes;
using penstock::test::ScratchDirectory;
using penstock::test::write_file;

ModelLayout model_of_two() {
  ModelLayout model;
  model.units = {{.name = "first", .parameters = {{"weight", ElementCount(6), 0, {2, 3}}}},
                 {.name = "second", .parameters = {{"bias", ElementCount(4)}}, .shared = {{0, 0}}}};
  return model;
}

/// Of both parameters: a value that every type holds, and differs from the others.
float value_of(ParameterId id, std::uint64_t element) {
  return static_cast<float>(id.unit * 10 + element) + 0.5f;
}

/// The elements of `tensor`, which value_of() gives, in its type.
std::string data_of(ParameterId id, std::uint64_t count, const std::string& dtype) {
  std::string bytes;
  for (std::uint64_t i = 0; i < count; ++i) {
    const float value = value_of(id, i);
    const double wide = value;
    std::uint16_t narrow = 0;
    const DType to = dtype == "F16" ? DType::fp16 : DType::bf16;
    kernels::cast_elements({reinterpret_cast<const std::byte*>(&value), DType::fp32},
                           {reinterpret_cast<std::byte*>(&narrow), to}, 1);
    if (dtype == "F64")
      bytes.append(reinterpret_cast<const char*>(&wide), 8);
    else if (dtype == "F32")
      bytes.append(reinterpret_cast<const char*>(&value), 4);
    else
      bytes.append(reinterpret_cast<const char*>(&narrow), 2);
  }
  return bytes;
}

std::vector<FileTensor> tensors_of_two(const std::string& dtype) {
  return {{"first.weight", {2, 3}, dtype}, {"second.bias", {4}, dtype}};
}

std::string file_of_two(const std::string& dtype) {
  return safetensors_bytes(tensors_of_two(dtype)) + data_of({0, 0}, 6, dtype) + data_of({1, 0}, 4, dtype);
}

class SafetensorsWeightsTest : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& bytes) {
    return write_file(scratch_.path() / name, bytes);
  }
  std::filesystem::path directory() const { return scratch_.path(); }
  /// Expects that `weights` sets an engine's masters.
  static void expect_values(SafetensorsWeights& weights) {
    auto rank = Rank::create({.model = model_of_two()}).value();
    ASSERT_TRUE(weights.initialize(rank->engine()));
    test::SavedStates saved(model_of_two());
    ASSERT_TRUE(saved.save(rank->engine()));
    for (const auto& [key, values] : saved.states()) {
      for (std::uint64_t i = 0; i < values.size(); ++i)
        EXPECT_EQ(values[i], key.second == cpu_adam::StateKind::master ? value_of(key.first, i) : 0.0f);
    }
    EXPECT_EQ(rank->engine().completed_steps(), 0u);
  }
  /// Expects that the file is refused with `code`, by a message with each of `words`.
  void expect_refused(const std::string& bytes, ErrorCode code, const std::vector<std::string>& words) {
    const auto refused =
        SafetensorsWeights::open(model_of_two(), {.path = write("wrong.safetensors", bytes)});
    ASSERT_FALSE(refused) << words.front();
    EXPECT_EQ(refused.error().code(), code) << refused.error().message();
    for (const std::string& word : words)
      EXPECT_NE(refused.error().message().find(word), std::string::npos) << refused.error().message();
  }

 private:
  ScratchDirectory scratch_;
};

TEST_F(SafetensorsWeightsTest, AreTheInitialValuesOfAnEngineInEveryType) {
  for (const char* dtype : {"F32", "F16", "BF16", "F64"}) {
    auto weights =
        SafetensorsWeights::open(model_of_two(), {.path = write("w.safetensors", file_of_two(dtype))});
    ASSERT_TRUE(weights) << weights.error().message();
    EXPECT_TRUE(weights->unused().empty());
    expect_values(*weights);
  }
}

TEST_F(SafetensorsWeightsTest, AreFoundByADirectoryItsIndexOrOtherNames) {
  const auto one = tensors_of_two("F32");
  write("a.safetensors", safetensors_bytes({one[1]}) + data_of({1, 0}, 4, "F32"));
  write("b.safetensors", safetensors_bytes({{"w", {2, 3}, "F32"}}) + data_of({0, 0}, 6, "F32"));
  const auto index = write("model.safetensors.index.json",
                           R"({"weight_map": {"second.bias": "a.safetensors", "w": "b.safetensors"}})");
  const auto name = [](ParameterId id) { return std::string(id.unit == 0 ? "w" : "second.bias"); };

  for (const auto& path : {directory(), index}) {
    auto weights = SafetensorsWeights::open(model_of_two(), {.path = path, .name = name});
    ASSERT_TRUE(weights) << weights.error().message();
    expect_values(*weights);
  }
}

TEST_F(SafetensorsWeightsTest, NamesTheTensorThatIsMissingSuperfluousOrOfAnotherShape) {
  const auto tensors = tensors_of_two("F32");
  const std::string rest = data_of({0, 0}, 6, "F32") + data_of({1, 0}, 4, "F32");
  const auto with = [&](FileTensor second) { return safetensors_bytes({tensors[0], second}) + rest; };

  expect_refused(with({"second.biass", {4}, "F32"}), ErrorCode::not_found,
                 {"second.bias", "second.biass", "wrong.safetensors"});
  expect_refused(with({"second.bias", {2}, "F64"}), ErrorCode::invalid_argument,
                 {"second.bias", "4 elements", "[2]"});
  expect_refused(with({"second.bias", {4}, "I32"}), ErrorCode::invalid_argument, {"second.bias", "I32"});
  expect_refused(safetensors_bytes({{"first.weight", {3, 2}, "F32"}, tensors[1]}) + rest,
                 ErrorCode::invalid_argument, {"first.weight", "[2, 3]", "[3, 2]"});
  const std::string more =
      safetensors_bytes({tensors[0], tensors[1], {"mask", {1}, "F32"}}) + rest + std::string(4, '\0');
  expect_refused(more, ErrorCode::invalid_argument, {"mask", "no parameter"});
  auto allowed = SafetensorsWeights::open(model_of_two(),
                                          {.path = directory() / "wrong.safetensors", .allow_unused = true});
  ASSERT_TRUE(allowed) << allowed.error().message();
  EXPECT_EQ(allowed->unused(), std::vector<std::string>{"mask"});
  expect_values(*allowed);
}

TEST_F(SafetensorsWeightsTest, RefusesAFileThatIsCutOrEndsWithItsHeader) {
  const std::string whole = file_of_two("F32");

  expect_refused(safetensors_bytes(tensors_of_two("F32")), ErrorCode::truncated, {"ends with its header"});
  expect_refused(whole.substr(0, whole.size() - 1), ErrorCode::truncated, {"wrong.safetensors"});
  expect_refused("text", ErrorCode::truncated, {"wrong.safetensors"});
}

TEST_F(SafetensorsWeightsTest, ANumberThatWouldBeRoundedIsRefusedWithItsPlace) {
  std::string bytes = file_of_two("F64");
  const double inexact = 0.1;
  const std::size_t at = bytes.size() - 8;  // the last element of second.bias
  std::memcpy(bytes.data() + at, &inexact, 8);
  auto weights = SafetensorsWeights::open(model_of_two(), {.path = write("w.safetensors", bytes)}).value();
  auto rank = Rank::create({.model = model_of_two()}).value();

  const auto refused = weights.initialize(rank->engine());

  ASSERT_FALSE(refused);
  const std::string message = refused.error().message();
  EXPECT_NE(message.find("second.bias, element 3"), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(at)), std::string::npos) << message;
  EXPECT_FALSE(rank->engine().digest()) << "the engine has no values";
}

TEST_F(SafetensorsWeightsTest, AreReadInParts) {
  auto weights =
      SafetensorsWeights::open(model_of_two(), {.path = write("w.safetensors", file_of_two("BF16"))}).value();
  std::vector<float> values(2);

  ASSERT_TRUE(weights.read({0, 0}, 3, values));

  EXPECT_EQ(values, (std::vector<float>{value_of({0, 0}, 3), value_of({0, 0}, 4)}));
  EXPECT_FALSE(weights.read({0, 0}, 5, values));
  EXPECT_FALSE(weights.read({7, 0}, 0, values));
}

}  // namespace
}  // namespace penstock::zero
