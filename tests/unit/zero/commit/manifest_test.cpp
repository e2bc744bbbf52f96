#include "zero/commit/manifest.hpp"

#include <gtest/gtest.h>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

CommittedTensor tensor(std::uint32_t unit, ByteCount size) {
  CommittedTensor made{
      .key = {.unit = unit, .role = tiers::Purpose::optimizer_tile, .first = 128, .count = 256},

      .size = size,
      .block = 192_KiB,
      .file = 1,
      .offset = FileOffset(std::uint64_t{5} << 40),
      .length = size,
      .step = 7};
  for (std::uint64_t block = 0; block * made.block.value() < size.value(); ++block)
    made.checksums.push_back(0x1234567890abcdef * (block + 1));
  return made;
}

Manifest example() {
  Manifest manifest{.run = {1, std::numeric_limits<std::uint64_t>::max()},
                    .generation = 3,
                    .attempt = 99,
                    .rank = 1,
                    .ranks = 2,
                    .engine = 4,
                    .dtype = DType::bf16,
                    .format = cpu_adam::StateFormat::split_q8,
                    .optimizer = cpu_adam::Optimizer::lion,
                    .completed_steps = 12,
                    .skipped_steps = 2,
                    .loss_scaler = {.scale = 65536, .hysteresis = 2, .updates = 14, .last_overflow = -1}};
  manifest.model.groups = {{}, {.frozen = true}};
  manifest.model.units = {
      {.name = "first",
       .parameters = {{"weight", ElementCount(600), 0, {20, 30}}, {"bias", ElementCount(7), 1}}},
      {.name = "second", .parameters = {{"ünïcode", ElementCount(3), 0}}, .shared = {{0, 1}}}};
  manifest.groups = {{.learning_rate_factor = 0.1, .betas = std::array{0.5, 0.25}, .weight_decay = 0.0},
                     {.frozen = true}};
  manifest.client = {std::byte{0}, std::byte{9}, std::byte{255}};
  manifest.files = {"/a/rank0001/swap", "/b/rank0001/swap"};
  manifest.tensors = {tensor(0, 1_B), tensor(1, 192_KiB), tensor(2, 192_KiB * 3 + 1_B)};
  return manifest;
}

Result<Manifest> decoded(const std::vector<std::byte>& bytes) {
  return Manifest::decode("the file", bytes);
}

TEST(Manifest, IsReadAsItWasWritten) {
  const Manifest written = example();

  const auto read = decoded(written.encode());

  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(*read, written);
  EXPECT_EQ(read->run, written.run);
  EXPECT_EQ(read->generation, 3u);
  EXPECT_EQ(read->attempt, 99u);
  EXPECT_EQ(read->rank, 1u);
  EXPECT_EQ(read->ranks, 2u);
  EXPECT_EQ(read->engine, 4u);
  EXPECT_EQ(read->dtype, DType::bf16);
  EXPECT_EQ(read->format, cpu_adam::StateFormat::split_q8);
  EXPECT_EQ(read->optimizer, cpu_adam::Optimizer::lion);
  EXPECT_EQ(read->completed_steps, 12u);
  EXPECT_EQ(read->skipped_steps, 2u);
  EXPECT_EQ(read->loss_scaler, written.loss_scaler);
  EXPECT_EQ(read->groups, written.groups);
  EXPECT_EQ(read->client, written.client);
  EXPECT_EQ(read->files, written.files);
  EXPECT_EQ(read->tensors, written.tensors);
  EXPECT_EQ(read->model.groups, written.model.groups);
  ASSERT_EQ(read->model.units.size(), 2u);
  EXPECT_EQ(read->model.units[0].name, "first");
  EXPECT_EQ(read->model.units[0].parameters[0].rows(), 20u);
  EXPECT_EQ(read->model.units[0].parameters[1].group, 1u);
  EXPECT_EQ(read->model.units[1].parameters[0].name, "ünïcode");
  EXPECT_EQ(read->model.units[1].shared, written.model.units[1].shared);
}

// The format is fixed: another version of the library reads it.
TEST(Manifest, HasTheBytesOfItsDocumentation) {
  Manifest manifest{.run = {1, 2}, .generation = 1};
  manifest.model.units = {{.name = "u", .parameters = {{"p", ElementCount(5), 0}}}};
  manifest.groups = {{}};

  const std::vector<std::byte> bytes = manifest.encode();

  EXPECT_EQ(std::memcmp(bytes.data(), "PNSTKMF\n", 8), 0);
  EXPECT_EQ(bytes[8], std::byte{Manifest::format_version});
  EXPECT_EQ(bytes.size(), 32u + 195u);
}

TEST(Manifest, NoticesEachMissingByte) {
  const std::vector<std::byte> bytes = example().encode();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const auto read = decoded({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)});
    ASSERT_FALSE(read) << length;
    EXPECT_EQ(read.error().code(), ErrorCode::truncated) << length;
    EXPECT_NE(read.error().message().find("the file"), std::string::npos);
  }
}

TEST(Manifest, NoticesEachBitThatHasChanged) {
  std::vector<std::byte> bytes = example().encode();
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte(1u << bit % 8);
    EXPECT_FALSE(decoded(bytes)) << bit;
    bytes[bit / 8] ^= std::byte(1u << bit % 8);
  }
  EXPECT_TRUE(decoded(bytes));
}

TEST(Manifest, RefusesBytesAfterItsEnd) {
  std::vector<std::byte> bytes = example().encode();
  bytes.push_back(std::byte{0});

  EXPECT_EQ(decoded(bytes).error().code(), ErrorCode::corrupted);
}

TEST(Manifest, RefusesAnotherProgramsFile) {
  std::vector<std::byte> bytes(4096, std::byte{'x'});

  EXPECT_EQ(decoded(bytes).error().code(), ErrorCode::invalid_argument);
}

TEST(Manifest, RefusesContentsThatContradictEachOther) {
  const auto refused = [](const char* text, auto change) {
    SCOPED_TRACE(text);
    Manifest manifest = example();
    change(manifest);
    const auto read = decoded(manifest.encode());
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code(), ErrorCode::corrupted);
    EXPECT_NE(read.error().message().find(text), std::string::npos) << read.error().message();
  };
  refused("rank", [](Manifest& m) { m.rank = 2; });
  refused("rank", [](Manifest& m) { m.ranks = 0; });
  refused("generation", [](Manifest& m) { m.generation = 0; });
  refused("at least one unit", [](Manifest& m) { m.model.units.clear(); });
  refused("got nan",
          [](Manifest& m) { m.groups[0].weight_decay = std::numeric_limits<double>::quiet_NaN(); });
  refused("another number of groups", [](Manifest& m) { m.groups.pop_back(); });
  refused("neither", [](Manifest& m) { m.tensors[0].key.role = tiers::Purpose::staging; });
  refused("beyond", [](Manifest& m) { m.tensors[1].length = 1_B; });
  refused("no bytes", [](Manifest& m) { m.tensors[0].block = {}; });
  refused("no bytes", [](Manifest& m) { m.tensors[0].size = {}; });
  refused("blocks of", [](Manifest& m) {
    m.tensors[0].block = ByteCount(std::uint64_t{1} << 59);  // times the blocks of a window it would be 0
  });
  refused("no model has", [](Manifest& m) { m.tensors[0].key.count = ~std::uint64_t{0}; });
  refused("3 checksums for 4 blocks", [](Manifest& m) { m.tensors[2].checksums.pop_back(); });
  refused("a file that it does not name", [](Manifest& m) { m.tensors[0].file = 2; });
  refused("beyond", [](Manifest& m) { m.tensors[0].offset = FileOffset(~std::uint64_t{0} - 1); });
  refused("twice", [](Manifest& m) { m.tensors[1].key = m.tensors[0].key; });
  refused("contents", [](Manifest& m) { m.format = static_cast<cpu_adam::StateFormat>(200); });
  refused("contents", [](Manifest& m) { m.optimizer = static_cast<cpu_adam::Optimizer>(200); });
  refused("contents", [](Manifest& m) { m.dtype = static_cast<DType>(200); });
  refused("contents", [](Manifest& m) { m.tensors[0].key.role = static_cast<tiers::Purpose>(200); });
}

}  // namespace
}  // namespace penstock::zero::test
