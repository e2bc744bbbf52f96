#include "zero/launch/control_message.hpp"

#include <gtest/gtest.h>
#include <string>
#include <utility>

namespace penstock::zero::control {
namespace {

std::vector<std::byte> bytes(std::size_t count) {
  std::vector<std::byte> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = std::byte(i * 7);
  return made;
}

const std::vector<Message> examples = {
    Hello{.job = "77.0", .build = "1.0", .machine = "m", .host = "h", .rank = 3, .ranks = 4, .process = 99},
    Welcome{.peers = {{"m", "h", 1}, {"", std::string("n\0l", 3), ~0u}}},
    Gather{.by = Gatherer::trainer,
           .epoch = 2,
           .round = ~std::uint64_t{0},
           .label = "norm",
           .bytes = bytes(300)},
    Gathered{.epoch = 1, .round = 5, .all = {bytes(3), {}, bytes(1)}},
    Interrupt{.epoch = 3, .text = "the disk is full"},
    Heartbeat{},
    Failure{.code = ErrorCode::failed_state, .text = "lost"},
    Leave{},
    Absent{.by = Gatherer::trainer, .epoch = 1, .round = 7, .ranks = {0, 3}}};

FrameReader reader_of_a_rank() {
  FrameReader reader;
  reader.limit(payload_bytes_max);
  return reader;
}

TEST(ControlMessage, ComesOutAsItWentIn) {
  for (const Message& message : examples) {
    FrameReader reader = reader_of_a_rank();
    reader.feed(encode(message));
    EXPECT_EQ(reader.next().value(), message) << "kind " << message.index();
    EXPECT_TRUE(reader.is_between_frames());
    EXPECT_EQ(reader.next().value(), std::nullopt);
  }
}

TEST(ControlMessage, IsCutOutOfPiecesOfAnySize) {
  std::vector<std::byte> stream;
  for (const Message& message : examples) {
    const auto frame = encode(message);
    stream.insert(stream.end(), frame.begin(), frame.end());
  }
  for (std::size_t piece = 1; piece <= stream.size(); ++piece) {
    FrameReader reader = reader_of_a_rank();
    std::vector<Message> read;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      reader.feed(std::span(stream).subspan(at, std::min(piece, stream.size() - at)));
      while (auto message = reader.next().value()) read.push_back(*std::move(message));
    }
    ASSERT_EQ(read, examples) << "pieces of " << piece;
    EXPECT_TRUE(reader.is_between_frames());
  }
}

TEST(ControlMessage, KnowsWhereAStreamIsTorn) {
  const auto frame = encode(examples[0]);
  for (std::size_t size = 1; size < frame.size(); ++size) {
    FrameReader reader;
    reader.feed(std::span(frame).first(size));
    EXPECT_EQ(reader.next().value(), std::nullopt);
    EXPECT_FALSE(reader.is_between_frames());
  }
}

void expect_refused(std::vector<std::byte> stream, const std::string& words, std::uint32_t payload_max) {
  FrameReader reader;
  reader.limit(payload_max);
  reader.feed(stream);
  const auto refused = reader.next();
  ASSERT_FALSE(refused) << words;
  EXPECT_EQ(refused.error().code(), ErrorCode::corrupted);
  EXPECT_NE(refused.error().message().find(words), std::string::npos) << refused.error().message();
  EXPECT_FALSE(reader.next()) << "it returns nothing else";
}

TEST(ControlMessage, RefusesWhatIsNone) {
  std::vector<std::byte> http;
  for (const char c : std::string("GET / HTTP/1.1\r\n\r\n")) http.push_back(std::byte(c));
  expect_refused(http, "does not speak the protocol", payload_bytes_max);
  auto other = encode(examples[0]);
  other[4] = std::byte{9};
  expect_refused(other, "another version of the protocol, wanted 2, got 9", payload_bytes_max);
  auto unknown = encode(Leave{});
  unknown[6] = std::byte{40};
  expect_refused(unknown, "message of kind 40", payload_bytes_max);
  auto short_of_fields = encode(examples[2]);
  short_of_fields[8] = std::byte{7};
  short_of_fields[9] = std::byte{0};
  expect_refused(short_of_fields, "fields of a message", payload_bytes_max);
  auto code = encode(Failure{});
  code[12] = std::byte{200};
  expect_refused(code, "fields of a message", payload_bytes_max);
  auto gatherer = encode(Gather{});
  gatherer[12] = std::byte{gatherers};
  expect_refused(gatherer, "fields of a message", payload_bytes_max);
}

TEST(ControlMessage, RefusesOneThatIsTooLong) {
  expect_refused(encode(Gather{.epoch = 0, .round = 0, .label = {}, .bytes = bytes(hello_bytes_max)}),
                 "too long", hello_bytes_max);
  auto huge = encode(Leave{});
  for (std::size_t i = 8; i < 12; ++i) huge[i] = std::byte{0xff};
  expect_refused(huge, "got 4294967295", payload_bytes_max);
}

TEST(ControlMessage, HasTheSizeThatIsPredicted) {
  const Gathered gathered{.epoch = 0, .round = 1, .all = {bytes(10), bytes(10), bytes(10)}};
  EXPECT_EQ(encode(gathered).size() - encode(Leave{}).size(), gathered_bytes(3, 10));
}

}  // namespace
}  // namespace penstock::zero::control
