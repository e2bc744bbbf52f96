#include <penstock/swap/disk_benchmark.hpp>

#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <atomic>
#include <chrono>

namespace penstock::swap {
namespace {

constexpr TimePoint briefly = std::chrono::milliseconds(10);

class DiskBenchmarkTest : public testing::Test {
 protected:
  PathOptions path(ByteCount capacity = 4_MiB) {
    return {.directory = directory_.path(),
            .capacity = capacity,
            .request_max = 64_KiB,
            .in_flight_max = 256_KiB};
  }

  test::ScratchDirectory directory_;
};

TEST_F(DiskBenchmarkTest, MovesOnlyWhatItsPatternSays) {
  auto load = DiskBenchmark::create({.paths = {path()}}).value();

  const BenchmarkSample read = load->run(BenchmarkPattern::read, briefly).value();
  const BenchmarkSample write = load->run(BenchmarkPattern::write, briefly).value();
  const BenchmarkSample mixed = load->run(BenchmarkPattern::mixed, briefly).value();

  EXPECT_GT(read.moved.bytes_read, 0_B);
  EXPECT_EQ(read.moved.bytes_written, 0_B);
  EXPECT_EQ(write.moved.bytes_read, 0_B);
  EXPECT_GT(write.moved.bytes_written, 0_B);
  const auto half = static_cast<double>(mixed.moved.bytes_read.value());
  EXPECT_NEAR(half, static_cast<double>(mixed.moved.bytes_written.value()), 65536.0);
  EXPECT_GE(read.elapsed, briefly);
  EXPECT_EQ(read.moved.latency.count(), read.moved.requests);
  EXPECT_EQ(read.total(), read.bytes.at(0));
}

TEST_F(DiskBenchmarkTest, WritesEveryByteBeforeTheFirstRun) {
  const auto load = DiskBenchmark::create({.paths = {path()}}).value();

  EXPECT_EQ(load->paths()[0].counters.bytes_written, 4_MiB);
}

TEST_F(DiskBenchmarkTest, PassesTheBytesThatItReadsToTheCallerAndWritesThemBack) {
  std::atomic<std::uint64_t> calls = 0;
  const auto between = [&](const DiskBenchmark::Piece& piece) -> Result<void> {
    EXPECT_EQ(piece.bytes.size(), 128_KiB);
    ++calls;
    return ok();
  };
  auto load = DiskBenchmark::create({.paths = {path()}, .transfer = 128_KiB, .between = between}).value();

  const BenchmarkSample swapped = load->run(BenchmarkPattern::swap, briefly).value();

  EXPECT_EQ(swapped.moved.bytes_read, swapped.moved.bytes_written);
  EXPECT_EQ(swapped.moved.bytes_read, 128_KiB * calls);
}

TEST_F(DiskBenchmarkTest, PassesEachPieceToTheCallerWithTheContentsOfTheFile) {
  const auto identity = [](const DiskBenchmark::Piece& piece) {
    return piece.path * 1'000'000'000 + piece.offset.value();
  };
  const auto initial = [&](const DiskBenchmark::Piece& piece) -> Result<void> {
    for (std::uint64_t& word : piece.bytes.as<std::uint64_t>()) word = identity(piece);
    return ok();
  };
  std::atomic<std::uint64_t> seen = 0;
  const auto between = [&](const DiskBenchmark::Piece& piece) -> Result<void> {
    EXPECT_EQ(piece.bytes.as<std::uint64_t>().back(), identity(piece));
    ++seen;
    return ok();
  };
  auto load =
      DiskBenchmark::create({.paths = {path(), path()}, .initial = initial, .between = between}).value();

  load->run(BenchmarkPattern::swap, briefly).value();
  load->run(BenchmarkPattern::swap, briefly).value();  // each piece was written back to its place

  EXPECT_GT(seen, 0u);
}

TEST_F(DiskBenchmarkTest, IsNotMadeWhenItsFilesCannotBeFilled) {
  int left = 9;
  const auto initial = [&](const DiskBenchmark::Piece&) -> Result<void> {
    if (left-- > 0) return ok();
    return Error::invalid_argument("initial");
  };

  const auto load = DiskBenchmark::create({.paths = {path()}, .initial = initial});

  ASSERT_FALSE(load);
  EXPECT_EQ(load.error().code(), ErrorCode::invalid_argument);
}

TEST_F(DiskBenchmarkTest, KeepsEveryPathBusy) {
  auto load = DiskBenchmark::create({.paths = {path(), path()}}).value();

  const BenchmarkSample sample = load->run(BenchmarkPattern::mixed, briefly).value();

  ASSERT_EQ(sample.bytes.size(), 2u);
  EXPECT_GT(sample.bytes[0], 0_B);
  EXPECT_GT(sample.bytes[1], 0_B);
  EXPECT_EQ(sample.bytes[0] + sample.bytes[1], sample.total());
}

TEST_F(DiskBenchmarkTest, StopsAtTheFirstErrorAndCanRunAgain) {
  int left = 3;
  const auto between = [&](const DiskBenchmark::Piece&) -> Result<void> {
    if (left-- > 0) return ok();
    return Error::invalid_argument("between");
  };
  auto load = DiskBenchmark::create({.paths = {path()}, .between = between}).value();

  const auto failed = load->run(BenchmarkPattern::swap, std::chrono::hours(1));

  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::invalid_argument);
  EXPECT_TRUE(load->run(BenchmarkPattern::read, briefly));
}

TEST_F(DiskBenchmarkTest, RefusesAFileThatCannotKeepItsQueueFull) {
  const auto load = DiskBenchmark::create({.paths = {path(512_KiB)}});

  ASSERT_FALSE(load);
  EXPECT_EQ(load.error().code(), ErrorCode::invalid_argument);
  EXPECT_NE(load.error().message().find("wanted at least 768.0 KiB (786432 B), got 512.0 KiB"),
            std::string::npos)
      << load.error().message();
}

}  // namespace
}  // namespace penstock::swap
