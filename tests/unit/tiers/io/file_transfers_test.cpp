#include "kit/scratch_directory.hpp"

#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/tiers/io/fault_file_system.hpp>
#include <penstock/tiers/io/file_transfers.hpp>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::tiers {
namespace {

using test::ScratchDirectory;
namespace fs = std::filesystem;

/// Bytes that begin `shift` bytes behind a multiple of 4096.
class Memory {
 public:
  explicit Memory(std::size_t size, std::size_t shift = 0)
      : memory_(size + shift + 8192), size_(size), shift_(shift) {}
  [[nodiscard]] std::byte* data() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    return memory_.data() + (4096 - address % 4096) + shift_;
  }
  [[nodiscard]] HostSpan span() { return {data(), ByteCount(size_)}; }
  [[nodiscard]] std::string text() { return {reinterpret_cast<const char*>(data()), size_}; }
  void fill(std::uint64_t seed) {
    for (std::size_t i = 0; i < size_; ++i) data()[i] = std::byte((i * 31 + i / 4096 + seed) % 251);
  }

 private:
  std::vector<std::byte> memory_;
  std::size_t size_, shift_;
};

std::string contents(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::unique_ptr<FileTransfers> transfers_of(FileTransfers::Options options) {
  return FileTransfers::create(std::move(options)).value();
}

void expect(const Error& error, ErrorCode code, const std::vector<std::string>& texts) {
  EXPECT_EQ(to_string(error.code()), to_string(code)) << error.message();
  for (const std::string& text : texts)
    EXPECT_NE(error.message().find(text), std::string::npos) << text << " in " << error.message();
}

/// Whether files are without direct I/O.
class FileTransfersOf : public ::testing::TestWithParam<bool> {};

TEST_P(FileTransfersOf, MoveAnyRangeFromAndToAnyAddress) {
  FaultFileSystem files(real_file_system(), {});
  if (GetParam()) {
    files.add({.operation = FileSystemFault::Operation::open,
               .count = ~std::uint64_t{0},
               .effect = FileSystemFault::Effect::buffered});
  }
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "file";
  for (const std::uint32_t threads : {1u, 3u}) {
    const auto transfers =
        transfers_of({.request_max = 64_KiB, .depth = 4, .threads = threads, .files = &files});
    for (const std::size_t size : {0u, 1u, 4095u, 4096u, 4097u, 8192u, 500'000u, 1u << 20}) {
      for (const std::uint64_t offset : {0u, 1u, 512u, 4096u, 12'289u}) {
        for (const std::size_t shift : {0u, 1u, 64u}) {
          SCOPED_TRACE(std::to_string(size) + " at " + std::to_string(offset) + " from " +
                       std::to_string(shift));
          fs::remove(file);
          std::ofstream(file) << std::string(20'000, 'x');
          Memory written(size, shift), read(size, shift);
          written.fill(offset + shift);

          ASSERT_TRUE(transfers->start_write(file, FileOffset(offset), written.span()));
          ASSERT_EQ(transfers->wait().value(), 1u);
          ASSERT_TRUE(transfers->start_read(file, FileOffset(offset), read.span()));
          ASSERT_EQ(transfers->wait().value(), 1u);

          std::string expected(std::max<std::size_t>(20'000, size == 0 ? 0 : offset + size), 'x');
          expected.replace(offset, size, written.text());
          ASSERT_TRUE(contents(file) == expected);
          ASSERT_TRUE(read.text() == written.text());
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DirectAndBuffered, FileTransfersOf, ::testing::Bool());

TEST(FileTransfers, MoveSeveralFilesAtATime) {
  const ScratchDirectory scratch;
  const auto transfers = transfers_of({.depth = 8, .threads = 2});
  std::vector<Memory> written, read;
  for (std::size_t i = 0; i < 20; ++i) {
    written.emplace_back(300'000 + i);
    written.back().fill(i);
    read.emplace_back(300'000 + i);
  }
  const auto name = [&](std::size_t i) { return scratch.path() / std::to_string(i); };
  for (std::size_t i = 0; i < 20; ++i)
    ASSERT_TRUE(transfers->start_write(name(i), FileOffset(0), written[i].span()));
  EXPECT_EQ(transfers->started(), 20u);
  EXPECT_EQ(transfers->wait().value(), 20u);
  EXPECT_EQ(transfers->started(), 0u);
  EXPECT_EQ(transfers->wait().value(), 0u) << "nothing was started";

  for (std::size_t i = 0; i < 20; ++i)
    ASSERT_TRUE(transfers->start_read(name(i), FileOffset(0), read[i].span()));
  EXPECT_EQ(transfers->wait().value(), 20u);

  for (std::size_t i = 0; i < 20; ++i) EXPECT_TRUE(read[i].text() == written[i].text()) << i;
}

TEST(FileTransfers, MakeFilesThatOthersCannotRead) {
  const ScratchDirectory scratch;
  const auto transfers = transfers_of({});
  Memory bytes(10);
  ASSERT_TRUE(transfers->start_write(scratch.path() / "new", FileOffset(0), bytes.span()));
  ASSERT_TRUE(transfers->wait());

  struct stat status {};
  ASSERT_EQ(::stat((scratch.path() / "new").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
}

TEST(FileTransfers, RefuseWhatCannotBeMovedWhenItIsStarted) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "file", missing = scratch.path() / "missing";
  std::ofstream(file) << "ten bytes.";
  const auto transfers = transfers_of({});
  Memory bytes(100);

  expect(transfers->start_read(missing, FileOffset(0), bytes.span()).error(), ErrorCode::not_found,
         {missing.string()});
  expect(transfers->start_read(file, FileOffset(0), bytes.span()).error(), ErrorCode::truncated,
         {file.string(), "wanted 100 B", "got 10 B"});
  expect(transfers->start_read(scratch.path(), FileOffset(0), bytes.span()).error(),
         ErrorCode::invalid_argument, {scratch.path().string()});
  expect(transfers->start_write(missing / "file", FileOffset(0), bytes.span()).error(), ErrorCode::not_found,
         {missing.string()});
  expect(transfers->start_write("", FileOffset(0), bytes.span()).error(), ErrorCode::invalid_argument,
         {"file", "empty"});
  expect(transfers->start_write(file, FileOffset(~std::uint64_t{0}), bytes.span()).error(),
         ErrorCode::invalid_argument, {file.string(), "2^63"});
  expect(transfers->start_write(file, FileOffset(0), {nullptr, 1_B}).error(), ErrorCode::invalid_argument,
         {"null"});

  EXPECT_EQ(transfers->wait().value(), 0u);
  EXPECT_EQ(contents(file), "ten bytes.");
  EXPECT_FALSE(fs::exists(missing));
}

TEST(FileTransfers, NameTheFileAndTheOffsetOfEachErrorAndGoOn) {
  for (const IoOperation operation : {IoOperation::read, IoOperation::write}) {
    const ScratchDirectory scratch;
    const fs::path bad = scratch.path() / "bad", good = scratch.path() / "good";
    for (const fs::path& one : {bad, good}) std::ofstream(one) << std::string(1 << 16, 'x');
    const FaultPlan plan{Fault::fail(operation, 2, ENODATA)};  // the third page; EIO would be tried in halves
    const auto transfers =
        transfers_of({.request_max = 4_KiB, .depth = 1, .decorate = [plan](std::unique_ptr<IoEngine> engine) {
                        return std::make_unique<FaultEngine>(std::move(engine), plan);
                      }});
    Memory a(1 << 16), b(1 << 16);
    const auto start = [&](const fs::path& file, Memory& bytes) {
      return operation == IoOperation::read ? transfers->start_read(file, FileOffset(0), bytes.span())
                                            : transfers->start_write(file, FileOffset(0), bytes.span());
    };
    ASSERT_TRUE(start(bad, a));
    ASSERT_TRUE(start(good, b));

    const auto failed = transfers->wait();

    ASSERT_FALSE(failed);
    expect(failed.error(), ErrorCode::io, {bad.string(), "offset 8192"});
    ASSERT_TRUE(start(good, b));
    EXPECT_EQ(transfers->wait().value(), 1u);
  }
}

TEST(FileTransfers, ReportAllThatHaveFailed) {
  const ScratchDirectory scratch;
  const auto transfers = transfers_of({.decorate = [](std::unique_ptr<IoEngine> engine) {
    return std::make_unique<FaultEngine>(std::move(engine),
                                         FaultPlan{Fault::fail(IoOperation::write, 0, ENOSPC, 1000)});
  }});
  Memory bytes(8192);
  for (const char* name : {"a", "b"})
    ASSERT_TRUE(transfers->start_write(scratch.path() / name, FileOffset(0), bytes.span()));

  const auto failed = transfers->wait();

  ASSERT_FALSE(failed);
  expect(failed.error(), ErrorCode::no_space,
         {(scratch.path() / "a").string(), "also", (scratch.path() / "b").string()});
  EXPECT_EQ(transfers->wait().value(), 0u);
}

TEST(FileTransfers, EndWhereADriveDoesNotAnswerAndGoOn) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "file";
  std::ofstream(file) << std::string(1 << 16, 'x');
  for (const std::size_t shift : {0u, 8u}) {  // directly, and through copies
    std::uint32_t engines = 0;
    const auto transfers = transfers_of(
        {.deadline = std::chrono::milliseconds(300), .decorate = [&](std::unique_ptr<IoEngine> engine) {
           FaultPlan plan;
           if (engines++ == 0) plan.push_back({.effect = Fault::Effect::hang});
           return std::make_unique<FaultEngine>(std::move(engine), plan);
         }});
    Memory bytes(1 << 16, shift), others(1 << 16, shift);
    ASSERT_TRUE(transfers->start_read(file, FileOffset(0), bytes.span()));

    const auto failed = transfers->wait();

    ASSERT_FALSE(failed);
    expect(failed.error(), ErrorCode::deadline_exceeded, {file.string()});
    ASSERT_TRUE(transfers->start_read(file, FileOffset(0), others.span()));
    EXPECT_EQ(transfers->wait().value(), 1u);
    EXPECT_EQ(others.text(), std::string(1 << 16, 'x'));
    EXPECT_EQ(engines, 2u) << "a late completion of the first one must not meet another transfer";
  }
}

TEST(FileTransfers, ReportADriveThatDoesNotAnswerBeforeEarlierErrors) {
  const ScratchDirectory scratch;
  const auto transfers = transfers_of(
      {.deadline = std::chrono::milliseconds(300), .decorate = [](std::unique_ptr<IoEngine> engine) {
         const FaultPlan plan{Fault::fail(IoOperation::write, 0, ENOSPC),
                              {.occurrence = 1, .effect = Fault::Effect::hang}};
         return std::make_unique<FaultEngine>(std::move(engine), plan);
       }});
  Memory bytes(8192);
  for (const char* name : {"full", "hangs"})
    ASSERT_TRUE(transfers->start_write(scratch.path() / name, FileOffset(0), bytes.span()));

  const auto failed = transfers->wait();

  ASSERT_FALSE(failed);
  expect(failed.error(), ErrorCode::deadline_exceeded,
         {(scratch.path() / "hangs").string(), "also", (scratch.path() / "full").string()});
}

TEST(FileTransfers, EndWhereACallDoesNotReturn) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "file";
  std::ofstream(file) << std::string(1 << 16, 'x');
  // The first call is that of start_read(). Never destroyed: the second one may still use it.
  static auto* const files =
      new FaultFileSystem(real_file_system(), {{.operation = FileSystemFault::Operation::open,
                                                .occurrence = 1,
                                                .effect = FileSystemFault::Effect::delay,
                                                .delay = std::chrono::seconds(3)}});
  const auto transfers = transfers_of({.deadline = std::chrono::milliseconds(200), .files = files});
  Memory bytes(1 << 16);
  ASSERT_TRUE(transfers->start_read(file, FileOffset(0), bytes.span()));

  const auto failed = transfers->wait();

  ASSERT_FALSE(failed);
  expect(failed.error(), ErrorCode::deadline_exceeded, {file.string()});
  expect(transfers->start_read(file, FileOffset(0), bytes.span()).error(), ErrorCode::failed_state,
         {file.string(), "cause"});
}

TEST(FileTransfers, WaitForACallWithoutEndIfTheDeadlineIsForever) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "file";
  std::ofstream(file) << std::string(1 << 16, 'x');
  // Longer than a step of wait(). Never destroyed: a call that is abandoned may still use it.
  static auto* const files =
      new FaultFileSystem(real_file_system(), {{.operation = FileSystemFault::Operation::open,
                                                .occurrence = 1,
                                                .effect = FileSystemFault::Effect::delay,
                                                .delay = std::chrono::milliseconds(1500)}});
  const auto transfers = transfers_of({.deadline = forever, .files = files});
  static Memory bytes(1 << 16);
  ASSERT_TRUE(transfers->start_read(file, FileOffset(0), bytes.span()));

  const auto ended = transfers->wait();

  ASSERT_TRUE(ended) << ended.error().message();
  EXPECT_EQ(bytes.text(), std::string(1 << 16, 'x'));
}

TEST(FileTransfers, SayWhatIsDoneOtherwise) {
  const ScratchDirectory scratch;
  const auto transfers = transfers_of({});
  Memory bytes(8192, 8);
  ASSERT_TRUE(transfers->start_write(scratch.path() / "file", FileOffset(0), bytes.span()));
  ASSERT_TRUE(transfers->wait());

  const auto notes = transfers->notes();

  EXPECT_TRUE(std::ranges::any_of(notes, [](const std::string& note) {
    return note.find("is copied") != std::string::npos || note.find("is buffered") != std::string::npos;
  }));
}

TEST(FileTransfers, EndBeforeTheirObject) {
  const ScratchDirectory scratch;
  Memory bytes(4 << 20);
  bytes.fill(3);
  {
    const auto transfers = transfers_of(
        {.threads = 2, .decorate = [](std::unique_ptr<IoEngine> engine) {
           return std::make_unique<FaultEngine>(
               std::move(engine),
               FaultPlan{{.effect = Fault::Effect::delay, .delay = std::chrono::milliseconds(200)}});
         }});
    ASSERT_TRUE(transfers->start_write(scratch.path() / "file", FileOffset(0), bytes.span()));
  }
  EXPECT_TRUE(contents(scratch.path() / "file") == bytes.text());
}

TEST(FileTransfers, NameTheOptionThatIsWrong) {
  const auto refused = [](FileTransfers::Options options) {
    return FileTransfers::create(std::move(options)).error().message();
  };
  EXPECT_NE(refused({.request_max = 1000_B}).find("request_max"), std::string::npos);
  EXPECT_NE(refused({.request_max = 0_B}).find("request_max"), std::string::npos);
  EXPECT_NE(refused({.depth = 0}).find("depth"), std::string::npos);
  EXPECT_NE(refused({.depth = 100'000}).find("depth"), std::string::npos);
  EXPECT_NE(refused({.threads = 0}).find("threads"), std::string::npos);
  EXPECT_NE(refused({.threads = 10'000}).find("threads"), std::string::npos);
  EXPECT_NE(refused({.deadline = {}}).find("deadline"), std::string::npos);
  EXPECT_NE(refused({.files = nullptr}).find("files"), std::string::npos);
}

}  // namespace
}  // namespace penstock::tiers
