#include "optimizer_step/swap_file_benchmark.hpp"
#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <chrono>
#include <cstdint>
#include <cstring>

namespace penstock::bench {
namespace {

constexpr ByteCount length = 1_MiB;
constexpr std::chrono::seconds deadline(60);

class SwapFileBenchmarkTest : public testing::Test {
 protected:
  SwapFileBenchmarkTest() {
    std::uint32_t number = 0;
    for (std::uint32_t& word : bytes().as<std::uint32_t>()) word = number++ * 2654435761u;
    file_.write(FileOffset(0), bytes()).value();
  }
  HostSpan bytes() { return arena_.bytes().subspan({}, length); }
  /// Of a capacity that has a rest beside whole transfers.
  swap::PathReport report() const {
    return {.file = file_.properties(),
            .capacity = length - 4_KiB,
            .request_max = 64_KiB,
            .in_flight_max = 256_KiB};
  }

  test::ScratchDirectory directory_;
  tiers::File file_ =
      tiers::real_file_system().create_scratch(directory_.path(), length, tiers::DirectIo::preferred).value();
  tiers::HostArena arena_ = tiers::HostArena::create({.size = length}).value();
};

TEST_F(SwapFileBenchmarkTest, KeepsTheBytesOfTheFile) {
  {
    const auto benchmark = SwapFileBenchmark::create(report(), deadline).value();
    const swap::DiskRates rates = benchmark->measure(std::chrono::milliseconds(20)).value();
    EXPECT_GT(rates.read, 0);
    EXPECT_GT(rates.mixed, 0);
    EXPECT_EQ(rates.write, rates.mixed);
  }

  auto arena = tiers::HostArena::create({.size = length}).value();
  const HostSpan found = arena.bytes().subspan({}, length);
  file_.read(FileOffset(0), found).value();  // it is open still
  EXPECT_EQ(std::memcmp(found.data(), bytes().data(), length.value()), 0);
}

TEST_F(SwapFileBenchmarkTest, MeasuresAFileThatIsShorterThanATransfer) {
  swap::PathReport path = report();
  path.capacity = 12_KiB;

  EXPECT_TRUE(SwapFileBenchmark::create(path, deadline).value()->measure(std::chrono::milliseconds(1)));
}

TEST_F(SwapFileBenchmarkTest, GivesTheErrorOfAFileThatEndsEarly) {
  swap::PathReport path = report();
  path.capacity = 8_MiB;

  const auto benchmark = SwapFileBenchmark::create(path, deadline);

  ASSERT_FALSE(benchmark);
  EXPECT_EQ(benchmark.error().code(), ErrorCode::truncated) << benchmark.error().message();
}

}  // namespace
}  // namespace penstock::bench
