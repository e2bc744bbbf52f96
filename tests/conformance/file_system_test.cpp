// Swap files on every kind of file system that a user's directory may be on, with every engine, without fakes.
#include "base/owned_fd.hpp"
#include "kit/mounted_file_system.hpp"
#include "kit/pattern.hpp"

#include "swap/path/path.hpp"
#include "tiers/memory/host_arena.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <string>
#include <tuple>
#include <vector>

namespace penstock::swap {
namespace {

using test::MountedFileSystem;
using test::Pattern;
using tiers::BlockFile;
using tiers::EngineChoice;
using tiers::IoOperation;

class FileSystemConformance
    : public testing::TestWithParam<std::tuple<MountedFileSystem::Kind, EngineChoice>> {
 protected:
  void SetUp() override {
    if (!mounted_.skip_reason().empty()) GTEST_SKIP() << mounted_.skip_reason();
  }
  static bool is(MountedFileSystem::Kind kind) { return std::get<0>(GetParam()) == kind; }
  /// Others use the file system too.
  static bool shared() {
    return is(MountedFileSystem::Kind::directory) || is(MountedFileSystem::Kind::overlay);
  }
  PathOptions options(ByteCount capacity) const {
    return {.directory = mounted_.path(),
            .capacity = capacity,
            .request_max = 256_KiB,
            .engine = std::get<1>(GetParam())};
  }
  /// One transfer after the other, driven by the test's own thread.
  static Result<void> transfer(Path& path, IoOperation operation, std::uint64_t offset, HostSpan buffer) {
    path.post({.operation = operation, .offset = FileOffset(offset), .buffer = buffer});
    std::vector<BlockFile::Finished> outcomes;
    while (outcomes.empty()) {
      path.drive();
      path.take_outcomes(outcomes);
    }
    return outcomes[0].result;
  }

  MountedFileSystem mounted_{std::get<0>(GetParam())};
  tiers::HostArena arena_ = tiers::HostArena::create({.size = 8_MiB}).value();
};

TEST_P(FileSystemConformance, BringsBackWhatWasWrittenInEveryLength) {
  auto path = Path::create(options(16_MiB)).value();
  path->attach(arena_.bytes());
  const std::uint64_t block = path->alignment().bytes();
  std::uint64_t offset = 0, tensor = 0;
  std::vector<std::pair<std::uint64_t, ByteCount>> extents;
  for (const std::uint64_t blocks : {1u, 2u, 63u, 64u, 65u, 400u}) {
    const ByteCount size(blocks * block);
    const HostSpan out = arena_.bytes().subspan(0_B, size);
    Pattern{.tensor = tensor++, .generation = 1}.fill(out);
    ASSERT_TRUE(transfer(*path, IoOperation::write, offset, out));
    extents.emplace_back(offset, size);
    offset += size.value() + 3 * block;
  }

  for (std::size_t i = 0; i < extents.size(); ++i) {
    const auto [begin, size] = extents[i];
    const HostSpan in = arena_.bytes().subspan(4_MiB, size);
    ASSERT_TRUE(transfer(*path, IoOperation::read, begin, in));
    EXPECT_FALSE((Pattern{.tensor = i, .generation = 1}.first_difference(in))) << "extent " << i;
  }
  EXPECT_TRUE(path->file().direct || path->notes().find("buffered I/O: ") != std::string::npos)
      << path->notes();
  EXPECT_EQ(path->notes().find("space not reserved: ") != std::string::npos,
            is(MountedFileSystem::Kind::ext2))
      << path->notes();
}

TEST_P(FileSystemConformance, FlushesWhatWasWritten) {
  auto path = Path::create(options(4_MiB)).value();
  const HostSpan out = arena_.bytes().subspan(0_B, 1_MiB), in = arena_.bytes().subspan(4_MiB, 1_MiB);
  Pattern{.tensor = 3}.fill(out);
  path->post({.operation = IoOperation::write, .offset = FileOffset(0), .buffer = out, .tag = 1});
  path->post({.operation = IoOperation::flush, .tag = 2});
  std::vector<BlockFile::Finished> outcomes;
  while (outcomes.size() < 2) {
    path->drive();
    path->take_outcomes(outcomes);
  }

  EXPECT_EQ(outcomes[0].tag, 1u);
  EXPECT_EQ(outcomes[1].operation, IoOperation::flush);
  EXPECT_TRUE(outcomes[0].result && outcomes[1].result) << outcomes[1].result.error().message();
  ASSERT_TRUE(transfer(*path, IoOperation::read, 0, in));
  EXPECT_FALSE(Pattern{.tensor = 3}.first_difference(in));
}

TEST_P(FileSystemConformance, KeepsWhatItReservedWhenTheDiskIsFull) {
  if (shared()) GTEST_SKIP() << "this would fill the machine's own disk";
  if (is(MountedFileSystem::Kind::ext2)) GTEST_SKIP() << "nothing can be reserved there";
  auto path = Path::create(options(4_MiB)).value();
  const OwnedFd other(::open((mounted_.path() / "other").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  const std::vector<char> bytes(1 << 16, 'x');
  while (::write(other.get(), bytes.data(), bytes.size()) > 0) {
  }
  const HostSpan out = arena_.bytes().subspan(0_B, 4_MiB), in = arena_.bytes().subspan(4_MiB, 4_MiB);
  Pattern{.tensor = 1}.fill(out);

  auto more = Path::create(options(4_MiB));

  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code(), ErrorCode::no_space);
  for (const char* word : {mounted_.path().c_str(), "wanted 4.0 MiB", " free"}) {
    EXPECT_NE(more.error().message().find(word), std::string::npos) << more.error().message();
  }
  ASSERT_TRUE(transfer(*path, IoOperation::write, 0, out));
  ASSERT_TRUE(transfer(*path, IoOperation::read, 0, in));
  EXPECT_FALSE(Pattern{.tensor = 1}.first_difference(in));
}

TEST_P(FileSystemConformance, LeavesNothingBehind) {
  const auto before = tiers::real_file_system().free_space(mounted_.path()).value();
  {
    auto path = Path::create(options(4_MiB)).value();
    for (const auto& entry : std::filesystem::directory_iterator(mounted_.path())) {
      EXPECT_EQ(entry.path().filename(), "lost+found");
    }
  }
  // XFS frees the blocks of a removed file some time later.
  if (shared() || is(MountedFileSystem::Kind::xfs)) return;
  ::sync();
  EXPECT_EQ(tiers::real_file_system().free_space(mounted_.path()).value(), before);
}

INSTANTIATE_TEST_SUITE_P(
    Everywhere, FileSystemConformance,
    testing::Combine(testing::Values(MountedFileSystem::Kind::directory, MountedFileSystem::Kind::tmpfs,
                                     MountedFileSystem::Kind::ext4, MountedFileSystem::Kind::ext4_4k_sector,
                                     MountedFileSystem::Kind::xfs, MountedFileSystem::Kind::btrfs,
                                     MountedFileSystem::Kind::ext2, MountedFileSystem::Kind::overlay),
                     testing::Values(EngineChoice::automatic, EngineChoice::libaio, EngineChoice::threads)),
    [](const auto& setting) {
      return std::string(to_string(std::get<0>(setting.param))) + "_" +
             std::string(to_string(std::get<1>(setting.param)));
    });

}  // namespace
}  // namespace penstock::swap
