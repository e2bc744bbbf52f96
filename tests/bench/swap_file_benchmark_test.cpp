#include "swap_file_benchmark.hpp"
#include "kit/scratch_directory.hpp"
#include "nvme_swap/disk_beside_update.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <chrono>
#include <cstdint>
#include <cstring>

namespace penstock::bench {
namespace {

constexpr ByteCount length = 1_MiB;
constexpr std::chrono::seconds deadline(60);

class SwapFileBenchmarkTest : public testing::Test {
 protected:
  SwapFileBenchmarkTest() { file_.extend(length).value(); }
  HostSpan bytes() { return arena_.bytes().subspan({}, length); }
  void write() {
    std::uint32_t number = 0;
    for (std::uint32_t& word : bytes().as<std::uint32_t>()) word = number++ * 2654435761u;
    file_.write(FileOffset(0), bytes()).value();
  }
  [[nodiscard]] ByteCount on_disk() const {
    struct stat status {};
    EXPECT_EQ(::fstat(static_cast<int>(file_.handle()), &status), 0);
    return ByteCount(static_cast<std::uint64_t>(status.st_blocks) * 512);
  }
  /// Of a capacity that has a rest beside whole transfers.
  [[nodiscard]] swap::PathReport report() const {
    return {.file = file_.properties(),
            .capacity = length - 4_KiB,
            .request_max = 64_KiB,
            .in_flight_max = 256_KiB};
  }

  test::ScratchDirectory directory_;
  tiers::File file_ =
      tiers::real_file_system().create_scratch(directory_.path(), 4_KiB, tiers::DirectIo::preferred).value();
  tiers::HostArena arena_ = tiers::HostArena::create({.size = length}).value();
};

TEST_F(SwapFileBenchmarkTest, KeepsTheBytesOfTheFile) {
  write();
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

TEST_F(SwapFileBenchmarkTest, WritesTheWholeTransfersOnce) {
  ASSERT_LT(on_disk(), 64_KiB);

  (void)SwapFileBenchmark::create(report(), deadline).value();

  EXPECT_GE(on_disk(), length - 64_KiB);
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

TEST_F(SwapFileBenchmarkTest, MeasuresBesideUpdates) {
  write();
  auto workers = parallel::Workers::create({.threads = 1}).value();
  const auto file = SwapFileBenchmark::create(report(), deadline).value();
  const auto beside =
      DiskBesideUpdate::create({.elements = ElementCount(16'384), .workers = &workers}, 256_KiB).value();
  for (const double share : {0.5, 1.0}) {
    const auto rates = beside->measure(*file, share, std::chrono::milliseconds(20)).value();
    EXPECT_GT(rates.mixed, 0);
    EXPECT_GT(beside->updates(), 0u);
  }
}

TEST_F(SwapFileBenchmarkTest, GivesTheErrorOfTheFileBesideUpdates) {
  auto workers = parallel::Workers::create({.threads = 1}).value();
  const auto file = SwapFileBenchmark::create(report(), deadline).value();
  const auto beside =
      DiskBesideUpdate::create({.elements = ElementCount(16'384), .workers = &workers}, 256_KiB).value();
  ASSERT_EQ(::ftruncate(static_cast<int>(file_.handle()), 4096), 0);

  const auto rates = beside->measure(*file, 1, std::chrono::milliseconds(20));

  ASSERT_FALSE(rates);
  EXPECT_EQ(rates.error().code(), ErrorCode::truncated) << rates.error().message();
}

}  // namespace
}  // namespace penstock::bench
