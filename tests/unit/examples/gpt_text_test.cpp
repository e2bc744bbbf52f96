#include "gpt/text.hpp"

#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

namespace gpt {
namespace {

using penstock::ErrorCode;

/// A file whose byte at i is i mod 251.
std::filesystem::path write_file(const penstock::test::ScratchDirectory& directory, std::size_t size) {
  std::filesystem::path path = directory.path() / "text";
  std::ofstream file(path, std::ios::binary);
  for (std::size_t i = 0; i < size; ++i) file.put(static_cast<char>(i % 251));
  return path;
}

struct Drawn {
  std::vector<std::uint8_t> tokens, targets;
  bool operator==(const Drawn&) const = default;
};
Drawn draw(const Text& text, std::uint64_t seed, BatchPosition position, BatchSize size) {
  Drawn drawn;
  drawn.tokens.resize(size.sequences * size.context);
  drawn.targets.resize(drawn.tokens.size());
  text.batch(seed, position, size, drawn.tokens, drawn.targets);
  return drawn;
}

TEST(Text, LoadsAFileByteForByte) {
  const penstock::test::ScratchDirectory directory;
  EXPECT_EQ(Text::load(write_file(directory, 1000), 8)->size(), penstock::ByteCount(1000));
}

TEST(Text, FindsTheSystemsLicencesWithoutAFile) {
  if (!std::filesystem::exists("/usr/share/common-licenses")) GTEST_SKIP() << "not a Debian system";
  EXPECT_GT(Text::load(std::nullopt, 128)->size(), penstock::ByteCount(100'000));
}

TEST(Text, RefusesAFileThatIsMissingEmptyTooShortOrADirectory) {
  const penstock::test::ScratchDirectory directory;

  EXPECT_EQ(Text::load(directory.path() / "none", 8).error().code(), ErrorCode::not_found);
  EXPECT_EQ(Text::load(directory.path(), 8).error().code(), ErrorCode::invalid_argument);
  for (const std::size_t size : {0u, 1u, 8u}) {
    const auto text = Text::load(write_file(directory, size), 8);
    ASSERT_FALSE(text) << size;
    EXPECT_EQ(text.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(text.error().message().find(directory.path().string()), std::string::npos);
  }
  EXPECT_TRUE(Text::load(write_file(directory, 9), 8));
}

TEST(Text, GivesEachTokenTheByteAfterItAsTarget) {
  const penstock::test::ScratchDirectory directory;
  const Text text = Text::load(write_file(directory, 1000), 16).value();

  const Drawn drawn = draw(text, 1, {5, 1, 0}, {.sequences = 3, .context = 16});

  for (std::size_t row = 0; row < 48; ++row) {
    EXPECT_EQ(drawn.targets[row], (drawn.tokens[row] + 1) % 251);
    if (row % 16 != 0) {
      EXPECT_EQ(drawn.tokens[row], drawn.targets[row - 1]);
    }
  }
}

TEST(Text, ReachesTheFirstAndTheLastByteAndNothingBeyond) {
  const penstock::test::ScratchDirectory directory;
  const Text text = Text::load(write_file(directory, 10), 8).value();  // only two places to start

  std::set<std::uint8_t> first, last;
  for (std::uint64_t step = 0; step < 32; ++step) {
    const Drawn drawn = draw(text, 1, {step, 0, 0}, {.sequences = 1, .context = 8});
    first.insert(drawn.tokens.front());
    last.insert(drawn.targets.back());
  }

  EXPECT_EQ(first, (std::set<std::uint8_t>{0, 1}));
  EXPECT_EQ(last, (std::set<std::uint8_t>{8, 9}));
}

TEST(Text, SelectsBatchesByPositionOnly) {
  const penstock::test::ScratchDirectory directory;
  const Text text = Text::load(write_file(directory, 100'000), 16).value();
  const BatchSize size{.sequences = 2, .context = 16};
  const Drawn drawn = draw(text, 1, {5, 1, 0}, size);

  EXPECT_EQ(drawn, draw(text, 1, {5, 1, 0}, size));
  EXPECT_NE(drawn, draw(text, 2, {5, 1, 0}, size));
  EXPECT_NE(drawn, draw(text, 1, {6, 1, 0}, size));
  EXPECT_NE(drawn, draw(text, 1, {5, 0, 0}, size));
  EXPECT_NE(drawn, draw(text, 1, {5, 1, 1}, size));
  EXPECT_NE(drawn, draw(text, 1, {1, 5, 0}, size));
}

}  // namespace
}  // namespace gpt
