#include "swap/path/path.hpp"

#include "kit/pattern.hpp"
#include "kit/scratch_directory.hpp"

#include "tiers/memory/host_arena.hpp"

#include <penstock/tiers/io/fault_file_system.hpp>
#include <penstock/tiers/io/sim_disk.hpp>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <limits>
#include <map>
#include <thread>

namespace penstock::swap {
namespace {

using test::Pattern;
using tiers::BlockFile;
using tiers::EngineChoice;
using tiers::IoOperation;

/// A process may have been killed between making a file and making its name durable.
TEST(PathOfANamedFile, MakesItsNameDurableAlsoWhereItIsThere) {
  using tiers::FileSystemFault;
  const test::ScratchDirectory directory;
  for (const bool is_there : {false, true}) {
    tiers::FaultFileSystem files(tiers::real_file_system(),
                                 {FileSystemFault::fail(FileSystemFault::Operation::sync_directory, 0, EIO)});
    EXPECT_EQ(std::filesystem::exists(directory.path() / "swap0"), is_there);

    const auto path = Path::create(
        {.directory = directory.path(), .capacity = 1_MiB, .file_name = "swap0", .file_system = &files});

    ASSERT_FALSE(path);
    EXPECT_EQ(path.error().code(), ErrorCode::io) << path.error().message();
  }
}

class PathTest : public testing::TestWithParam<EngineChoice> {
 protected:
  void SetUp() override {
    path_ = Path::create({.directory = directory_.path(), .capacity = 8_MiB, .engine = GetParam()}).value();
    path_->attach(arena_.bytes());
    const auto notify = [this] {
      const std::lock_guard lock(mutex_);
      ++notified_;
      arrived_.notify_one();
    };
    path_->start_driver(notify).value();
  }
  HostSpan page(std::uint64_t index) { return arena_.bytes().subspan(index * 4_KiB, 4_KiB); }

  /// The results of `count` transfers by tag.
  std::map<std::uint64_t, Result<void>> outcomes(std::size_t count) {
    std::map<std::uint64_t, Result<void>> results;
    std::vector<BlockFile::Finished> taken;
    std::size_t total = 0;
    while (total < count) {
      {
        std::unique_lock lock(mutex_);
        arrived_.wait(lock, [this] { return notified_ > 0; });
        notified_ = 0;
      }
      taken.clear();
      path_->take_outcomes(taken);
      total += taken.size();
      for (const auto& one : taken) EXPECT_TRUE(results.emplace(one.tag, one.result).second);
    }
    return results;
  }

  test::ScratchDirectory directory_;
  tiers::HostArena arena_ = tiers::HostArena::create({.size = 8_MiB}).value();
  std::mutex mutex_;
  std::condition_variable arrived_;
  int notified_ = 0;
  std::unique_ptr<Path> path_;
};

TEST_P(PathTest, FinishesAnEmptyTransferWhileTheDriverSleeps) {
  for (std::uint64_t i = 0; i < 100; ++i) {  // the driver may not have gone to sleep yet before the first few
    path_->post({.operation = IoOperation::read, .offset = FileOffset(0), .buffer = {}, .tag = i});
    EXPECT_TRUE(outcomes(1).at(i));
  }
}

TEST_P(PathTest, ReturnsTheRefusalOfATransferThatCannotStart) {
  path_->post({.operation = IoOperation::write, .offset = FileOffset(1), .buffer = page(0), .tag = 1});

  EXPECT_EQ(outcomes(1).at(1).error().code(), ErrorCode::invalid_argument);
}

TEST_P(PathTest, LosesNoTransferOfManyThatSeveralThreadsPostAtOnce) {
  constexpr std::uint64_t posters = 4, each = 300;  // more than a BlockFile has slots for
  for (const auto operation : {IoOperation::write, IoOperation::read}) {
    for (std::uint64_t i = 0; i < posters * each; ++i) {
      Pattern{.tensor = i, .generation = operation == IoOperation::write ? 1u : 2u}.fill(page(i));
    }
    std::vector<std::thread> threads;
    for (std::uint64_t poster = 0; poster < posters; ++poster) {
      threads.emplace_back([&, poster] {
        for (std::uint64_t i = poster; i < posters * each; i += posters) {
          path_->post({.operation = operation, .offset = FileOffset(i * 4096), .buffer = page(i), .tag = i});
        }
      });
    }
    for (const auto& [tag, result] : outcomes(posters * each)) EXPECT_TRUE(result) << tag;
    for (std::thread& thread : threads) thread.join();
  }

  for (std::uint64_t i = 0; i < posters * each; ++i) {
    EXPECT_FALSE((Pattern{.tensor = i, .generation = 1}.first_difference(page(i)))) << i;
  }
}

// A ring that kept old pages would read into them, not into those that the memory has now.
TEST_P(PathTest, ReadsIntoThePagesThatReplacedOthers) {
  const auto replace_buffers = [this](HostSpan buffers) {
    path_->replace_buffers(buffers);
    for (int i = 0; i < 5000 && !path_->buffers_replaced(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return path_->buffers_replaced() && path_->buffers_detached();
  };
  const Pattern pattern{.tensor = 1, .generation = 1};
  pattern.fill(page(0));
  path_->post({.operation = IoOperation::write, .buffer = page(0), .tag = 1});
  ASSERT_TRUE(outcomes(1).at(1));

  ASSERT_TRUE(replace_buffers({}));
  ASSERT_EQ(arena_.give_back(arena_.bytes()), 8_MiB);
  path_->post({.operation = IoOperation::read, .buffer = page(1), .tag = 2});  // without registration
  EXPECT_TRUE(outcomes(1).at(2));
  ASSERT_TRUE(arena_.take_back(arena_.bytes()));
  ASSERT_TRUE(replace_buffers(arena_.bytes()));
  path_->post({.operation = IoOperation::read, .buffer = page(2), .tag = 3});
  ASSERT_TRUE(outcomes(1).at(3));

  EXPECT_FALSE(pattern.first_difference(page(1)));
  EXPECT_FALSE(pattern.first_difference(page(2)));
  EXPECT_EQ(path_->notes().find("buffers"), std::string::npos) << path_->notes();
}

TEST_P(PathTest, ReplacesBuffersBetweenTransfersThatAreQueuedMeanwhile) {
  constexpr std::uint64_t count = 1000;
  for (std::uint64_t i = 0; i < count; ++i) {
    Pattern{.tensor = i, .generation = 1}.fill(page(i));
    path_->post(
        {.operation = IoOperation::write, .offset = FileOffset(i * 4096), .buffer = page(i), .tag = i});
    if (i % 50 != 0) continue;
    path_->replace_buffers(i % 100 == 0 ? HostSpan() : arena_.bytes());
  }
  for (const auto& [tag, result] : outcomes(count)) EXPECT_TRUE(result) << tag;
  while (!path_->buffers_replaced()) std::this_thread::yield();
  EXPECT_TRUE(path_->buffers_detached());

  for (std::uint64_t i = 0; i < count; ++i) {
    Pattern{.tensor = i, .generation = 2}.fill(page(i));
    path_->post(
        {.operation = IoOperation::read, .offset = FileOffset(i * 4096), .buffer = page(i), .tag = i});
  }
  for (const auto& [tag, result] : outcomes(count)) EXPECT_TRUE(result) << tag;
  for (std::uint64_t i = 0; i < count; ++i)
    EXPECT_FALSE((Pattern{.tensor = i, .generation = 1}.first_difference(page(i)))) << i;
}

TEST(Path, RefusesAnInvalidWeight) {
  const test::ScratchDirectory directory;
  for (const double weight : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    auto path = Path::create({.directory = directory.path(), .capacity = 64_KiB, .weight = weight});
    ASSERT_FALSE(path) << weight;
    EXPECT_EQ(path.error().code(), ErrorCode::invalid_argument);
  }
}

TEST(Path, RefusesARateThatIsNoneAndAFileInAnotherDirectory) {
  const test::ScratchDirectory directory;
  const auto message = [&](double rate_limit, const char* file_name) {
    const auto path = Path::create({.directory = directory.path(),
                                    .capacity = 64_KiB,
                                    .file_name = file_name,
                                    .rate_limit = rate_limit});
    return path ? "" : path.error().message();
  };
  for (const double rate : {-3.0, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_NE(message(rate, "").find("rate_limit of "), std::string::npos) << rate;
  for (const char* name : {"../x", "/tmp/x", "a/b", ".", ".."})
    EXPECT_NE(message(0, name).find("file_name of "), std::string::npos) << name;
  EXPECT_EQ(message(0, "swap..0"), "");
}

/// Lifts the limit again.
class FileLengthLimit {
 public:
  explicit FileLengthLimit(ByteCount longest) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = longest.value(), .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLengthLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(Path, HasTheReservedCapacityIfItsFileCannotGrow) {
  const test::ScratchDirectory directory;
  const FileLengthLimit limit(4_MiB);

  const auto path = Path::create({.directory = directory.path(), .capacity = 8_MiB, .reserved = 2_MiB});

  ASSERT_TRUE(path) << path.error().message();
  EXPECT_EQ((*path)->options().capacity, 2_MiB);
  EXPECT_NE((*path)->notes().find("may not grow: "), std::string::npos) << (*path)->notes();
}

TEST(Path, KeepsAllOfAnExistingFileThatCannotGrow) {
  const test::ScratchDirectory directory;
  ASSERT_TRUE(tiers::real_file_system().create(directory.path() / "swap", 3_MiB, tiers::DirectIo::off));
  const FileLengthLimit limit(4_MiB);

  const auto path =
      Path::create({.directory = directory.path(), .capacity = 2_MiB, .file_name = "swap"}, 3_MiB);

  ASSERT_TRUE(path) << path.error().message();
  EXPECT_EQ((*path)->options().capacity, 3_MiB);
  EXPECT_NE((*path)->notes().find("may not grow: "), std::string::npos) << (*path)->notes();
}

/// A store beyond the limit would end the process.
TEST(Path, RefusesAnExistingFileBeyondTheLimitOnFileSizes) {
  const test::ScratchDirectory directory;
  ASSERT_TRUE(tiers::real_file_system().create(directory.path() / "swap", 3_MiB, tiers::DirectIo::off));
  const FileLengthLimit limit(2_MiB);

  for (const ByteCount capacity : {1_MiB, 3_MiB, 8_MiB}) {
    const auto path =
        Path::create({.directory = directory.path(), .capacity = capacity, .file_name = "swap"});

    ASSERT_FALSE(path) << capacity.value();
    EXPECT_EQ(path.error().code(), ErrorCode::no_space) << path.error().message();
    EXPECT_NE(path.error().message().find("ulimit -f"), std::string::npos) << path.error().message();
  }
}

TEST(Path, HasRoomBesideWhatIsKeptInAnExistingFile) {
  const test::ScratchDirectory directory;
  ASSERT_TRUE(tiers::real_file_system().create(directory.path() / "swap", 3_MiB, tiers::DirectIo::off));
  const auto capacity = [&](ByteCount pinned_end) {
    return Path::create({.directory = directory.path(), .capacity = 2_MiB, .file_name = "swap"}, pinned_end)
        .value()
        ->options()
        .capacity;
  };
  EXPECT_EQ(capacity(0_B), 3_MiB);
  EXPECT_EQ(capacity(1_MiB + 500_KiB), 3_MiB + 500_KiB);
  EXPECT_EQ(capacity(1024_GiB), 2_MiB + (3_MiB + 500_KiB)) << "nothing is kept beyond its end";
}

// Holes beyond the reserved bytes are no loss.
TEST(Path, SaysThatAnExistingFileHasTooFewBytesOnTheDisk) {
  const test::ScratchDirectory directory;
  const auto file = directory.path() / "swap";
  ASSERT_TRUE(tiers::real_file_system().create(file, 1_MiB, tiers::DirectIo::off)->extend(8_MiB));
  const auto notes = [&](ByteCount reserved) {
    return Path::create(
               {.directory = directory.path(), .capacity = 8_MiB, .file_name = "swap", .reserved = reserved})
        .value()
        ->notes();
  };
  EXPECT_EQ(notes(1_MiB).find("not reserved"), std::string::npos) << notes(1_MiB);
  EXPECT_NE(notes(2_MiB).find("space not reserved: the file has holes"), std::string::npos) << notes(2_MiB);
  ASSERT_TRUE(std::filesystem::remove(file));
  ASSERT_TRUE(tiers::real_file_system().create(file, 1_MiB, tiers::DirectIo::off));
  EXPECT_NE(notes(2_MiB).find("space not reserved: the existing file has only 1.0 MiB"), std::string::npos);
}

TEST_P(PathTest, CountsTheCpuTimeOfItsDriverUntilItStops) {
  path_->post({.operation = tiers::IoOperation::write, .buffer = page(0), .tag = 1});
  EXPECT_TRUE(outcomes(1).at(1));
  EXPECT_GT(path_->driver_cpu_time(), TimePoint());

  EXPECT_TRUE(path_->stop_driver());

  EXPECT_EQ(path_->driver_cpu_time(), TimePoint());
}

TEST(Path, TakesAFinitePositiveWeight) {
  EXPECT_TRUE(check_weight({.weight = 0.5}));
  for (const double weight : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    EXPECT_FALSE(check_weight({.weight = weight})) << weight;
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, PathTest,
                         testing::Values(EngineChoice::automatic, EngineChoice::libaio,
                                         EngineChoice::threads),
                         [](const auto& choice) { return std::string(to_string(choice.param)); });

TEST(Path, RefusesAFileSystemWhoseTransfersAreLargerThanRangesOfMemory) {
  tiers::SimDisk disk({.alignment = Alignment(65536)});

  const auto path = Path::create({.directory = "disk", .capacity = 1_MiB, .file_system = &disk});

  ASSERT_FALSE(path);
  EXPECT_EQ(path.error().code(), ErrorCode::unsupported);
  EXPECT_NE(path.error().message().find("an alignment of at most 4096, got 65536"), std::string::npos)
      << path.error().message();
}

TEST(Path, RefusesASwapFileWithoutBytes) {
  const test::ScratchDirectory directory;

  const auto path = Path::create({.directory = directory.path()});

  ASSERT_FALSE(path);
  EXPECT_EQ(path.error().code(), ErrorCode::invalid_argument);
  EXPECT_NE(path.error().message().find("capacity of " + directory.path().string()), std::string::npos)
      << path.error().message();
}

}  // namespace
}  // namespace penstock::swap
