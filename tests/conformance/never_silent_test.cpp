// Errors that storage layers often ignore silently, on every real engine and real file systems: full disks, injected
// faults, partial submissions, cold files.
#include "io_engine_bench.hpp"
#include "kit/mounted_file_system.hpp"
#include "kit/pattern.hpp"
#include "kit/seeded_random.hpp"

#include "tiers/io/block_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <map>
#include <set>

namespace penstock::tiers {
namespace {

using test::MountedFileSystem;
using test::Pattern;

class NeverSilent : public OverEngines {
 protected:
  struct Piece {
    FileOffset offset;
    HostSpan buffer;
  };

  /// Runs all transfers concurrently and returns the results by index. A transfer that exceeds the deadline is lost.
  static std::vector<Result<void>> run(BlockFile& file, IoOperation operation,
                                       const std::vector<Piece>& pieces) {
    std::vector<Result<void>> results(pieces.size());
    std::set<std::uint64_t> finished;
    std::size_t started = 0;
    const TimePoint deadline = Clock::steady().now() + std::chrono::seconds(30);
    while (finished.size() < pieces.size() && Clock::steady().now() < deadline) {
      while (started < pieces.size() &&
             file.start(operation, pieces[started].offset, pieces[started].buffer, started)) {
        ++started;
      }
      file.poll(deadline);
      while (auto one = file.take_finished()) {
        EXPECT_TRUE(finished.insert(one->tag).second) << "transfer " << one->tag << " has finished twice";
        results.at(one->tag) = one->result;
      }
    }
    EXPECT_EQ(finished.size(), pieces.size());
    return results;
  }
  /// Consecutive pieces of `each` bytes, one after the other in the file and in memory.
  std::vector<Piece> pieces(std::size_t count, ByteCount each) {
    const HostSpan all = buffer(count * each);
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < count; ++i) {
      pieces.push_back({FileOffset(i * each.value()), all.subspan(i * each, each)});
    }
    return pieces;
  }
  static void fill(const std::vector<Piece>& pieces, std::uint64_t generation) {
    for (const Piece& piece : pieces) fill(piece, generation);
  }
  static void fill(const Piece& piece, std::uint64_t generation) {
    Pattern{.tensor = 1, .generation = generation}.fill(piece.buffer, piece.offset.value());
  }
  static bool holds(const Piece& piece, std::uint64_t generation) {
    return !Pattern{.tensor = 1, .generation = generation}.first_difference(piece.buffer,
                                                                            piece.offset.value());
  }
  /// Drops the file's pages from the page cache; false if that is impossible, as on tmpfs.
  static bool drop_cache(int descriptor, ByteCount size) {
    EXPECT_EQ(::fsync(descriptor), 0);
    EXPECT_EQ(::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED), 0);
    void* const mapped = ::mmap(nullptr, size.value(), PROT_READ, MAP_SHARED, descriptor, 0);
    std::vector<unsigned char> resident(size / 4_KiB);
    EXPECT_EQ(::mincore(mapped, size.value(), resident.data()), 0);
    ::munmap(mapped, size.value());
    return std::none_of(resident.begin(), resident.end(), [](unsigned char page) { return (page & 1) != 0; });
  }
};

/// A sparse file that is longer than the free space of its file system.
Result<File> sparse_file(const std::filesystem::path& directory, ByteCount size, bool direct) {
  const int flags = O_TMPFILE | O_RDWR | O_CLOEXEC | (direct ? O_DIRECT : 0);
  const int descriptor = ::open(directory.c_str(), flags, 0600);
  if (descriptor < 0) return Error::from_errno("open", errno);
  File file(real_file_system(), {.handle = FileHandle(descriptor),
                                 .name = "sparse file in " + directory.string(),
                                 .direct = direct,
                                 .alignment = Alignment(4096)});
  if (::ftruncate(descriptor, static_cast<off_t>(size.value())) != 0)
    return Error::from_errno("ftruncate", errno);
  return file;
}

TEST_P(NeverSilent, AWriteToAFullFileSystemFailsAndWhatWasReportedWholeIsWhole) {
  const ByteCount each = 3_MiB;  // several requests, some of which may still find free space
  const std::size_t count = 32;
  const std::vector<Piece> all = pieces(count, each);
  bool tried = false;
  for (const auto kind :
       {MountedFileSystem::Kind::tmpfs, MountedFileSystem::Kind::ext4, MountedFileSystem::Kind::ext2}) {
    for (const bool direct : {false, true}) {
      SCOPED_TRACE(std::string(to_string(kind)) + (direct ? ", direct" : ", buffered"));
      const MountedFileSystem mounted(kind);
      if (!mounted.skip_reason().empty()) continue;
      const ByteCount room(std::filesystem::space(mounted.path()).free);
      ASSERT_LT(room, count * each);
      auto sparse = sparse_file(mounted.path(), count * each, direct);
      if (!sparse) continue;  // no direct I/O there
      tried = true;
      const int descriptor = static_cast<int>(sparse->handle());
      const auto bench = GetParam().second();
      BlockFile file = BlockFile::create(std::move(*sparse), *bench->engine, {.size = count * each}).value();
      fill(all, 1);

      const auto wrote = run(file, IoOperation::write, all);

      std::vector<Piece> whole;
      for (std::size_t i = 0; i < count; ++i) {
        if (wrote[i]) {
          whole.push_back(all[i]);
          continue;
        }
        const std::string message = wrote[i].error().message();
        EXPECT_EQ(wrote[i].error().code(), ErrorCode::no_space) << message;
        EXPECT_NE(message.find("sparse file in " + mounted.path().string() + " at offset "),
                  std::string::npos)
            << message;
      }
      EXPECT_LE(whole.size() * each, room);
      EXPECT_GT(whole.size(), 10u);
      (void)drop_cache(descriptor, count * each);
      fill(all, 2);
      for (const auto& read : run(file, IoOperation::read, whole)) EXPECT_TRUE(read);
      for (const Piece& piece : whole) EXPECT_TRUE(holds(piece, 1)) << "at " << piece.offset.value();
    }
  }
  if (!tried) GTEST_SKIP() << "no file system can be mounted here";
}

TEST_P(NeverSilent, AFaultEndsWithATypedErrorOrIsOvercomeAndNeverBringsAWrongByte) {
  using Effect = Fault::Effect;
  struct Injected {
    Fault fault;
    std::set<ErrorCode> errors;  // empty: the transfer succeeds in spite of the fault
  };
  const Injected faults[] = {
      {Fault::fail({}, 0, EIO), {}},  // cut in two
      {Fault::fail({}, 0, EIO, 20), {ErrorCode::io}},
      {Fault::fail(IoOperation::write, 0, ENOSPC), {ErrorCode::no_space}},
      {Fault::fail({}, 0, ENODEV), {ErrorCode::io}},
      {Fault::fail({}, 0, EAGAIN, 2), {}},
      {Fault::fail({}, 0, EINTR), {}},
      {{.effect = Effect::shorten, .length = 4_KiB}, {}},
      {{.effect = Effect::shorten, .length = 4097_B}, {}},
      {{.effect = Effect::shorten, .length = 1_B}, {}},
      {{.effect = Effect::shorten, .length = 0_B}, {ErrorCode::truncated}},
  };
  FaultEngine engine(std::move(bench_->engine), {});
  BlockFile file =
      BlockFile::create(bench_->scratch(256_KiB), engine, {.size = 256_KiB, .request_max = 16_KiB}).value();
  const std::vector<Piece> all = pieces(4, 64_KiB);
  std::uint64_t generation = 0;
  for (const auto& [fault, errors] : faults) {
    std::uint64_t failed = 0;
    // 16 requests write, and as many read.
    for (std::uint64_t occurrence = 0; occurrence < (fault.operation ? 16u : 32u); ++occurrence) {
      Fault next = fault;
      next.occurrence = engine.accepted(fault.operation) + occurrence;
      engine.add(next);
      const std::uint64_t injected = engine.injected();
      fill(all, ++generation);
      for (const IoOperation operation : {IoOperation::write, IoOperation::read}) {
        if (operation == IoOperation::read) fill(all, 0);
        auto results = run(file, operation, all);
        for (int attempt = 0; attempt < 20; ++attempt) {  // until the fault has occurred
          std::vector<Piece> again;
          for (std::size_t i = 0; i < results.size(); ++i) {
            if (results[i]) continue;
            ++failed;
            EXPECT_TRUE(errors.contains(results[i].error().code())) << results[i].error().message();
            EXPECT_NE(results[i].error().message().find(" at offset "), std::string::npos);
            again.push_back(all[i]);
          }
          if (again.empty()) break;
          const auto repeated = run(file, operation, again);
          for (std::size_t i = 0, next_again = 0; i < results.size(); ++i) {
            if (!results[i]) results[i] = repeated[next_again++];
          }
        }
        for (const auto& result : results) ASSERT_TRUE(result) << "the fault has passed";
      }
      EXPECT_GT(engine.injected(), injected);
      for (const Piece& piece : all) ASSERT_TRUE(holds(piece, generation)) << "at " << piece.offset.value();
    }
    EXPECT_EQ(failed > 0, !errors.empty());
  }
}

/// Accepts a random number of the submitted requests, sometimes none if others are in flight.
class ReluctantEngine final : public IoEngine {
 public:
  explicit ReluctantEngine(std::unique_ptr<IoEngine> within) : within_(std::move(within)) {}

  std::size_t submit(std::span<const IoRequest> requests) noexcept override {
    if (requests.empty()) return 0;
    const std::size_t least = within_->in_flight() == 0 ? 1 : 0;
    const std::size_t taken = least + random_.below(requests.size() + 1 - least);
    if (taken < requests.size()) ++refusals;
    return within_->submit(requests.first(taken));
  }
  std::size_t reap(std::span<IoCompletion> completions, TimePoint deadline) noexcept override {
    return within_->reap(completions, deadline);
  }
  void wake() noexcept override { within_->wake(); }
  void attach(FileHandle file, HostSpan buffers) noexcept override { within_->attach(file, buffers); }
  bool detach() noexcept override { return within_->detach(); }
  bool close(TimePoint deadline) noexcept override { return within_->close(deadline); }
  IoLimits limits() const noexcept override { return within_->limits(); }
  std::uint32_t in_flight() const noexcept override { return within_->in_flight(); }
  const char* name() const noexcept override { return within_->name(); }
  std::string notes() const override { return within_->notes(); }

  std::uint64_t refusals = 0;

 private:
  std::unique_ptr<IoEngine> within_;
  test::SeededRandom random_{5};
};

TEST_P(NeverSilent, AnEngineThatTakesOnlyAPrefixHangsNothingAndLosesNothing) {
  ReluctantEngine engine(std::move(bench_->engine));
  const std::vector<Piece> all = pieces(40, 100_KiB);
  const ByteCount size = all.size() * 100_KiB;
  BlockFile file =
      BlockFile::create(bench_->scratch(size), engine, {.size = size, .request_max = 8_KiB}).value();
  for (std::uint64_t generation = 1; generation <= 3; ++generation) {
    fill(all, generation);
    for (const auto& result : run(file, IoOperation::write, all))
      ASSERT_TRUE(result) << result.error().message();
    fill(all, 0);
    for (const auto& result : run(file, IoOperation::read, all))
      ASSERT_TRUE(result) << result.error().message();

    for (const Piece& piece : all) EXPECT_TRUE(holds(piece, generation)) << "at " << piece.offset.value();
  }
  EXPECT_GT(engine.refusals, 100u);
  EXPECT_EQ(file.counters().requests, 2u * 3 * 40 * 13);  // each once
}

TEST_P(NeverSilent, AColdFileIsReadWithoutAWrongByte) {
  const std::vector<Piece> all = pieces(64, 1_MiB);
  for (const DirectIo direct_io : {DirectIo::off, DirectIo::preferred}) {
    SCOPED_TRACE(direct_io == DirectIo::off ? "buffered" : "direct");
    const auto bench = GetParam().second();
    File scratch = real_file_system().create_scratch(bench->directory.path(), 64_MiB, direct_io).value();
    const int descriptor = static_cast<int>(scratch.handle());
    BlockFile file =
        BlockFile::create(std::move(scratch), *bench->engine, {.size = 64_MiB, .request_max = 256_KiB})
            .value();
    fill(all, 1);
    for (const auto& result : run(file, IoOperation::write, all)) ASSERT_TRUE(result);
    fill(all, 0);
    if (!drop_cache(descriptor, 64_MiB)) GTEST_SKIP() << "this file system keeps its files in memory";
    std::vector<Piece> in_any_order = all;
    test::SeededRandom random(11);
    for (std::size_t i = in_any_order.size(); i > 1; --i)
      std::swap(in_any_order[i - 1], in_any_order[random.below(i)]);

    for (const auto& result : run(file, IoOperation::read, in_any_order)) EXPECT_TRUE(result);

    for (const Piece& piece : all) EXPECT_TRUE(holds(piece, 1)) << "at " << piece.offset.value();
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, NeverSilent, real_engines(), engine_name);

}  // namespace
}  // namespace penstock::tiers
