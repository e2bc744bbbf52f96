// The drive of a durable run is cut off under its file system, which loses what it has not written. What the drive
// holds is mounted again, and goes on with the bits of a run that never stopped.
#include "crash/durable_run.hpp"
#include "kit/mounted_file_system.hpp"
#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <cstdint>
#include <iostream>
#include <string>

namespace penstock::zero::test {
namespace {

using penstock::test::MountedFileSystem;
using penstock::test::SeededRandom;

class CutDevice : public testing::TestWithParam<MountedFileSystem::Kind> {};

TEST_P(CutDevice, LosesNoCommit) {
  std::size_t cuts = 0;
  for (const Offload& offload : offloads) {
    SCOPED_TRACE(offload.name);
    const std::string expected = digest_without_commits(offload);
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      MountedFileSystem mounted(GetParam(), "160M");
      if (!mounted.skip_reason().empty()) GTEST_SKIP() << mounted.skip_reason();
      SeededRandom random(seed);
      DurableRun run(offload, std::filesystem::absolute(mounted.path()) / "durable");
      for (std::uint64_t attempt = 0; attempt < 3; ++attempt) {
        KillPoint point{.number = 20 + random.below(60)};
        if (random.below(2) == 0) point.rank = static_cast<std::uint32_t>(random.below(ranks));
        if (run.start(point) == 0) break;
        const std::string failed = mounted.cut_off();
        ASSERT_EQ(failed, "");
        ++cuts;
      }
      run.expect_continued(expected);
      if (HasFailure()) return;
    }
  }
  std::cout << cuts << " crash points, none lost\n";
}

INSTANTIATE_TEST_SUITE_P(FileSystems, CutDevice,
                         testing::Values(MountedFileSystem::Kind::ext4, MountedFileSystem::Kind::xfs,
                                         MountedFileSystem::Kind::btrfs),
                         [](const auto& kind) { return std::string(to_string(kind.param)); });

}  // namespace
}  // namespace penstock::zero::test
