#include "kit/mounted_file_system.hpp"
#include "kit/scratch_directory.hpp"
#include "measure/statistics.hpp"
#include "measure/storage_device.hpp"

#include <penstock/tiers/io/file_system.hpp>

#include <gtest/gtest.h>

namespace penstock::measure {
namespace {

TEST(Statistics, AreTheMedianAndTheInterquartileRange) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(spread({8, 1, 4, 2, 3, 5, 6, 7}), (7 - 3) / 4.5);
  EXPECT_EQ(center({5, 5, 5}).spread, 0);
}

TEST(Statistics, CompareRoundByRound) {
  EXPECT_EQ(ratios({2, 9}, {4, 3}), (std::vector<double>{0.5, 3}));
}

TEST(StorageDevice, KnowsDirectoriesOfOneDrive) {
  const test::ScratchDirectory one, other;

  EXPECT_EQ(describe_storage(one.path()).id, describe_storage(other.path()).id);
  EXPECT_NE(describe_storage(one.path()).id, describe_storage("/proc").id);
}

TEST(StorageDevice, CountsDirectoriesOfOneFileSystemTogether) {
  const test::ScratchDirectory one, other;
  const std::filesystem::path both[] = {one.path(), other.path()};
  const ByteCount most = tiers::real_file_system().free_space(one.path()).value() / 4 * 3;

  EXPECT_TRUE(check_free_space({both, 1}, most));
  const auto refused = check_free_space(both, most);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::no_space);
  EXPECT_NE(refused.error().message().find(other.path().string()), std::string::npos);
}

TEST(PageCache, IsDetectedWhereItIsNotBypassed) {
  const test::MountedFileSystem tmpfs(test::MountedFileSystem::Kind::tmpfs);
  if (!tmpfs.skip_reason().empty()) GTEST_SKIP() << tmpfs.skip_reason();

  EXPECT_TRUE(page_cache_because(tmpfs.path()).value());
}

TEST(PageCache, IsDetectedForALoopDeviceWithoutDirectIo) {
  const test::MountedFileSystem loop(test::MountedFileSystem::Kind::ext4);
  if (!loop.skip_reason().empty()) GTEST_SKIP() << loop.skip_reason();

  const auto why = page_cache_because(loop.path()).value();

  ASSERT_TRUE(why);
  EXPECT_NE(why->find("loop"), std::string::npos) << *why;
}

TEST(PageCache, IsAnErrorForAMissingDirectory) {
  EXPECT_EQ(page_cache_because("/nonexistent/penstock").error().code(), ErrorCode::not_found);
}

}  // namespace
}  // namespace penstock::measure
