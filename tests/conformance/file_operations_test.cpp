// The contract of FileSystem and File, on the machine's file systems, on a simulated disk, and on both behind a fault
// decorator without faults.
#include "kit/mounted_file_system.hpp"
#include "kit/pattern.hpp"

#include <penstock/tiers/io/fault_file_system.hpp>
#include <penstock/tiers/io/sim_disk.hpp>

#include <gtest/gtest.h>
#include <unistd.h>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace penstock::tiers {
namespace {

using test::MountedFileSystem;
using test::Pattern;
using Names = std::vector<std::string>;

/// One file system with an empty directory in it.
struct Bench {
  std::unique_ptr<MountedFileSystem> mounted;
  std::unique_ptr<SimDisk> disk;
  std::unique_ptr<FaultFileSystem> faults;
  FileSystem* file_system = nullptr;
  std::filesystem::path directory;
  std::string skip_reason;

  void make_directory(const std::filesystem::path& path) const {
    if (disk) return disk->make_directory(path);
    std::filesystem::create_directory(path);
  }
};
using Factory = std::unique_ptr<Bench> (*)();

template <MountedFileSystem::Kind kind>
std::unique_ptr<Bench> real() {
  auto bench = std::make_unique<Bench>();
  bench->mounted = std::make_unique<MountedFileSystem>(kind);
  bench->skip_reason = bench->mounted->skip_reason();
  bench->file_system = &real_file_system();
  bench->directory = bench->mounted->path() / "empty";  // of an ext4, which has lost+found beside it
  if (bench->skip_reason.empty()) bench->make_directory(bench->directory);
  return bench;
}
std::unique_ptr<Bench> simulated() {
  auto bench = std::make_unique<Bench>();
  bench->disk = std::make_unique<SimDisk>(SimDisk::Options{.capacity = 64_MiB});
  bench->file_system = bench->disk.get();
  bench->directory = "/sim/empty";
  bench->make_directory(bench->directory);
  return bench;
}
template <Factory make>
std::unique_ptr<Bench> without_faults() {
  auto bench = make();
  bench->faults = std::make_unique<FaultFileSystem>(*bench->file_system, FileSystemFaultPlan{});
  bench->file_system = bench->faults.get();
  return bench;
}

class FileOperations : public testing::TestWithParam<std::pair<const char*, Factory>> {
 protected:
  void SetUp() override {
    bench_ = GetParam().second();
    if (!bench_->skip_reason.empty()) GTEST_SKIP() << bench_->skip_reason;
  }
  FileSystem& files() { return *bench_->file_system; }
  std::filesystem::path at(const char* name) const { return bench_->directory / name; }
  Names list() { return files().list(bench_->directory).value(); }

  static ConstHostSpan span(const std::string& text) { return ConstHostSpan(std::span(text)); }
  void make(const char* name, const std::string& text) {
    File file = files().create(at(name), 0_B, DirectIo::off).value();
    file.write(FileOffset(0), span(text)).value();
  }
  static std::string text_of(const File& file) {
    std::string text(file.size().value().value(), '\0');
    file.read(FileOffset(0), HostSpan(std::span(text))).value();
    return text;
  }
  std::string text_of(const char* name) { return text_of(files().open(at(name), DirectIo::off).value()); }
  /// An error that says what was done to which path.
  static void expect(const Error& error, ErrorCode code, const char* operation,
                     const std::filesystem::path& path) {
    EXPECT_EQ(to_string(error.code()), to_string(code)) << error.message();
    EXPECT_STREQ(error.operation(), operation);
    EXPECT_NE(error.message().find(path.string()), std::string::npos) << error.message();
  }

  std::unique_ptr<Bench> bench_;
};

TEST_P(FileOperations, FindsAgainUnderItsNameWhatWasWritten) {
  std::string bytes(100'001, '\0');
  Pattern{.tensor = 1}.fill(HostSpan(std::span(bytes)));
  {
    File file = files().create(at("manifest"), 0_B, DirectIo::off).value();
    EXPECT_EQ(file.size().value(), 0_B);
    EXPECT_EQ(file.properties().name, at("manifest").string());
    ASSERT_TRUE(file.write(FileOffset(0), span(bytes.substr(0, 700))));
    ASSERT_TRUE(file.write(FileOffset(700), span(bytes.substr(700))));
    ASSERT_TRUE(file.sync());
  }
  ASSERT_TRUE(files().sync_directory(bench_->directory));

  EXPECT_EQ(text_of("manifest"), bytes);
  EXPECT_EQ(list(), Names{"manifest"});
}

TEST_P(FileOperations, MakesAFileOfItsWholeLengthThatCanBeOpenedAgain) {
  const ByteCount size = 1_MiB;
  {
    File file = files().create(at("swap"), size, DirectIo::preferred).value();
    EXPECT_EQ(file.size().value(), size);
    const std::unique_ptr<std::byte, decltype(&std::free)> memory(
        static_cast<std::byte*>(std::aligned_alloc(4096, 8192)), &std::free);
    const HostSpan out(memory.get(), 4_KiB), in(memory.get() + 4096, 4_KiB);
    Pattern{.tensor = 2}.fill(out);
    ASSERT_TRUE(file.write(FileOffset(65536), out));
    ASSERT_TRUE(file.read(FileOffset(65536), in));
    EXPECT_FALSE(Pattern{.tensor = 2}.first_difference(in));
    if (file.properties().direct && bench_->disk) {  // a tmpfs takes any alignment
      EXPECT_EQ(file.write(FileOffset(1), out).error().code(), ErrorCode::invalid_argument);
    }
  }

  const File again = files().open(at("swap"), DirectIo::preferred).value();

  EXPECT_EQ(again.size().value(), size);
  EXPECT_TRUE(again.properties().direct || !again.properties().direct_note.empty());
  EXPECT_EQ(text_of("swap").substr(0, 65536), std::string(65536, '\0'));
}

TEST_P(FileOperations, CreatesNothingOverWhatExists) {
  make("manifest", "first");
  bench_->make_directory(at("directory"));

  const auto second = files().create(at("manifest"), 1_MiB, DirectIo::off);
  const auto directory = files().create(at("directory"), 0_B, DirectIo::off);

  expect(second.error(), ErrorCode::already_exists, "FileSystem::create", at("manifest"));
  expect(directory.error(), ErrorCode::already_exists, "FileSystem::create", at("directory"));
  EXPECT_EQ(text_of("manifest"), "first");
}

TEST_P(FileOperations, LeavesNoNameBehindWhenThereIsNoSpace) {
  const ByteCount free = files().free_space(bench_->directory).value();

  const auto file = files().create(at("swap"), free * 2, DirectIo::preferred);

  expect(file.error(), ErrorCode::no_space, "FileSystem::create", at("swap"));
  EXPECT_NE(file.error().message().find(" free"), std::string::npos) << file.error().message();
  EXPECT_EQ(list(), Names{});
}

TEST_P(FileOperations, SaysWhichDirectoryOrFileDoesNotExist) {
  const std::filesystem::path lost = at("missing") / "name";
  make("manifest", "first");

  expect(files().create(lost, 0_B, DirectIo::off).error(), ErrorCode::not_found, "FileSystem::create", lost);
  expect(files().open(at("name"), DirectIo::off).error(), ErrorCode::not_found, "FileSystem::open",
         at("name"));
  expect(files().open(lost, DirectIo::off).error(), ErrorCode::not_found, "FileSystem::open", lost);
  expect(files().rename(at("name"), at("manifest")).error(), ErrorCode::not_found, "FileSystem::rename",
         at("name"));
  expect(files().rename(at("manifest"), lost).error(), ErrorCode::not_found, "FileSystem::rename", lost);
  expect(files().remove(at("name")).error(), ErrorCode::not_found, "FileSystem::remove", at("name"));
  expect(files().list(at("missing")).error(), ErrorCode::not_found, "FileSystem::list", at("missing"));
  expect(files().sync_directory(at("missing")).error(), ErrorCode::not_found, "FileSystem::sync_directory",
         at("missing"));
  expect(files().lock(at("missing")).error(), ErrorCode::not_found, "FileSystem::lock", at("missing"));
  EXPECT_EQ(text_of("manifest"), "first");
}

TEST_P(FileOperations, TakesNoDirectoryForAFileAndNoFileForADirectory) {
  bench_->make_directory(at("directory"));
  make("manifest", "first");

  expect(files().open(at("directory"), DirectIo::off).error(), ErrorCode::invalid_argument,
         "FileSystem::open", at("directory"));
  expect(files().rename(at("manifest"), at("directory")).error(), ErrorCode::invalid_argument,
         "FileSystem::rename", at("directory"));
  expect(files().remove(at("directory")).error(), ErrorCode::invalid_argument, "FileSystem::remove",
         at("directory"));
  expect(files().list(at("manifest")).error(), ErrorCode::not_found, "FileSystem::list", at("manifest"));
  EXPECT_EQ(text_of("manifest"), "first");
}

TEST_P(FileOperations, ReadsNothingBeyondTheEndWithoutSayingSo) {
  make("manifest", "0123456789");
  const File file = files().open(at("manifest"), DirectIo::off).value();
  std::string text(8, '-');

  ASSERT_TRUE(file.read(FileOffset(2), HostSpan(std::span(text))));
  EXPECT_EQ(text, "23456789");
  const auto beyond = file.read(FileOffset(3), HostSpan(std::span(text)));

  expect(beyond.error(), ErrorCode::truncated, "File::read", at("manifest"));
  EXPECT_NE(beyond.error().message().find("at offset 3, wanted 8 B, got 7 B"), std::string::npos)
      << beyond.error().message();
}

TEST_P(FileOperations, GrowsAFileAndNeverCutsIt) {
  make("manifest", "0123456789");
  File file = files().open(at("manifest"), DirectIo::off).value();

  ASSERT_TRUE(file.extend(4_B));
  EXPECT_EQ(file.size().value(), 10_B);
  ASSERT_TRUE(file.extend(12_B));
  ASSERT_TRUE(file.write(FileOffset(14), span("xy")));

  EXPECT_EQ(text_of(file), std::string("0123456789\0\0\0\0xy", 16));
}

TEST_P(FileOperations, ReplacesAFileByRenamingAnotherToItsName) {
  make("manifest", "first");
  make("manifest.new", "second");
  const File before = files().open(at("manifest"), DirectIo::off).value();

  ASSERT_TRUE(files().rename(at("manifest.new"), at("manifest")));

  EXPECT_EQ(list(), Names{"manifest"});
  EXPECT_EQ(text_of("manifest"), "second");
  EXPECT_EQ(text_of(before), "first");
}

TEST_P(FileOperations, RemovesANameAndKeepsTheBytesOfOpenFiles) {
  make("manifest", "first");
  const File open = files().open(at("manifest"), DirectIo::off).value();

  ASSERT_TRUE(files().remove(at("manifest")));

  EXPECT_EQ(list(), Names{});
  EXPECT_EQ(text_of(open), "first");
  make("manifest", "second");
  EXPECT_EQ(text_of("manifest"), "second");
}

TEST_P(FileOperations, KnowsTheNameOfAnOpenFile) {
  const File file = files().create(at("a"), 4_KiB, DirectIo::off).value();
  EXPECT_TRUE(files().is_named(file.handle(), at("a")).value());
  EXPECT_FALSE(files().is_named(file.handle(), at("b")).value());

  ASSERT_TRUE(files().rename(at("a"), at("b")));
  EXPECT_FALSE(files().is_named(file.handle(), at("a")).value());
  EXPECT_TRUE(files().is_named(file.handle(), at("b")).value());

  const File other = files().create(at("a"), 4_KiB, DirectIo::off).value();
  EXPECT_FALSE(files().is_named(file.handle(), at("a")).value());
  ASSERT_TRUE(files().remove(at("b")));
  EXPECT_FALSE(files().is_named(file.handle(), at("b")).value());
}

TEST_P(FileOperations, ListsTheNamesInOrder) {
  for (const char* name : {"manifest.10", "b", "manifest.9", "a", "B"}) make(name, "");
  const File scratch = files().create_scratch(bench_->directory, 4_KiB, DirectIo::off).value();

  EXPECT_EQ(list(), (Names{"B", "a", "b", "manifest.10", "manifest.9"}));
}

TEST_P(FileOperations, MakesADirectoryOfItsOwnerAlone) {
  ASSERT_TRUE(files().create_directory(at("run")));

  make("run/file", "text");
  EXPECT_EQ(list(), (Names{"run"}));
  EXPECT_EQ(files().list(at("run")).value(), (Names{"file"}));
  if (!bench_->disk) {
    const auto mode = std::filesystem::status(at("run")).permissions();
    EXPECT_EQ(mode, std::filesystem::perms::owner_all);
  }
  expect(files().create_directory(at("run")).error(), ErrorCode::already_exists,
         "FileSystem::create_directory", at("run"));
  expect(files().create_directory(at("run/file")).error(), ErrorCode::already_exists,
         "FileSystem::create_directory", at("run/file"));
  expect(files().create_directory(at("none/run")).error(), ErrorCode::not_found,
         "FileSystem::create_directory", at("none/run"));
}

TEST_P(FileOperations, RemovesADirectoryThatIsEmpty) {
  ASSERT_TRUE(files().create_directory(at("run")));
  make("run/file", "text");

  expect(files().remove_directory(at("run")).error(), ErrorCode::invalid_argument,
         "FileSystem::remove_directory", at("run"));
  ASSERT_TRUE(files().remove(at("run/file")));
  ASSERT_TRUE(files().remove_directory(at("run")));

  EXPECT_EQ(list(), Names{});
  expect(files().remove_directory(at("run")).error(), ErrorCode::not_found, "FileSystem::remove_directory",
         at("run"));
}

TEST_P(FileOperations, ClonesBytesOrSaysThatItCannot) {
  File source = files().create(at("source"), {}, DirectIo::off).value();
  const std::string text(8192, 'a');
  ASSERT_TRUE(source.write(FileOffset(0), ConstHostSpan(std::span(text))));
  File copy = files().create(at("copy"), {}, DirectIo::off).value();

  const auto cloned = copy.clone(source, FileOffset(4096), FileOffset(0), 4_KiB);

  if (!cloned) {
    expect(cloned.error(), ErrorCode::unsupported, "File::clone", at("copy"));
    EXPECT_EQ(copy.size().value(), 0_B);
    return;
  }
  const std::string other(4096, 'b');
  ASSERT_TRUE(source.write(FileOffset(4096), ConstHostSpan(std::span(other))));
  std::string read(4096, ' ');
  ASSERT_TRUE(copy.read(FileOffset(0), HostSpan(std::span(read))));
  EXPECT_EQ(read, std::string(4096, 'a')) << "the files differ from now on";
}

TEST_P(FileOperations, LetsOneOwnerHaveADirectory) {
  bench_->make_directory(at("other"));
  {
    const DirectoryLock lock = files().lock(bench_->directory).value();
    const auto second = files().lock(bench_->directory);

    expect(second.error(), ErrorCode::in_use, "FileSystem::lock", bench_->directory);
    EXPECT_NE(second.error().message().find("locked by process " + std::to_string(::getpid()) +
                                            ", which is this one"),
              std::string::npos)
        << second.error().message();
    EXPECT_TRUE(files().lock(at("other")));
    EXPECT_FALSE(files().lock(bench_->directory));  // the refusal before has freed nothing
  }

  const auto next = files().lock(bench_->directory);

  EXPECT_TRUE(next);
  EXPECT_TRUE(files().open(at(DirectoryLock::file_name), DirectIo::off));
}

INSTANTIATE_TEST_SUITE_P(
    Everywhere, FileOperations,
    testing::Values(std::pair("Directory", &real<MountedFileSystem::Kind::directory>),
                    std::pair("Tmpfs", &real<MountedFileSystem::Kind::tmpfs>),
                    std::pair("Ext4", &real<MountedFileSystem::Kind::ext4>),
                    std::pair("Ext4With4KiBSectors", &real<MountedFileSystem::Kind::ext4_4k_sector>),
                    std::pair("Xfs", &real<MountedFileSystem::Kind::xfs>),
                    std::pair("Btrfs", &real<MountedFileSystem::Kind::btrfs>),
                    std::pair("Ext2", &real<MountedFileSystem::Kind::ext2>),
                    std::pair("Overlay", &real<MountedFileSystem::Kind::overlay>),
                    std::pair("Simulated", &simulated),
                    std::pair("FaultDirectory", &without_faults<real<MountedFileSystem::Kind::directory>>),
                    std::pair("FaultSimulated", &without_faults<simulated>)),
    [](const auto& setting) { return std::string(setting.param.first); });

}  // namespace
}  // namespace penstock::tiers
