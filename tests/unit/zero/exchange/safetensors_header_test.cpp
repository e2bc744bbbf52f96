#include "zero/exchange/safetensors_header.hpp"

#include "kit/golden.hpp"
#include "kit/safetensors_bytes.hpp"
#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

namespace penstock::zero::exchange {
namespace {

using test::safetensors_bytes;
using test::safetensors_json;
using test::with_length;
using test::write_file;

Result<SafetensorsHeader> parse(const std::string& json, ByteCount data = {}) {
  return SafetensorsHeader::parse(json, data, "model.safetensors");
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"w": {"dtype": )" + dtype + R"(, "shape": )" + shape + R"(, "data_offsets": )" + offsets + "}}";
}

TEST(SafetensorsHeader, HasTheTensorsInTheOrderOfTheirBytes) {
  const auto header = parse(safetensors_json({{"z", {3, 4}}, {"a", {}, "F32"}, {"m", {5}, "I64"}}) + "   ");

  ASSERT_TRUE(header) << header.error().message();
  ASSERT_EQ(header->tensors.size(), 3u);
  EXPECT_EQ(header->tensors[0].name, "z");
  EXPECT_EQ(header->tensors[0].count, ElementCount(12));
  EXPECT_EQ(header->tensors[1].count, ElementCount(1)) << "a scalar";
  EXPECT_TRUE(header->tensors[1].is_floating_point);
  EXPECT_FALSE(header->tensors[2].is_floating_point);
  EXPECT_EQ(header->data, ByteCount(24 + 4 + 40));
}

TEST(SafetensorsHeader, AcceptsAFileWithAllItsDataOrWithTheHeaderAlone) {
  const std::string json = safetensors_json({{"w", {8}}});

  EXPECT_TRUE(parse(json, ByteCount(16)));
  EXPECT_TRUE(parse(json));
  const auto shorter = parse(json, ByteCount(15));
  ASSERT_FALSE(shorter);
  EXPECT_EQ(shorter.error().code(), ErrorCode::truncated);
  const auto longer = parse(json, ByteCount(17));
  ASSERT_FALSE(longer);
  EXPECT_EQ(longer.error().code(), ErrorCode::invalid_argument);
}

TEST(SafetensorsHeader, SaysWhatIsWrongWithATensorAndAtWhichByte) {
  const std::string huge = "4611686018427387904";  // 2^62
  for (const auto& [json, words] : {
           std::pair<std::string, std::string>{entry("\"BF17\"", "[1]", "[0, 2]"), "the dtype is unknown"},
           {entry("7", "[1]", "[0, 2]"), "the dtype is unknown"},
           {entry("\"BF16\"", "7", "[0, 2]"), "the shape is no list"},
           {entry("\"BF16\"", "[-1]", "[0, 2]"), "a dimension is no whole number"},
           {entry("\"BF16\"", "[1.0]", "[0, 2]"), "a dimension is no whole number"},
           {entry("\"BF16\"", "[\"1\"]", "[0, 2]"), "a dimension is no whole number"},
           {entry("\"BF16\"", "[1e400]", "[0, 2]"), ""},
           {entry("\"BF16\"", "[" + huge + ", 4]", "[0, 2]"), "more elements than fit into 64 bits"},
           {entry("\"F64\"", "[" + huge + "]", "[0, 2]"), "no whole number of bytes in 64 bits"},
           {entry("\"F4\"", "[3]", "[0, 2]"), "no whole number of bytes"},
           {entry("\"BF16\"", "[1]", "[0]"), "data_offsets are not two whole numbers"},
           {entry("\"BF16\"", "[1]", "[0, -2]"), "data_offsets are not two whole numbers"},
           {entry("\"BF16\"", "[1]", "[0, 3]"), "data_offsets do not have the length of the shape"},
           {entry("\"BF16\"", "[1]", "[2, 0]"), "data_offsets do not have the length of the shape"},
           {entry("\"BF16\"", "[1]", "[2, 4]"), "there is a hole before its bytes"},
           {R"({"w": {"dtype": "BF16", "shape": [1]}})", "wanted an object of dtype, shape and data_offsets"},
           {R"({"w": 1})", "wanted an object of dtype, shape and data_offsets"},
       }) {
    const auto header = parse(json);

    ASSERT_FALSE(header) << json;
    EXPECT_EQ(header.error().code(), ErrorCode::invalid_argument) << json;
    EXPECT_NE(header.error().message().find(words), std::string::npos) << header.error().message();
    EXPECT_NE(header.error().message().find("model.safetensors"), std::string::npos);
  }
  EXPECT_NE(parse(entry("\"BF16\"", "[1]", "[2, 4]")).error().message().find("tensor w"), std::string::npos);
  EXPECT_NE(parse(entry("\"BF17\"", "[1]", "[0, 2]")).error().message().find("offset 24"), std::string::npos)
      << parse(entry("\"BF17\"", "[1]", "[0, 2]")).error().message();
}

TEST(SafetensorsHeader, RefusesBytesOfTwoTensorsAndNamesTwice) {
  const std::string one = R"("dtype": "U8", "shape": [4], "data_offsets": [0, 4])";

  EXPECT_NE(parse("{\"a\": {" + one + "}, \"b\": {" + one + "}}").error().message().find("overlap"),
            std::string::npos);
  EXPECT_FALSE(parse("{\"a\": {" + one + "}, \"a\": {" + one + "}}"));
}

TEST(SafetensorsHeader, RefusesWhatIsNoJsonObject) {
  const std::string deep(100000, '[');
  for (const std::string& json : {std::string(), std::string("{"), std::string("[]"), std::string("null"),
                                  std::string("{} x"), std::string("{,}"), std::string("{\"a\": NaN}"), deep,
                                  std::string("{/* */}"), std::string("{}"), std::string("\0\0", 2)}) {
    const auto header = parse(json);

    ASSERT_FALSE(header) << json.substr(0, 20);
    EXPECT_EQ(header.error().code(), ErrorCode::invalid_argument);
  }
}

TEST(SafetensorsHeader, BoundsTheNumberOfValues) {
  const std::string commas((1 << 22) + 1, ',');

  const auto header = parse("[" + commas);

  ASSERT_FALSE(header);
  EXPECT_NE(header.error().message().find("too many values"), std::string::npos);
}

TEST(SafetensorsHeader, NeverPrintsAControlCharacterOfAFile) {
  const auto header = parse("{\"\\u001b[31m\": 1}");

  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().message().find('\x1b'), std::string::npos);
}

TEST(SafetensorsHeader, ChecksTheLengthBeforeItReads) {
  const auto length = [](std::string first, std::uint64_t file) {
    return SafetensorsHeader::length_of(first, ByteCount(file), "f");
  };
  const std::string eight = std::string("\x10\0\0\0\0\0\0\0", 8), none(8, '\0'), huge(8, '\xff');

  EXPECT_EQ(length(eight, 24).value(), ByteCount(16));
  EXPECT_EQ(length(eight, 23).error().code(), ErrorCode::truncated);
  EXPECT_EQ(length("1234567", 7).error().code(), ErrorCode::truncated);
  EXPECT_EQ(length("", 0).error().code(), ErrorCode::truncated);
  EXPECT_EQ(length(none, 100).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(length(huge, ~std::uint64_t{0}).error().code(), ErrorCode::invalid_argument);
  EXPECT_NE(length("PK\x03\x04....", 100).error().message().find("no safetensors file"), std::string::npos)
      << "a PyTorch file";
}

TEST(SafetensorsHeader, ReadsFilesThatTheSafetensorsLibraryWrote) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(test::golden_directory())) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    const auto header = SafetensorsHeader::read(entry.path());
    const test::Safetensors golden(entry.path());

    ASSERT_TRUE(header) << header.error().message();
    for (const TensorEntry& tensor : header->tensors) {
      ASSERT_TRUE(golden.contains(tensor.name)) << tensor.name;
      EXPECT_EQ(golden.at(tensor.name).dtype, tensor.dtype);
      EXPECT_EQ(golden.at(tensor.name).shape, tensor.shape);
      EXPECT_EQ(ByteCount(golden.at(tensor.name).bytes.size()), tensor.end - tensor.begin);
    }
  }
  EXPECT_GT(files, 0u);
}

TEST(SafetensorsHeader, ReadsAFileAndRefusesWhatIsNone) {
  test::ScratchDirectory directory;
  const auto path = directory.path() / "model.safetensors";
  const std::string bytes = safetensors_bytes({{"w", {8}}});

  EXPECT_EQ(SafetensorsHeader::read(path).error().code(), ErrorCode::not_found);
  EXPECT_TRUE(SafetensorsHeader::read(write_file(path, bytes)));
  EXPECT_TRUE(SafetensorsHeader::read(write_file(path, bytes + std::string(16, 'x'))));
  EXPECT_EQ(SafetensorsHeader::read(write_file(path, bytes + "x")).error().code(), ErrorCode::truncated);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    const auto header = SafetensorsHeader::read(write_file(path, bytes.substr(0, cut)));
    ASSERT_FALSE(header) << cut;
    EXPECT_EQ(header.error().code(), ErrorCode::truncated) << cut;
  }
  EXPECT_NE(SafetensorsHeader::read(directory.path()).error().message().find("a directory"),
            std::string::npos);
  const auto pipe = directory.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NE(SafetensorsHeader::read(pipe).error().message().find("a pipe"), std::string::npos)
      << "or it would wait";
}

}  // namespace
}  // namespace penstock::zero::exchange
