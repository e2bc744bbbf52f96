#include <penstock/tiers/io/file_system.hpp>

#include "kit/child_process.hpp"
#include "kit/mounted_file_system.hpp"
#include "kit/sanitizer.hpp"
#include "kit/scratch_directory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::tiers {
namespace {

TEST(RealFileSystem, TellsAFileSystemWithoutFilesFromAMissingDirectory) {
  const auto in_proc = real_file_system().create_scratch("/proc", 4_KiB, DirectIo::off);
  const auto missing = real_file_system().create_scratch("/proc/missing", 4_KiB, DirectIo::off);

  ASSERT_FALSE(in_proc);
  EXPECT_EQ(in_proc.error().code(), ErrorCode::unsupported);
  EXPECT_NE(in_proc.error().message().find("creates no files: /proc"), std::string::npos)
      << in_proc.error().message();
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::not_found);
}

template <class T>
Result<void> done(const Result<T>& result) {
  return result ? ok() : Result<void>(result.error());
}

TEST(RealFileSystem, MakesAScratchFileThatHasNoNameAndItsBytesReserved) {
  test::ScratchDirectory directory;

  File file = real_file_system().create_scratch(directory.path(), 3_MiB, DirectIo::preferred).value();

  struct stat status {};
  ASSERT_EQ(::fstat(static_cast<int>(file.handle()), &status), 0);
  EXPECT_EQ(status.st_size, 3 << 20);
  EXPECT_GE(status.st_blocks * 512, 3 << 20);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(status.st_nlink, 0u);
  EXPECT_EQ(directory.entry_count(), 0u);
  EXPECT_TRUE(file.properties().direct || !file.properties().direct_note.empty());
  EXPECT_EQ(file.properties().reserve_note, "");
}

TEST(RealFileSystem, TouchesNothingThatItFindsInTheDirectory) {
  test::ScratchDirectory directory;
  const auto theirs = directory.path() / "swap", link = directory.path() / "penstock";
  std::ofstream(theirs) << "somebody's";
  std::filesystem::create_symlink(theirs, link);
  {
    File file = real_file_system().create_scratch(directory.path(), 1_MiB, DirectIo::preferred).value();
    EXPECT_EQ(directory.entry_count(), 2u);
  }

  std::string text;
  std::ifstream(theirs) >> text;
  EXPECT_EQ(text, "somebody's");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(directory.entry_count(), 2u);
}

TEST(RealFileSystem, ClosesTheFileWithItsOwner) {
  test::ScratchDirectory directory;
  int descriptor = -1;
  {
    File file = real_file_system().create_scratch(directory.path(), 4_KiB, DirectIo::off).value();
    descriptor = static_cast<int>(file.handle());
  }

  struct stat status {};
  EXPECT_EQ(::fstat(descriptor, &status), -1);
}

TEST(RealFileSystem, LeavesAFileOpenForARequestThatHasNotCompleted) {
  test::ScratchDirectory directory;
  auto file = real_file_system().create_scratch(directory.path(), 4_KiB, DirectIo::off).value();
  const int handle = static_cast<int>(file.handle());

  file.leave_open();
  const auto refused = file.size();
  file = File();

  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(::close(handle), 0);
}

TEST(RealFileSystem, ReportsTheWantedAndTheFreeBytes) {
  test::ScratchDirectory directory;
  const ByteCount free = real_file_system().free_space(directory.path()).value();

  auto file = real_file_system().create_scratch(directory.path(), free * 2, DirectIo::off);

  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code(), ErrorCode::no_space);
  EXPECT_NE(file.error().message().find(" free"), std::string::npos) << file.error().message();
  EXPECT_EQ(directory.entry_count(), 0u);
}

TEST(RealFileSystem, ReportsThatNothingIsReservedWhereThatIsUnsupportedAndUsesOnlyFreeSpace) {
  const test::MountedFileSystem ext2(test::MountedFileSystem::Kind::ext2);
  if (!ext2.skip_reason().empty()) GTEST_SKIP() << ext2.skip_reason();
  const ByteCount free = real_file_system().free_space(ext2.path()).value();

  auto file = real_file_system().create_scratch(ext2.path(), 4_MiB, DirectIo::preferred);
  auto too_long = real_file_system().create_scratch(ext2.path(), free + 1_B, DirectIo::preferred);

  ASSERT_TRUE(file) << file.error().message();
  EXPECT_EQ(file->properties().reserve_note, "the file system has no fallocate");
  struct stat status {};
  ASSERT_EQ(::fstat(static_cast<int>(file->handle()), &status), 0);
  EXPECT_EQ(status.st_size, 4 << 20);
  ASSERT_FALSE(too_long);
  EXPECT_EQ(too_long.error().code(), ErrorCode::no_space);
  for (const std::string& words : {ext2.path().string(), to_string(free) + " free", std::string("wanted ")}) {
    EXPECT_NE(too_long.error().message().find(words), std::string::npos) << too_long.error().message();
  }
}

TEST(RealFileSystem, AcceptsAFileSystemThatReportsNoLimit) {
  const test::MountedFileSystem tmpfs(test::MountedFileSystem::Kind::tmpfs);
  if (!tmpfs.skip_reason().empty()) GTEST_SKIP() << tmpfs.skip_reason();
  ASSERT_EQ(::mount(nullptr, tmpfs.path().c_str(), nullptr, MS_REMOUNT, "size=0"), 0);

  auto file = real_file_system().create_scratch(tmpfs.path(), 1_MiB, DirectIo::off);

  ASSERT_TRUE(file) << file.error().message();
  EXPECT_EQ(file->properties().reserve_note, "");
}

TEST(RealFileSystem, SurvivesALimitOnFileSizes) {
  test::ScratchDirectory directory;
  const int result = test::in_child([&] {
    const rlimit limit{1 << 20, 1 << 20};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    auto file = real_file_system().create_scratch(directory.path(), 2_MiB, DirectIo::off);
    return !file && file.error().code() == ErrorCode::no_space ? 0 : 3;
  });

  EXPECT_EQ(result, 0);
}

TEST(RealFileSystem, OpensNothingAsAStandardStreamThatIsClosed) {
  const test::ScratchDirectory directory;
  const int result = test::in_child([&] {
    FileSystem& files = real_file_system();
    for (int stream = 0; stream <= 2; ++stream) ::close(stream);
    const auto scratch = files.create_scratch(directory.path(), 4_KiB, DirectIo::preferred);
    const auto created = files.create(directory.path() / "swap", 4_KiB, DirectIo::off);
    const auto opened = files.open(directory.path() / "swap", DirectIo::off);
    const auto lock = files.lock(directory.path());
    if (!scratch || !created || !opened || !lock) return 2;
    if (!files.sync_directory(directory.path())) return 3;
    for (int stream = 0; stream <= 2; ++stream) {
      if (::fcntl(stream, F_GETFD) != -1) return 4;
    }
    return 0;
  });

  EXPECT_EQ(result, 0);
}

/// The message of create_scratch() in a child where O_TMPFILE is not supported and the first `count` calls of unlink
/// fail; at `names`, the files that it leaves. Empty where the file is created.
std::string message_without_unlink(const std::filesystem::path& directory, unsigned count) {
  const test::ScratchDirectory elsewhere;
  test::in_child([&] {
    if (!test::refuse_system_call_with(SYS_openat, 2, O_TMPFILE, EOPNOTSUPP)) return 77;
    if (!test::refuse_system_call_times(SYS_unlink, EBUSY, count)) return 77;
    auto file = real_file_system().create_scratch(directory, 4_KiB, DirectIo::off);
    std::ofstream(elsewhere.path() / "message") << (file ? "" : file.error().message());
    return 0;
  });
  std::ifstream message(elsewhere.path() / "message");
  return {std::istreambuf_iterator<char>(message), {}};
}

TEST(RealFileSystem, RemovesAFileWhoseNameCannotBeRemovedWhileItIsOpen) {
  const test::ScratchDirectory directory;

  const std::string message = message_without_unlink(directory.path(), 1);

  EXPECT_NE(message.find("its name cannot be removed: " + directory.path().string()), std::string::npos)
      << message;
  EXPECT_EQ(directory.entry_count(), 0u);
}

TEST(RealFileSystem, NamesAFileThatItCannotRemove) {
  const test::ScratchDirectory directory;

  const std::string message = message_without_unlink(directory.path(), 2);

  ASSERT_EQ(directory.entry_count(), 1u);
  const auto names = real_file_system().list(directory.path()).value();
  EXPECT_NE(message.find("file    " + (directory.path() / names.front()).string() +
                         " remains: Device or resource busy"),
            std::string::npos)
      << message;
}

TEST(RealFileSystem, NamesANamedFileThatItCannotRemoveAfterAnError) {
  const test::ScratchDirectory directory;
  const auto path = directory.path() / "swap";
  const int result = test::in_child([&] {
    if (!test::refuse_system_call(SYS_fallocate, EIO)) return 77;
    if (!test::refuse_system_call(SYS_unlink, EBUSY)) return 77;
    auto file = real_file_system().create(path, 4_KiB, DirectIo::off);
    if (file) return 2;
    const std::string message = file.error().message();
    if (message.find(path.string() + " remains: ") == std::string::npos) return 3;
    return message.find("penstock doctor --path") == std::string::npos ? 4 : 0;
  });

  EXPECT_EQ(result, 0);
}

TEST(RealFileSystem, GivesUpOnACallThatIsAlwaysInterrupted) {
  const test::ScratchDirectory directory;
  File file = real_file_system().create(directory.path() / "swap", 4_KiB, DirectIo::off).value();
  std::byte byte{};
  FileSystem& files = real_file_system();
  const std::vector<std::pair<long, std::function<Result<void>()>>> calls = {
      {SYS_fallocate, [&] { return done(files.create_scratch(directory.path(), 4_KiB, DirectIo::off)); }},
      {SYS_openat, [&] { return done(files.open(directory.path() / "swap", DirectIo::off)); }},
      {SYS_flock, [&] { return done(files.lock(directory.path())); }},
      {SYS_pread64, [&] { return file.read(FileOffset(0), HostSpan(&byte, 1_B)); }},
      {SYS_pwrite64, [&] { return file.write(FileOffset(0), ConstHostSpan(&byte, 1_B)); }},
      {SYS_ftruncate, [&] { return file.extend(8_KiB); }},
      {SYS_fdatasync, [&] { return file.sync(); }},
      {SYS_fsync, [&] { return files.sync_directory(directory.path()); }}};
  for (const auto& [number, call] : calls) {
    const int result = test::in_child([&, number = number, &call = call] {
      if (!test::refuse_system_call(number, EINTR)) return 77;
      const auto refused = call();
      if (refused) return 2;
      return refused.error().message().find("interrupted") == std::string::npos &&
                     refused.error().message().find("Interrupted") == std::string::npos
                 ? 3
                 : 0;
    });
    EXPECT_EQ(result, 0) << "system call " << number;
  }
}

TEST(RealFileSystem, AdvisesAHigherLimitWhereTooManyFilesAreOpen) {
  if (test::address_sanitizer) GTEST_SKIP() << "the sanitizer needs descriptors to examine an object";
  const test::ScratchDirectory directory;
  const int result = test::in_child([&] {
    const rlimit limit{3, 3};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
    const auto file = real_file_system().create_scratch(directory.path(), 4_KiB, DirectIo::off);
    if (file) return 3;
    return file.error().message().find("ulimit -n") == std::string::npos ? 4 : 0;
  });

  EXPECT_EQ(result, 0);
}

TEST(RealFileSystem, NamesADirectoryThatDoesNotExist) {
  auto file = real_file_system().create_scratch("/nonexistent/penstock", 4_KiB, DirectIo::off);

  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code(), ErrorCode::not_found);
  EXPECT_NE(file.error().message().find("/nonexistent/penstock"), std::string::npos);
}

TEST(RealFileSystem, FallsBackToBufferedWithAReasonOrRefusesWhenDirectIsRequired) {
  // /proc has no direct I/O and no files of ours either; a tmpfs answers differently by kernel.
  auto preferred = real_file_system().create_scratch("/dev/shm", 4_KiB, DirectIo::preferred);
  if (!preferred) GTEST_SKIP() << preferred.error().message();

  auto required = real_file_system().create_scratch("/dev/shm", 4_KiB, DirectIo::required);

  EXPECT_EQ(required.has_value(), preferred->properties().direct);
  EXPECT_EQ(preferred->properties().direct_note.empty(), preferred->properties().direct);
}

TEST(RealFileSystem, ExtendsAScratchFileBeyondWhatIsReserved) {
  test::ScratchDirectory directory;
  File file = real_file_system().create_scratch(directory.path(), 1_MiB, DirectIo::preferred).value();

  ASSERT_TRUE(file.extend(3_MiB));

  struct stat status {};
  ASSERT_EQ(::fstat(static_cast<int>(file.handle()), &status), 0);
  EXPECT_EQ(status.st_size, 3 << 20);
}

TEST(RealFileSystem, MakesNamedFilesForTheirOwnerAloneAndReservesTheirBytes) {
  const test::ScratchDirectory directory;
  const File file = real_file_system().create(directory.path() / "swap", 3_MiB, DirectIo::preferred).value();

  struct stat status {};
  ASSERT_EQ(::stat((directory.path() / "swap").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(status.st_size, 3 << 20);
  EXPECT_GE(status.st_blocks * 512, 3 << 20);
  EXPECT_EQ(file.properties().reserve_note, "");
}

TEST(RealFileSystem, FollowsNoLinkToAFile) {
  const test::ScratchDirectory directory;
  const auto target = directory.path() / "theirs", link = directory.path() / "link";
  const auto dangling = directory.path() / "dangling", lock = directory.path() / DirectoryLock::file_name;
  std::ofstream(target) << "somebody's";
  for (const auto& each : {link, lock}) std::filesystem::create_symlink(target, each);
  std::filesystem::create_symlink(directory.path() / "nowhere", dangling);
  FileSystem& files = real_file_system();

  EXPECT_EQ(files.create(link, 0_B, DirectIo::off).error().code(), ErrorCode::already_exists);
  EXPECT_EQ(files.create(dangling, 0_B, DirectIo::off).error().code(), ErrorCode::already_exists);
  EXPECT_EQ(files.open(link, DirectIo::off).error().message(),
            "a symbolic link, which is not followed: " + link.string() +
                ": Too many levels of symbolic links [FileSystem::open]\n  try     replace it by what it "
                "points to");
  EXPECT_EQ(files.lock(directory.path()).error().code(), ErrorCode::invalid_argument);

  std::string text;
  std::ifstream(target) >> text;
  EXPECT_EQ(text, "somebody's");
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "nowhere"));
}

TEST(RealFileSystem, OpensRegularFilesOnly) {
  const test::ScratchDirectory directory;
  const auto pipe = directory.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);

  auto file = real_file_system().open(pipe, DirectIo::off);

  EXPECT_EQ(file.error().message(), "not a regular file: " + pipe.string() + " [FileSystem::open]");
}

TEST(RealFileSystem, OpensAFileToReadThatMayNotBeWritten) {
  const std::filesystem::path running =
      std::filesystem::read_symlink("/proc/self/exe");  // not by root either
  ASSERT_FALSE(real_file_system().open(running, DirectIo::off));

  File file = real_file_system().open_to_read(running, DirectIo::preferred).value();

  std::array<std::byte, 4096> bytes;
  ASSERT_TRUE(real_file_system()
                  .open_to_read(running, DirectIo::off)
                  ->read(FileOffset(0), HostSpan(std::span(bytes))));
  EXPECT_EQ(bytes[1], std::byte{'E'});
  EXPECT_FALSE(file.write(FileOffset(0), ConstHostSpan(std::span(std::as_const(bytes)))));
}

TEST(RealFileSystem, WaitsForNoWriterOfAFifo) {
  const test::ScratchDirectory directory;
  const auto fifo = directory.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);

  EXPECT_EQ(real_file_system().open_to_read(fifo, DirectIo::off).error().code(), ErrorCode::invalid_argument);
}

TEST(RealFileSystem, ReportsThatAnOpenedFileIsNotWhollyReserved) {
  const test::ScratchDirectory directory;
  const auto path = directory.path() / "swap";
  real_file_system().create(path, 1_MiB, DirectIo::off)->extend(2_MiB).value();

  EXPECT_EQ(real_file_system().open(path, DirectIo::off)->properties().reserve_note, "the file has holes");
}

TEST(RealFileSystem, FailsToWriteBeyondALimitOnFileSizesInsteadOfEndingTheProcess) {
  const test::ScratchDirectory directory;
  const int result = test::in_child([&] {
    const rlimit limit{1 << 20, 1 << 20};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    File file = real_file_system().create(directory.path() / "manifest", 0_B, DirectIo::off).value();
    const std::byte byte{};
    auto written = file.write(FileOffset(1 << 20), ConstHostSpan(&byte, 1_B));
    return !written && written.error().code() == ErrorCode::no_space ? 0 : 3;
  });

  EXPECT_EQ(result, 0);
}

TEST(RealFileSystem, FreesTheLockOfAProcessThatIsKilledAndNamesItBefore) {
  const test::ScratchDirectory directory;
  std::array<int, 2> locked{};
  ASSERT_EQ(::pipe(locked.data()), 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    const auto lock = real_file_system().lock(directory.path());
    (void)!::write(locked[1], lock ? "y" : "n", 1);
    ::pause();
    ::_exit(0);
  }
  char answer = 0;
  ASSERT_EQ(::read(locked[0], &answer, 1), 1);
  ASSERT_EQ(answer, 'y');

  const auto refused = real_file_system().lock(directory.path());
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  const auto taken = real_file_system().lock(directory.path());

  EXPECT_EQ(refused.error().message(),
            "the directory is locked by process " + std::to_string(holder) + ": " +
                directory.path().string() +
                " [FileSystem::lock]\n"
                "  try     wait until that process ends, or name another directory");
  EXPECT_TRUE(taken);
  ::close(locked[0]);
  ::close(locked[1]);
}

TEST(RealFileSystem, EndsALockThatAForkedChildHasInheritedToo) {
  const test::ScratchDirectory directory;
  std::optional<DirectoryLock> lock = real_file_system().lock(directory.path()).value();
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }

  lock.reset();

  EXPECT_TRUE(real_file_system().lock(directory.path()));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(RealFileSystem, KeepsTheLockOfAParentWhoseForkedChildDestroysItsCopy) {
  const test::ScratchDirectory directory;
  std::optional<DirectoryLock> lock = real_file_system().lock(directory.path()).value();

  const int result = test::in_child([&] {
    lock.reset();
    return real_file_system().lock(directory.path()) ? 1 : 0;
  });

  EXPECT_EQ(result, 0);
  EXPECT_EQ(real_file_system().lock(directory.path()).error().code(), ErrorCode::in_use);
  lock.reset();
  EXPECT_TRUE(real_file_system().lock(directory.path()));
}

}  // namespace
}  // namespace penstock::tiers
