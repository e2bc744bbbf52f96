// What becomes of requests that end with EIO: cut in two, until they pass or name the one block that does not.
#include "kit/pattern.hpp"
#include "unit/tiers/io/scripted_engine.hpp"

#include <penstock/tiers/io/sim_disk.hpp>
#include "tiers/io/block_file.hpp"

#include <gtest/gtest.h>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>

namespace penstock::tiers {
namespace {

using test::Pattern;

class BlockFileSubdivision : public testing::TestWithParam<IoOperation> {
 protected:
  static constexpr std::uint64_t block = 4096;

  /// One request for each transfer, as long as nothing fails.
  BlockFile make(IoEngine& engine, ByteCount request_max = 256_KiB) {
    return BlockFile::create(disk_.create_scratch("sim", 256_KiB, DirectIo::preferred).value(), engine,
                             {.size = 256_KiB, .request_max = request_max, .in_flight_max = 64_KiB})
        .value();
  }
  Result<void> run(BlockFile& file, std::uint64_t offset, HostSpan buffer) {
    PENSTOCK_TRY(file.start(GetParam(), FileOffset(offset), buffer, 1));
    while (file.busy()) file.poll(TimePoint::min());
    return file.take_finished()->result;
  }
  HostSpan bytes(ByteCount size) { return HostSpan(memory_.get(), size); }
  /// Whatever touches one of the file's bytes from `begin` on fails.
  static ScriptedEngine::Script unreadable(std::uint64_t begin, std::uint64_t length) {
    return [=](const IoRequest& request, std::size_t) -> std::optional<std::int64_t> {
      const std::uint64_t from = request.offset.value(), to = from + request.buffer.size().value();
      if (from < begin + length && begin < to) return -EIO;
      return std::nullopt;
    };
  }

  std::unique_ptr<std::byte, decltype(&std::free)> memory_{
      static_cast<std::byte*>(std::aligned_alloc(4096, 262144)), &std::free};
  SimDisk disk_{{}};
  ScriptedEngine engine_;
};

/// The lines after the first one give advice.
std::string first_line(const std::string& message) {
  return message.substr(0, message.find('\n'));
}

TEST_P(BlockFileSubdivision, NamesTheFailingBlockAfterAtMostTwiceTheLogarithmOfTheLengthInRequests) {
  for (const std::uint64_t blocks : {1u, 2u, 3u, 31u, 32u, 33u, 56u}) {
    for (std::uint64_t bad = 0; bad < blocks; ++bad) {
      engine_.script = unreadable((8 + bad) * block + 512, 512);  // a sector within
      engine_.count = 0;
      BlockFile file = make(engine_);

      auto result = run(file, 8 * block, bytes(ByteCount(blocks * block)));

      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().code(), ErrorCode::io);
      EXPECT_EQ(first_line(result.error().message()),
                std::string("input/output error: simulated file in sim at offset ")
                    .append(std::to_string((8 + bad) * block))
                    .append(", wanted 4.0 KiB (4096 B): Input/output error ")
                    .append(GetParam() == IoOperation::read ? "[BlockFile::read]" : "[BlockFile::write]"))
          << blocks << " blocks";
      EXPECT_LE(engine_.count, 1 + 2 * std::bit_width(blocks - 1)) << blocks << " blocks, bad " << bad;
      EXPECT_LE(file.counters().subdivided, static_cast<std::uint64_t>(std::bit_width(blocks - 1)))
          << blocks << " blocks, bad " << bad;
    }
  }
}

TEST_P(BlockFileSubdivision, TransfersEveryByteOnADriveThatAcceptsOnlyShortRequests) {
  for (const std::uint64_t longest : {1u, 3u, 16u}) {
    engine_.script = nullptr;
    BlockFile file = make(engine_);
    Pattern{.tensor = longest}.fill(bytes(200_KiB));
    if (GetParam() == IoOperation::read) {  // first written without an error
      BlockFile writer = make(engine_);
      ASSERT_TRUE(writer.start(IoOperation::write, FileOffset(0), bytes(200_KiB), 1));
      while (writer.busy()) writer.poll(TimePoint::min());
      Pattern{.tensor = 99}.fill(bytes(200_KiB));
    }
    engine_.script = [&](const IoRequest& request, std::size_t) -> std::optional<std::int64_t> {
      if (request.buffer.size().value() > longest * block) return -EIO;
      return std::nullopt;
    };

    auto result = run(file, 0, bytes(200_KiB));

    ASSERT_TRUE(result) << result.error().message();
    if (GetParam() == IoOperation::write) {
      Pattern{.tensor = 99}.fill(bytes(200_KiB));
      ASSERT_TRUE(file.start(IoOperation::read, FileOffset(0), bytes(200_KiB), 1));
      while (file.busy()) file.poll(TimePoint::min());
    }
    EXPECT_FALSE(Pattern{.tensor = longest}.first_difference(bytes(200_KiB))) << longest;
    EXPECT_EQ(file.counters().short_transfers, 0u);
    EXPECT_GT(file.counters().subdivided, 0u);
    const ByteCount moved =
        GetParam() == IoOperation::read ? file.counters().bytes_read : file.counters().bytes_written;
    EXPECT_EQ(moved, 200_KiB);
  }
}

TEST_P(BlockFileSubdivision, SurvivesOneErrorThatDoesNotComeAgain) {
  engine_.script = [](const IoRequest&, std::size_t index) -> std::optional<std::int64_t> {
    if (index == 0) return -EIO;
    return std::nullopt;
  };
  BlockFile file = make(engine_);

  EXPECT_TRUE(run(file, 0, bytes(64_KiB)));

  EXPECT_EQ(file.counters().subdivided, 1u);
  EXPECT_EQ(file.counters().requests, 3u);
}

TEST_P(BlockFileSubdivision, TransfersNothingMoreOnceOneBlockHasFailed) {
  engine_.script = [](const IoRequest&, std::size_t) -> std::optional<std::int64_t> { return -EIO; };
  BlockFile file = make(engine_, 64_KiB);

  auto result = run(file, 0, bytes(256_KiB));

  ASSERT_FALSE(result);
  // One part at a time is in flight here, and the three after the first are never requested.
  EXPECT_EQ(engine_.count, 5u);  // 64, 32, 16, 8, 4 KiB
  EXPECT_EQ(engine_.in_flight(), 0u);
  engine_.script = nullptr;
  EXPECT_TRUE(run(file, 0, bytes(256_KiB)));
}

TEST_P(BlockFileSubdivision, IsForThatErrorAlone) {
  for (const int error : {ENOSPC, ENODEV, EFAULT, ECANCELED}) {
    engine_.script = [error](const IoRequest&, std::size_t) -> std::optional<std::int64_t> { return -error; };
    engine_.count = 0;
    BlockFile file = make(engine_);

    EXPECT_FALSE(run(file, 0, bytes(64_KiB)));

    EXPECT_EQ(engine_.count, 1u) << error;
    EXPECT_EQ(file.counters().subdivided, 0u);
  }
}

TEST_P(BlockFileSubdivision, WorksWithShortTransfersAndTransientErrors) {
  engine_.script = [](const IoRequest& request, std::size_t index) -> std::optional<std::int64_t> {
    if (request.buffer.size() > 16_KiB) return -EIO;
    if (index % 3 == 0) return -EAGAIN;
    if (index % 3 == 1) return 5000;
    return std::nullopt;
  };
  BlockFile file = make(engine_);

  auto result = run(file, 0, bytes(64_KiB));

  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(file.counters().subdivided, 2u);
  EXPECT_GT(file.counters().retries, 0u);
  EXPECT_GT(file.counters().short_transfers, 0u);
}

INSTANTIATE_TEST_SUITE_P(Both, BlockFileSubdivision, testing::Values(IoOperation::read, IoOperation::write),
                         [](const auto& operation) {
                           return operation.param == IoOperation::read ? "Read" : "Write";
                         });

}  // namespace
}  // namespace penstock::tiers
