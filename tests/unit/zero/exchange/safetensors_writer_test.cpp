#include "zero/exchange/safetensors_writer.hpp"

#include "zero/exchange/safetensors_header.hpp"

#include <penstock/tiers/io/sim_disk.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <string>
#include <vector>

namespace penstock::zero::exchange {
namespace {

constexpr std::uint64_t tensors = 5, elements = 3000;

SafetensorsWriter::Options options_on(tiers::FileSystem& disk) {
  return {.files = &disk, .directory = "/out", .shard_max = ByteCount(2 * 4 * elements)};
}

std::string name_of(std::size_t tensor) {
  return std::string("t").append(std::to_string(tensor));
}

std::string shard_name(int shard) {
  return std::string("model-0000").append(std::to_string(shard)).append("-of-00003.safetensors");
}

std::vector<TensorToWrite> plan() {
  std::vector<TensorToWrite> all;
  for (std::uint64_t i = 0; i < tensors; ++i)
    all.push_back({.name = name_of(i), .shape = {elements}, .count = ElementCount(elements)});
  return all;
}

std::vector<float> values_of(std::size_t tensor) {
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < elements; ++i) values[i] = static_cast<float>(tensor * elements + i);
  return values;
}

Result<void> write_all(SafetensorsWriter& writer) {
  for (std::size_t i = 0; i < tensors; ++i) {
    const auto values = values_of(i);
    const auto half = std::span(values).first(elements / 2), rest = std::span(values).subspan(elements / 2);
    PENSTOCK_TRY(writer.write(i, half.size(), ConstHostSpan(rest)));
    PENSTOCK_TRY(writer.write(i, 0, ConstHostSpan(half)));
  }
  return writer.finish();
}

Result<void> export_to(tiers::SimDisk& disk) {
  PENSTOCK_TRY_ASSIGN(SafetensorsWriter writer, SafetensorsWriter::create(options_on(disk), plan()));
  PENSTOCK_TRY(write_all(writer));
  writer.keep();
  return ok();
}

std::string read_file(tiers::SimDisk& disk, const std::string& name) {
  tiers::File file = disk.open("/out/" + name, tiers::DirectIo::off).value();
  std::string bytes(file.size().value().value(), '\0');
  file.read(FileOffset(), HostSpan(std::span(bytes))).value();
  return bytes;
}

/// What is wrong with the shards, of which each has two tensors but for the last.
std::string wrong_shards(tiers::SimDisk& disk) {
  std::size_t tensor = 0;
  for (int shard = 1; shard <= 3; ++shard) {
    const std::string bytes = read_file(disk, shard_name(shard));
    const auto length = SafetensorsHeader::length_of(bytes, ByteCount(bytes.size()), "shard");
    if (!length) return length.error().message();
    const auto header = SafetensorsHeader::parse(bytes.substr(8, length->value()),
                                                 ByteCount(bytes.size() - 8 - length->value()), "shard");
    if (!header) return header.error().message();
    for (const TensorEntry& entry : header->tensors) {
      const auto values = values_of(tensor);
      const std::string_view written(reinterpret_cast<const char*>(values.data()), 4 * elements);
      if (entry.name != name_of(tensor++)) return "another tensor: " + entry.name;
      if (bytes.compare(8 + length->value() + entry.begin.value(), written.size(), written) != 0)
        return "other values of " + entry.name;
    }
  }
  return tensor == tensors ? "" : "tensors are missing";
}

TEST(SafetensorsWriter, WritesPartsInAnyOrder) {
  tiers::SimDisk disk({});
  disk.make_directory("/out");

  ASSERT_TRUE(export_to(disk));

  EXPECT_EQ(wrong_shards(disk), "");
  EXPECT_EQ(disk.list("/out").value().size(), 4u);
  EXPECT_EQ(disk.open_file_count(), 0u);
}

TEST(SafetensorsWriter, AnIndexThatSurvivesAPowerCutHasAllItsTensors) {
  std::uint64_t changes = 0, with_index = 0;
  {
    tiers::SimDisk disk({});
    disk.make_directory("/out");
    ASSERT_TRUE(export_to(disk));
    changes = disk.change_count();
  }
  for (std::uint64_t count = 0; count <= changes; ++count) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      tiers::SimDisk disk({});
      disk.make_directory("/out");
      disk.power_cut_after(count, seed);
      const bool exported = export_to(disk).has_value();
      if (disk.has_power()) disk.power_cut(seed);
      disk.power_on();

      const auto names = disk.list("/out").value();
      const bool has_index =
          std::find(names.begin(), names.end(), "model.safetensors.index.json") != names.end();
      ASSERT_TRUE(has_index || !exported);
      if (!has_index) continue;
      ++with_index;
      ASSERT_EQ(wrong_shards(disk), "") << count << ", seed " << seed;
    }
  }
  EXPECT_GT(with_index, 8u);
}

TEST(SafetensorsWriter, RemovesItsFilesUnlessTheyAreKept) {
  tiers::SimDisk disk({});
  disk.make_directory("/out");
  {
    auto writer = SafetensorsWriter::create(options_on(disk), plan()).value();
    ASSERT_TRUE(write_all(writer));
  }

  EXPECT_TRUE(disk.list("/out").value().empty());
}

TEST(SafetensorsWriter, ATensorThatIsLargerThanAShardIsAloneInOne) {
  tiers::SimDisk disk({});
  auto tensors_of_sizes = plan();
  tensors_of_sizes[1].shape = {9 * elements};
  tensors_of_sizes[1].count = ElementCount(9 * elements);

  const auto writer = SafetensorsWriter::create(options_on(disk), tensors_of_sizes);

  ASSERT_TRUE(writer);
  EXPECT_EQ(writer->names().size(), 5u);
}

TEST(SafetensorsWriter, RefusesWhatTheFormatDoesNotAllow) {
  tiers::SimDisk disk({});
  auto none = options_on(disk);
  none.shard_max = {};
  EXPECT_EQ(SafetensorsWriter::create(none, plan()).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(SafetensorsWriter::create(options_on(disk), {}).error().code(), ErrorCode::invalid_argument);
  auto long_names = options_on(disk);
  long_names.metadata["text"] = std::string(100'000'000, 'x');
  const auto refused = SafetensorsWriter::create(long_names, plan());
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("model-00001-of-00003"), std::string::npos);
}

}  // namespace
}  // namespace penstock::zero::exchange
