#include "swap/path/size_swap_files.hpp"

#include "kit/scratch_directory.hpp"

#include <penstock/tiers/io/sim_disk.hpp>

#include <gtest/gtest.h>
#include <array>
#include <cmath>
#include <memory>

namespace penstock::swap {
namespace {

class SizeSwapFiles : public testing::Test {
 protected:
  void path(double weight, ByteCount free) {
    disks_.push_back(std::make_unique<tiers::SimDisk>(tiers::SimDisk::Options{.capacity = free}));
    paths_.push_back({.directory = std::string("disk").append(std::to_string(disks_.size())),
                      .weight = weight,
                      .file_system = disks_.back().get()});
  }

  std::vector<std::unique_ptr<tiers::SimDisk>> disks_;
  std::vector<PathOptions> paths_;
};

TEST_F(SizeSwapFiles, ReservesByWeightAndLetsEachPathGrowToHoldAll) {
  path(3, 1_GiB);
  path(1, 1_GiB);

  ASSERT_TRUE(size_swap_files({.total = 400_MiB, .tensor_max = 2_MiB}, paths_));

  EXPECT_EQ(paths_[0].reserved, 302_MiB);
  EXPECT_EQ(paths_[1].reserved, 102_MiB);
  for (const PathOptions& each : paths_) EXPECT_GE(each.capacity, 400_MiB);
}

TEST_F(SizeSwapFiles, ReservesOnOtherPathsTheBytesForWhichOnePathHasNoRoom) {
  path(1, 10_MiB);
  path(1, 1_GiB);
  path(2, 1_GiB);

  ASSERT_TRUE(size_swap_files({.total = 400_MiB, .tensor_max = 2_MiB}, paths_));

  EXPECT_EQ(paths_[0].reserved, 10_MiB);
  // 392 MiB are left beside the 8 MiB that whole tensors surely fill there, a third and two thirds.
  EXPECT_EQ(paths_[1].reserved, 134_MiB);
  EXPECT_EQ(paths_[2].reserved, 264_MiB);
}

TEST_F(SizeSwapFiles, DoesNotUseAPathWithoutRoomForOneTensor) {
  path(1, 1_MiB);
  path(1, 1_GiB);
  path(1, 1_GiB);

  const auto left_out = size_swap_files({.total = 100_MiB, .tensor_max = 3_MiB}, paths_);

  ASSERT_TRUE(left_out);
  ASSERT_EQ(left_out->size(), 1u);
  EXPECT_NE(left_out->front().find("disk1 is not used"), std::string::npos) << left_out->front();
  ASSERT_EQ(paths_.size(), 2u);
  EXPECT_EQ(paths_[0].directory, "disk2");
}

TEST_F(SizeSwapFiles, RefusesAnInvalidWeight) {
  for (const double weight : {-1.0, std::nan("")}) {
    paths_.clear();
    path(weight, 1_GiB);
    path(0, 1_GiB);

    const auto refused = size_swap_files({.total = 100_MiB, .tensor_max = 2_MiB}, paths_);

    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  }
}

/// What a run that is continued has on its drives is no space that it needs again.
TEST(SizeSwapFilesOfOneFileSystem, CountsWhatItsFilesHaveAsFree) {
  const test::ScratchDirectory one, two;
  std::vector<PathOptions> paths;
  for (const auto* directory : {&one, &two}) {
    paths.push_back({.directory = directory->path(), .file_name = "swap0", .weight = 1});
    ASSERT_TRUE(tiers::real_file_system().create(directory->path() / "swap0", 2_GiB, tiers::DirectIo::off));
  }
  const ByteCount free = tiers::real_file_system().free_space(one.path()).value();

  EXPECT_TRUE(size_swap_files({.total = free + 2_GiB, .tensor_max = 2_MiB}, paths));

  for (PathOptions& path : paths) path.file_name = "swap1";
  EXPECT_EQ(size_swap_files({.total = free + 2_GiB, .tensor_max = 2_MiB}, paths).error().code(),
            ErrorCode::no_space);
}

TEST(SizeSwapFilesOfOneFileSystem, CountsTheFreeSpaceOnce) {
  const test::ScratchDirectory one, two;
  std::vector<PathOptions> paths = {{.directory = one.path()}, {.directory = two.path()}};
  const ByteCount free = tiers::real_file_system().free_space(one.path()).value();

  EXPECT_FALSE(size_swap_files({.total = free + free / 2, .tensor_max = 2_MiB}, paths));
}

TEST_F(SizeSwapFiles, ReportsTheFreeSpaceOfEachPathWhenTheNeedDoesNotFit) {
  path(1, 100_MiB);
  path(1, 200_MiB);

  const auto refused = size_swap_files({.total = 400_MiB, .tensor_max = 2_MiB}, paths_);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::no_space);
  for (const char* words :
       {"wanted at least 404.0 MiB", "got 300.0 MiB free", "100.0 MiB in disk1", "200.0 MiB in disk2"}) {
    EXPECT_NE(refused.error().message().find(words), std::string::npos) << refused.error().message();
  }
}

TEST_F(SizeSwapFiles, ReservesAllOnAnOnlyPath) {
  path(0, 1_GiB);  // nothing to measure it beside

  ASSERT_TRUE(size_swap_files({.total = 301_MiB, .tensor_max = 2_MiB}, paths_));

  EXPECT_EQ(paths_[0].capacity, 302_MiB);
  EXPECT_EQ(paths_[0].reserved, 302_MiB);
  EXPECT_EQ(paths_[0].weight, 1);
}

TEST(Weights, AreEqualForSpeedsThatDifferByLessThanAQuarter) {
  EXPECT_EQ(weights_of(std::array{1.0, 1.2}), (std::vector<double>{1, 1}));
  EXPECT_EQ(weights_of(std::array{6.0, 2.0, 3.0}), (std::vector<double>{3, 1, 1.5}));
}

TEST(Weights, AreMeasuredOnRealDirectories) {
  const test::ScratchDirectory one, two;
  std::vector<PathOptions> paths = {{.directory = one.path(), .weight = 0},
                                    {.directory = two.path(), .weight = 0}};

  ASSERT_TRUE(size_swap_files({.total = 64_MiB, .tensor_max = 2_MiB}, paths));

  for (const PathOptions& path : paths) {
    EXPECT_GE(path.weight, 1);
    EXPECT_GE(path.reserved.value(), 2_MiB);
  }
  EXPECT_EQ(one.entry_count() + two.entry_count(), 0u);
}

}  // namespace
}  // namespace penstock::swap
