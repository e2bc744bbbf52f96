#include "base/byte_archive.hpp"

#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

namespace penstock::test {
namespace {

enum class Colour : std::uint8_t { red, green };
bool is_known(Colour colour) {
  return colour <= Colour::green;
}

struct Inner {
  std::string text;
  std::optional<double> number;
  bool operator==(const Inner&) const = default;
};
template <class Archive>
void fields(Archive& archive,
            auto& value) requires std::same_as<std::remove_cvref_t<decltype(value)>, Inner> {
  archive(value.text, value.number);
}

struct Outer {
  std::uint64_t count = 0;
  Colour colour{};
  bool flag = false;
  std::vector<Inner> inner;
  std::vector<std::byte> bytes;
  bool operator==(const Outer&) const = default;
};
template <class Archive>
void fields(Archive& archive,
            auto& value) requires std::same_as<std::remove_cvref_t<decltype(value)>, Outer> {
  archive(value.count, value.colour, value.flag, value.inner, value.bytes);
}

const Outer example{.count = std::numeric_limits<std::uint64_t>::max() - 3,
                    .colour = Colour::green,
                    .flag = true,
                    .inner = {{"", 0.1}, {std::string("a\0b", 3), std::nullopt}},
                    .bytes = {std::byte{0}, std::byte{255}}};

std::vector<std::byte> written(const Outer& value) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer(value);
  return bytes;
}

TEST(ByteArchive, ReadsWhatItWrote) {
  const std::vector<std::byte> bytes = written(example);
  Outer read;
  ByteReader reader(bytes);
  reader(read);

  EXPECT_TRUE(reader.ok());
  EXPECT_EQ(read, example);
}

TEST(ByteArchive, NoticesBytesThatAreMissingOrLeftOver) {
  std::vector<std::byte> bytes = written(example);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    Outer read;
    ByteReader reader(std::span<const std::byte>(bytes).first(length));
    reader(read);
    EXPECT_FALSE(reader.ok()) << length;
  }
  bytes.push_back(std::byte{0});
  Outer read;
  ByteReader reader(bytes);
  reader(read);
  EXPECT_FALSE(reader.ok());
}

TEST(ByteArchive, NoticesValuesThatNobodyWrites) {
  for (const auto& [at, value] : {std::pair{8, 2}, {9, 2}}) {  // the colour, the flag
    std::vector<std::byte> bytes = written(example);
    bytes[static_cast<std::size_t>(at)] = static_cast<std::byte>(value);
    Outer read;
    ByteReader reader(bytes);
    reader(read);
    EXPECT_FALSE(reader.ok()) << at;
  }
}

TEST(ByteArchive, AllocatesNoMoreThanTheBytesCanFill) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer(std::numeric_limits<std::uint32_t>::max());
  std::vector<std::uint64_t> numbers;
  ByteReader reader(bytes);
  reader(numbers);

  EXPECT_FALSE(reader.ok());
  EXPECT_TRUE(numbers.empty());
}

}  // namespace
}  // namespace penstock::test
