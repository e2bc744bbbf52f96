#include <penstock/tiers/io/fault_file_system.hpp>
#include <penstock/tiers/io/sim_disk.hpp>

#include "kit/child_process.hpp"
#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <cerrno>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace penstock::tiers {
namespace {

using Operation = FileSystemFault::Operation;
using Effect = FileSystemFault::Effect;

/// A simulated disk behind faults.
class FaultFileSystemTest : public testing::Test {
 protected:
  static Result<File> create(FaultFileSystem& file_system, DirectIo direct = DirectIo::preferred) {
    return file_system.create_scratch("sim", 64_KiB, direct);
  }
  SimDisk disk_{{.capacity = 1_MiB}};
};

TEST_F(FaultFileSystemTest, InjectsFaultsIntoThePlannedCallsOnly) {
  FaultFileSystem file_system(
      disk_, {FileSystemFault::fail(Operation::create_scratch, 1, ENOSPC, 2),
              FileSystemFault::fail(Operation::free_space, 0, EACCES), FileSystemFault::fail({}, 5, EIO)});

  EXPECT_TRUE(create(file_system));
  EXPECT_EQ(create(file_system).error().code(), ErrorCode::no_space);
  EXPECT_EQ(file_system.free_space("sim").error().code(), ErrorCode::permission);
  EXPECT_EQ(create(file_system).error().code(), ErrorCode::no_space);
  EXPECT_EQ(file_system.free_space("sim").value(), 1_MiB);
  EXPECT_EQ(create(file_system).error().code(), ErrorCode::io);
  EXPECT_TRUE(create(file_system));
  EXPECT_EQ(file_system.injected(), 4u);
  EXPECT_EQ(file_system.accepted(), 7u);
  EXPECT_EQ(file_system.accepted(Operation::free_space), 2u);
  EXPECT_EQ(disk_.open_file_count(), 0u);
}

TEST_F(FaultFileSystemTest, MakesACallLater) {
  FaultFileSystem file_system(disk_, {});
  file_system.add({.operation = Operation::create_scratch,
                   .occurrence = 1,
                   .effect = FileSystemFault::Effect::delay,
                   .delay = std::chrono::milliseconds(20)});
  EXPECT_TRUE(create(file_system));
  const TimePoint began = Clock::steady().now();

  EXPECT_TRUE(create(file_system));

  EXPECT_GE(Clock::steady().now() - began, std::chrono::milliseconds(20));
  EXPECT_EQ(file_system.injected(), 1u);
}

TEST_F(FaultFileSystemTest, KillsTheProcessBeforeThePlannedCall) {
  const test::ScratchDirectory directory;
  const auto make_two = [&] {
    FaultFileSystem file_system(
        real_file_system(),
        {{.operation = Operation::create_directory, .occurrence = 1, .effect = Effect::kill}});
    (void)file_system.create_directory(directory.path() / "first");
    (void)file_system.create_directory(directory.path() / "second");
    return 0;
  };

  EXPECT_EQ(test::in_child(make_two), -SIGKILL);
  EXPECT_EQ(real_file_system().list(directory.path()).value(), std::vector<std::string>{"first"});
}

TEST_F(FaultFileSystemTest, FailsWithTheErrorsOfTheWrappedFileSystem) {
  FaultFileSystem file_system(real_file_system(), {FileSystemFault::fail({}, 0, ENOSPC)});
  const test::ScratchDirectory directory;
  const ByteCount far_too_much = real_file_system().free_space(directory.path()).value() * 2;

  const Error injected = file_system.create_scratch(directory.path(), far_too_much, DirectIo::off).error();
  const Error real = file_system.create_scratch(directory.path(), far_too_much, DirectIo::off).error();

  EXPECT_EQ(injected.os_error(), ENOSPC);
  for (const Error& error :
       {injected, real}) {  // other programs use that disk too, so the free space may differ
    EXPECT_EQ(error.code(), ErrorCode::no_space);
    for (const std::string& words :
         {"no space: " + directory.path().string() + ", wanted " + to_string(far_too_much),
          std::string(" free: No space left on device [FileSystem::create_scratch]"),
          std::string("try     free space")}) {
      EXPECT_NE(error.message().find(words), std::string::npos) << words << "\n" << error.message();
    }
  }
}

TEST_F(FaultFileSystemTest, RefusesDirectIoAndReportsItWhereItWasRequested) {
  FaultFileSystem file_system(disk_, {{.count = 3, .effect = Effect::buffered}});

  const File preferred = create(file_system, DirectIo::preferred).value();
  const auto required = create(file_system, DirectIo::required);
  const File off = create(file_system, DirectIo::off).value();
  const File after = create(file_system, DirectIo::required).value();

  EXPECT_FALSE(preferred.properties().direct);
  EXPECT_EQ(preferred.properties().direct_note, "a fault of the plan");
  ASSERT_FALSE(required);
  EXPECT_EQ(required.error().code(), ErrorCode::unsupported);
  EXPECT_EQ(required.error().message(),
            "no direct I/O on this file system: a fault of the plan: sim [FileSystem::create_scratch]\n"
            "  try     choose a directory on ext4 or XFS, or allow buffered I/O");
  EXPECT_EQ(off.properties().direct_note, "");
  EXPECT_TRUE(after.properties().direct);
}

TEST_F(FaultFileSystemTest, FailsFreeSpaceQueriesOnlyForTheirOwnFaults) {
  FaultFileSystem file_system(disk_, {{.effect = Effect::buffered}});

  EXPECT_TRUE(file_system.free_space("sim"));
  EXPECT_EQ(file_system.injected(), 0u);
}

TEST_F(FaultFileSystemTest, ClosesItsFilesInTheWrappedFileSystem) {
  FaultFileSystem file_system(disk_, {{.effect = Effect::buffered}});
  File file = create(file_system).value();
  EXPECT_EQ(disk_.open_file_count(), 1u);

  file = File();

  EXPECT_EQ(disk_.open_file_count(), 0u);
}

/// The result of each operation, on its own files.
struct EachOperation {
  Operation operation;
  const char* name;
  std::function<std::optional<Error>(FileSystem&)> run;
};

template <class T>
std::optional<Error> error_of(const Result<T>& result) {
  return result ? std::nullopt : std::optional(result.error());
}

std::vector<EachOperation> every_operation() {
  const auto with_file = [](auto use) {
    return [use](FileSystem& files) { return error_of(use(files.open("/d/old", DirectIo::off).value())); };
  };
  static std::byte byte{};
  using Files = FileSystem&;
  return {
      {Operation::create_scratch, "FileSystem::create_scratch",
       [](Files files) { return error_of(files.create_scratch("/d", 4_KiB, DirectIo::off)); }},
      {Operation::create, "FileSystem::create",
       [](Files files) { return error_of(files.create("/d/new", 4_KiB, DirectIo::off)); }},
      {Operation::open, "FileSystem::open",
       [](Files files) { return error_of(files.open("/d/old", DirectIo::off)); }},
      {Operation::rename, "FileSystem::rename",
       [](Files files) { return error_of(files.rename("/d/old", "/d/renamed")); }},
      {Operation::remove, "FileSystem::remove", [](Files files) { return error_of(files.remove("/d/old")); }},
      {Operation::create_directory, "FileSystem::create_directory",
       [](Files files) { return error_of(files.create_directory("/d/made")); }},
      {Operation::remove_directory, "FileSystem::remove_directory",
       [](Files files) { return error_of(files.remove_directory("/d/empty")); }},
      {Operation::list, "FileSystem::list", [](Files files) { return error_of(files.list("/d")); }},
      {Operation::sync_directory, "FileSystem::sync_directory",
       [](Files files) { return error_of(files.sync_directory("/d")); }},
      {Operation::lock, "FileSystem::lock", [](Files files) { return error_of(files.lock("/d")); }},
      {Operation::free_space, "FileSystem::free_space",
       [](Files files) { return error_of(files.free_space("/d")); }},
      {Operation::size, "File::size", with_file([](File file) { return file.size(); })},
      {Operation::extend, "File::extend", with_file([](File file) { return file.extend(1_MiB); })},
      {Operation::clone, "File::clone", with_file([](File file) {
         const File& source = file;
         return file.clone(source, FileOffset(0), FileOffset(4096), 4_KiB);
       })},
      {Operation::read, "File::read",
       with_file([](File file) { return file.read(FileOffset(0), HostSpan(&byte, 1_B)); })},
      {Operation::write, "File::write",
       with_file([](File file) { return file.write(FileOffset(0), ConstHostSpan(&byte, 1_B)); })},
      {Operation::sync, "File::sync", with_file([](File file) { return file.sync(); })},
  };
}

TEST(FaultFileSystemOperations, EachFailsAtTheCallThatThePlanNamesAndDoesNothing) {
  const auto operations = every_operation();
  EXPECT_EQ(operations.size(), FileSystemFault::operation_count);
  for (const EachOperation& each : operations) {
    SCOPED_TRACE(each.name);
    SimDisk disk({});
    disk.make_directory("/d");
    disk.make_directory("/d/empty");
    disk.create("/d/old", 4_KiB, DirectIo::off).value();
    FaultFileSystem file_system(disk, {FileSystemFault::fail(each.operation, 0, EIO),
                                       FileSystemFault::fail(each.operation, 1, ENOSPC)});

    for (const int cause : {EIO, ENOSPC}) {
      const auto error = each.run(file_system);
      ASSERT_TRUE(error);
      EXPECT_STREQ(error->operation(), each.name);
      EXPECT_EQ(error->os_error(), cause);
      EXPECT_TRUE(error->message().find("/d") != std::string::npos) << error->message();
      EXPECT_EQ(disk.list("/d").value(), (std::vector<std::string>{"empty", "old"}));
      EXPECT_EQ(disk.open_file_count(), 0u);
    }
    // A simulated disk clones nothing.
    EXPECT_EQ(each.run(file_system).has_value(), each.operation == Operation::clone);
    EXPECT_EQ(file_system.accepted(each.operation), 3u);
    EXPECT_EQ(file_system.injected(), 2u);
  }
}

TEST_F(FaultFileSystemTest, RefusesALockAsWhenAnotherProcessHasIt) {
  FaultFileSystem file_system(disk_, {FileSystemFault::fail(Operation::lock, 0, EWOULDBLOCK)});

  const auto lock = file_system.lock("/d");

  EXPECT_EQ(lock.error().code(), ErrorCode::in_use);
  EXPECT_EQ(lock.error().message().find("the directory is locked by another process: /d "), 0u);
}

}  // namespace
}  // namespace penstock::tiers
