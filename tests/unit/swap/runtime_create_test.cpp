#include "unit/swap/runtime_fixture.hpp"

#include "kit/child_process.hpp"
#include "kit/scratch_directory.hpp"

#include <penstock/tiers/io/fault_file_system.hpp>

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <array>
#include <cerrno>
#include <filesystem>
#include <iterator>

namespace penstock::swap {
namespace {

using test::add;
using test::holds;
using test::write;
using tiers::TensorId;

/// Descriptors of this process, files of the kernel's such as rings included.
std::size_t open_descriptor_count() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

TEST(Runtime, EndsItsThreadsWhenOneOfThemCannotBeStarted) {
  const penstock::test::ScratchDirectory directory;
  for (unsigned started = 0; started < 5; ++started) {  // two to make the files, two drivers and the mover
    const int result = penstock::test::in_child([&] {
      RuntimeOptions options{.host_budget = 2_MiB};
      for (int path = 0; path < 2; ++path) {
        options.paths.push_back({.directory = directory.path(), .capacity = 1_MiB});
      }
      if (!penstock::test::refuse_system_call_times(SYS_clone3, EAGAIN, 1000, started)) return 77;
      const auto runtime = Runtime::create(std::move(options));
      return !runtime && runtime.error().code() == ErrorCode::no_space ? 0 : 1;
    });
    if (result == 77) GTEST_SKIP() << "no seccomp to be had";
    EXPECT_EQ(result, 0) << started;
  }
}

TEST(Runtime, LeavesNothingOpenWhenOneOfItsSwapFilesCannotBeMade) {
  using Faults = tiers::FileSystemFault;
  const std::array<penstock::test::ScratchDirectory, 4> directories;
  for (const auto& [error, code] :
       {std::pair(ENOSPC, ErrorCode::no_space), std::pair(EACCES, ErrorCode::permission),
        std::pair(EMFILE, ErrorCode::io)}) {
    for (std::uint64_t refused = 0;; ++refused) {
      tiers::FaultFileSystem file_system(tiers::real_file_system(),
                                         {Faults::fail(Faults::Operation::create_scratch, refused, error)});
      RuntimeOptions options{.host_budget = 2_MiB};
      for (const auto& directory : directories) {
        options.paths.push_back(
            {.directory = directory.path(), .capacity = 1_MiB, .file_system = &file_system});
      }
      const std::size_t before = open_descriptor_count();

      auto runtime = Runtime::create(options);

      if (refused == directories.size()) {
        EXPECT_TRUE(runtime);  // the whole passes
        break;
      }
      ASSERT_FALSE(runtime);
      EXPECT_EQ(runtime.error().code(), code);
      EXPECT_NE(runtime.error().message().find(directories.at(refused).path().string()), std::string::npos)
          << runtime.error().message();
      EXPECT_EQ(open_descriptor_count(), before);
      {
        auto again = Runtime::create(options).value();  // the fault has passed
        const TensorId tensor = add(*again, 1_MiB), other = add(*again, 1_MiB), evicts = add(*again, 1_MiB);
        for (const TensorId each : {tensor, other, evicts}) write(*again, each, 1);
        EXPECT_TRUE(holds(*again, tensor, 1));
      }
      EXPECT_EQ(open_descriptor_count(), before);
    }
  }
}

// Ranks that start at a time see the same free space.
TEST(Runtime, SizesItsPathsAgainWhereTheSpaceThatItHasSeenIsTaken) {
  const penstock::test::ScratchDirectory one, two;
  using tiers::FileSystemFault;
  for (const std::uint64_t times : {1u, 4u, 100u}) {
    tiers::FaultFileSystem file_system(
        tiers::real_file_system(),
        {FileSystemFault::fail(FileSystemFault::Operation::create_scratch, 0, ENOSPC, times)});
    RuntimeOptions options{.host_budget = 2_MiB};
    for (const auto* directory : {&one, &two})
      options.paths.push_back({.directory = directory->path(), .file_system = &file_system});
    options.swap_need = {.total = 2_MiB, .tensor_max = 1_MiB};

    const auto runtime = Runtime::create(std::move(options));

    EXPECT_EQ(runtime.has_value(), times < 5) << times;
    if (!runtime) {
      EXPECT_EQ(runtime.error().code(), ErrorCode::no_space);
    }
  }
}

TEST(Runtime, SaysOfEachPathThatItsFileSystemHasNoDirectIo) {
  const penstock::test::ScratchDirectory directory;
  tiers::FaultFileSystem file_system(tiers::real_file_system(),
                                     {{.effect = tiers::FileSystemFault::Effect::buffered}});
  const PathOptions path{.directory = directory.path(), .capacity = 1_MiB, .file_system = &file_system};

  auto runtime = Runtime::create({.host_budget = 2_MiB, .paths = {path, path}}).value();

  EXPECT_NE(runtime->paths()[0].notes.find("buffered I/O: "), std::string::npos) << runtime->paths()[0].notes;
  const TensorId tensor = add(*runtime, 1_MiB);
  ASSERT_EQ(runtime->describe(tensor).extent->path, 0u);
  write(*runtime, tensor, 1);
  EXPECT_TRUE(runtime->flush());
  EXPECT_TRUE(holds(*runtime, tensor, 1));
}

}  // namespace
}  // namespace penstock::swap
