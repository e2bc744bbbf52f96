#include <penstock/tiers/io/sim_disk.hpp>

#include "kit/pattern.hpp"
#include "unit/tiers/io/small_disk.hpp"

#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/tiers/io/fault_file_system.hpp>

#include <gtest/gtest.h>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace penstock::tiers {
namespace {

using test::Pattern;
using Names = SmallDisk::Names;

constexpr std::uint64_t seed_count = 2000;

TEST(SimDisk, HasTheAlignmentOfItsOptions) {
  SimDisk disk({.alignment = Alignment(512)});

  const File file = disk.create_scratch("/", 1_KiB, DirectIo::preferred).value();

  EXPECT_EQ(disk.options().alignment, Alignment(512));
  EXPECT_EQ(file.properties().alignment, disk.options().alignment);
}

TEST(SimDiskPowerCut, KeepsWhatWasFlushedUnderANameThatWasSynced) {
  for (std::uint64_t seed = 0; seed < seed_count; ++seed) {
    SmallDisk disk;
    disk.make("manifest", "first").sync().value();
    disk.sim.sync_directory("/d").value();

    disk.sim.power_cut(seed);

    EXPECT_EQ(disk.find("manifest"), "first") << "seed " << seed;
  }
}

TEST(SimDiskPowerCut, MayTakeAFileThatWasFlushedAndItsNameNotSynced) {
  std::set<std::optional<std::string>> found;
  for (std::uint64_t seed = 0; seed < seed_count; ++seed) {
    SmallDisk disk;
    disk.make("manifest", "first").sync().value();

    disk.sim.power_cut(seed);

    found.insert(disk.find("manifest"));
  }
  EXPECT_EQ(found, (std::set<std::optional<std::string>>{std::nullopt, "first"}));
}

TEST(SimDiskPowerCut, MayCutOrEmptyAFileThatWasNotFlushed) {
  std::set<std::string> found;
  for (std::uint64_t seed = 0; seed < seed_count; ++seed) {
    SmallDisk disk;
    const File file = disk.make("manifest", "first");
    disk.sim.sync_directory("/d").value();

    disk.sim.power_cut(seed);

    found.insert(disk.text_of("manifest"));
  }
  EXPECT_EQ(found, (std::set<std::string>{"", std::string(5, '\0'), "first"}));
}

TEST(SimDiskPowerCut, KeepsAnySectorsOfWritesThatWereNotFlushedInAnyOrder) {
  std::set<std::string> found;
  for (std::uint64_t seed = 0; seed < seed_count; ++seed) {
    SmallDisk disk;
    File file = disk.make("swap", std::string(1024, 'a'));
    file.sync().value();
    disk.sim.sync_directory("/d").value();
    for (const char letter : {'b', 'c'}) {
      SmallDisk::write(file, 0, std::string(1024, letter));
    }

    disk.sim.power_cut(seed);

    const std::string text = disk.text_of("swap");
    ASSERT_EQ(text.size(), 1024u);
    EXPECT_EQ(text, std::string(512, text[0]) + std::string(512, text[512])) << "seed " << seed;
    found.insert({text[0], text[512]});
  }
  EXPECT_EQ(found, (std::set<std::string>{"aa", "ab", "ac", "ba", "bb", "bc", "ca", "cb", "cc"}));
}

TEST(SimDiskPowerCut, LeavesARenameThatWasNotSyncedWhollyDoneOrNot) {
  std::map<Names, std::set<std::string>> found;
  for (std::uint64_t seed = 0; seed < seed_count; ++seed) {
    SmallDisk disk;
    disk.make("manifest", "first").sync().value();
    disk.make("manifest.new", "second").sync().value();
    disk.sim.sync_directory("/d").value();
    disk.sim.rename("/d/manifest.new", "/d/manifest").value();

    disk.sim.power_cut(seed);

    found[disk.names()].insert(disk.text_of("manifest"));
  }
  EXPECT_EQ(found, (std::map<Names, std::set<std::string>>{{{"manifest"}, {"second"}},
                                                           {{"manifest", "manifest.new"}, {"first"}}}));
}

TEST(SimDiskPowerCut, LosesAnySubsetOfTheNamesThatWereNotSynced) {
  std::set<Names> found;
  for (std::uint64_t seed = 0; seed < seed_count; ++seed) {
    SmallDisk disk;
    disk.make("a", "").sync().value();
    disk.sim.sync_directory("/d").value();
    disk.sim.remove("/d/a").value();
    disk.make("b", "").sync().value();

    disk.sim.power_cut(seed);

    found.insert(disk.names());
  }
  EXPECT_EQ(found, (std::set<Names>{{}, {"a"}, {"a", "b"}, {"b"}}));
}

TEST(SimDiskPowerCut, EndsOpenFilesLocksAndScratchFilesAndFreesTheirSpace) {
  SmallDisk disk;
  const File scratch = disk.sim.create_scratch("/d", 64_KiB, DirectIo::preferred).value();
  File file = disk.sim.create("/d/swap", 64_KiB, DirectIo::off).value();
  DirectoryLock lock = disk.sim.lock("/d").value();
  file.sync().value();
  disk.sim.sync_directory("/d").value();

  disk.sim.power_cut(1);

  EXPECT_EQ(file.size().error().os_error(), EBADF);
  EXPECT_EQ(file.sync().error().os_error(), EBADF);
  EXPECT_EQ(file.write(FileOffset(0), ConstHostSpan(std::span("x", 1))).error().os_error(), EBADF);
  EXPECT_EQ(disk.sim.open_file_count(), 0u);
  EXPECT_EQ(disk.sim.free_space("/d").value(), 1_MiB - 64_KiB);
  const DirectoryLock next = disk.sim.lock("/d").value();
  lock = DirectoryLock();  // one of before the cut frees nothing
  EXPECT_EQ(disk.sim.lock("/d").error().code(), ErrorCode::in_use);
}

TEST(SimDiskPowerCut, EndsEveryCallFromTheChosenOperationOnUntilThePowerReturns) {
  SimDisk disk({});
  disk.make_directory("/d");
  disk.power_cut_after(2, /*seed=*/1);
  {
    auto file = disk.create("/d/a", 4_KiB, DirectIo::off).value();
    ASSERT_TRUE(file.sync());
    EXPECT_TRUE(disk.has_power());

    EXPECT_EQ(disk.sync_directory("/d").error().os_error(), EIO);

    EXPECT_FALSE(disk.has_power());
    EXPECT_EQ(disk.change_count(), 2u);
    EXPECT_FALSE(disk.open("/d/a", DirectIo::off));
    EXPECT_FALSE(disk.list("/d"));
    EXPECT_FALSE(disk.lock("/d"));
    EXPECT_FALSE(disk.remove("/d/a"));
  }
  disk.power_on();
  EXPECT_TRUE(disk.list("/d"));
  EXPECT_TRUE(disk.create("/d/b", 4_KiB, DirectIo::off));
}

TEST(SimDiskKill, LosesNothingBeforeAPowerCut) {
  std::set<bool> found;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SmallDisk disk;
    const File open = disk.make("file", "text");
    DirectoryLock lock = disk.sim.lock("/d").value();
    disk.sim.kill_after(0, seed);
    EXPECT_FALSE(disk.sim.sync_directory("/d"));
    EXPECT_FALSE(disk.sim.has_power());
    disk.sim.power_on();
    EXPECT_FALSE(open.size());
    EXPECT_TRUE(disk.sim.lock("/d"));
    EXPECT_EQ(disk.find("file"), "text");

    disk.sim.power_cut(seed);

    found.insert(disk.find("file") == "text");
  }
  EXPECT_EQ(found, (std::set{false, true}));
}

TEST(SimDiskPowerCut, LeavesTheSameForTheSameSeed) {
  const auto left = [](std::uint64_t seed) {
    SmallDisk disk;
    File file = disk.make("swap", std::string(8192, 'a'));
    disk.sim.sync_directory("/d").value();
    SmallDisk::write(file, 1024, std::string(4096, 'b'));
    disk.sim.power_cut(seed);
    return disk.text_of("swap");
  };

  for (std::uint64_t seed = 0; seed < 50; ++seed) EXPECT_EQ(left(seed), left(seed));
}

/// The engine of a disk with one named file of 64 KiB, all zeros and durable.
class SimEnginePowerCut : public testing::Test {
 protected:
  static constexpr ByteCount each = 4_KiB;

  explicit SimEnginePowerCut() {
    file_.sync().value();
    disk_.sim.sync_directory("/d").value();
  }
  IoRequest request(IoOperation operation, std::uint64_t block) {
    const bool flush = operation == IoOperation::flush;
    const HostSpan buffer = flush ? HostSpan() : HostSpan(memory_.get() + block * 4096, each);
    if (!flush) Pattern{.tensor = 1}.fill(buffer, block * 4096);
    return {operation, file_.handle(), FileOffset(block * 4096), buffer, block};
  }
  void submit(const IoRequest& request) { ASSERT_EQ(engine_.submit({&request, 1}), 1u); }
  /// The tags of `count` requests, in the order in which they complete.
  std::vector<std::uint64_t> complete(std::size_t count) {
    std::vector<std::uint64_t> tags;
    std::array<IoCompletion, 1> completion;
    while (tags.size() < count) {
      clock_.advance_to(engine_.next_due());
      if (engine_.reap(completion, TimePoint::min()) == 1) tags.push_back(completion[0].tag);
    }
    return tags;
  }
  /// Whether the block is there after a power cut; in part counts as not.
  static bool has(SmallDisk& disk, std::uint64_t block) {
    const File file = disk.sim.open("/d/swap", DirectIo::off).value();
    std::vector<std::byte> bytes(4096);
    file.read(FileOffset(block * 4096), HostSpan(std::span(bytes))).value();
    return !Pattern{.tensor = 1}.first_difference(HostSpan(std::span(bytes)), block * 4096);
  }

  SmallDisk disk_;
  SimClock clock_;
  SimEngine engine_{disk_.sim, clock_, /*seed=*/1};
  File file_ = disk_.sim.create("/d/swap", 64_KiB, DirectIo::preferred).value();
  std::unique_ptr<std::byte, decltype(&std::free)> memory_{
      static_cast<std::byte*>(std::aligned_alloc(4096, 65536)), &std::free};
};

TEST_F(SimEnginePowerCut, AFlushKeepsTheWritesThatHadCompletedWhenItWasSubmittedAndNoOthers) {
  bool lost = false, kept = false;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const std::vector<std::byte> zeros(8192);
    file_ = disk_.sim.open("/d/swap", DirectIo::off).value();
    file_.write(FileOffset(0), ConstHostSpan(std::span(zeros))).value();
    file_.sync().value();
    submit(request(IoOperation::write, 0));
    complete(1);
    submit(request(IoOperation::flush, 2));
    submit(request(IoOperation::write, 1));
    const auto order = complete(2);

    disk_.sim.power_cut(seed);

    EXPECT_TRUE(has(disk_, 0)) << "seed " << seed;
    if (order[0] == 1)
      (has(disk_, 1) ? kept : lost) = true;  // completed before the flush, but was not before it
  }
  EXPECT_TRUE(lost && kept);
}

TEST_F(SimEnginePowerCut, AWriteInFlightMayHaveReachedTheDiskAndNeverCompletesAfterIt) {
  bool lost = false, kept = false;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SmallDisk disk;
    SimEngine engine(disk.sim, clock_, seed);
    const File file = disk.sim.create("/d/swap", 64_KiB, DirectIo::preferred).value();
    disk.sim.open("/d/swap", DirectIo::off)->sync().value();
    disk.sim.sync_directory("/d").value();
    IoRequest write = request(IoOperation::write, 1);
    write.file = file.handle();
    ASSERT_EQ(engine.submit({&write, 1}), 1u);

    disk.sim.power_cut(seed);

    (has(disk, 1) ? kept : lost) = true;
    clock_.advance_to(engine.next_due());
    std::array<IoCompletion, 1> completion;
    ASSERT_EQ(engine.reap(completion, TimePoint::min()), 1u);
    EXPECT_EQ(completion[0].result, -EBADF);
  }
  EXPECT_TRUE(lost && kept);
}

TEST_F(SimEnginePowerCut, AFlushThatFailsLosesWritesWhateverFlushSucceedsLater) {
  bool lost = false, kept = false;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SmallDisk disk;
    SimEngine engine(disk.sim, clock_, seed);
    const File file = disk.sim.create("/d/swap", 64_KiB, DirectIo::preferred).value();
    disk.sim.open("/d/swap", DirectIo::off)->sync().value();
    disk.sim.sync_directory("/d").value();
    disk.sim.fail_syncs(1, seed);
    std::vector<std::int64_t> results;
    for (IoRequest next :
         {request(IoOperation::write, 1), request(IoOperation::flush, 0), request(IoOperation::flush, 0)}) {
      next.file = file.handle();
      ASSERT_EQ(engine.submit({&next, 1}), 1u);
      clock_.advance_to(engine.next_due());
      std::array<IoCompletion, 1> completion;
      ASSERT_EQ(engine.reap(completion, TimePoint::min()), 1u);
      results.push_back(completion[0].result);
    }

    disk.sim.power_cut(seed);

    EXPECT_EQ(results, (std::vector<std::int64_t>{4096, -EIO, 0}));
    EXPECT_EQ(disk.sim.flush_count(), 1u);
    (has(disk, 1) ? kept : lost) = true;
  }
  EXPECT_TRUE(lost && kept);
}

TEST_F(SimEnginePowerCut, AFlushThatADriveOnlyReportsKeepsNothing) {
  bool lost = false;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SmallDisk disk;
    auto sim = std::make_unique<SimEngine>(disk.sim, clock_, seed);
    const SimEngine& times = *sim;
    FaultEngine engine(std::move(sim), {{.operation = IoOperation::flush, .effect = Fault::Effect::lose}},
                       clock_);
    const File file = disk.sim.create("/d/swap", 64_KiB, DirectIo::preferred).value();
    disk.sim.open("/d/swap", DirectIo::off)->sync().value();
    disk.sim.sync_directory("/d").value();
    for (IoRequest next : {request(IoOperation::write, 1), request(IoOperation::flush, 0)}) {
      next.file = file.handle();
      ASSERT_EQ(engine.submit({&next, 1}), 1u);
      if (next.operation == IoOperation::write) clock_.advance_to(times.next_due());
      std::array<IoCompletion, 1> completion;
      ASSERT_EQ(engine.reap(completion, TimePoint::min()), 1u);
      EXPECT_GE(completion[0].result, 0);
    }

    disk.sim.power_cut(seed);

    lost |= !has(disk, 1);
  }
  EXPECT_TRUE(lost);
}

/// How a manifest is replaced, wholly or with a step left out.
enum class LeftOut { nothing, flush, directory_sync, rename };

Result<void> replace_manifest(FileSystem& files, const std::string& text, LeftOut left_out) {
  const bool in_place = left_out == LeftOut::rename;
  const char* const name = in_place ? "/d/manifest" : "/d/manifest.new";
  auto file = in_place ? files.open(name, DirectIo::off) : files.create(name, 0_B, DirectIo::off);
  if (!file) return file.error();
  PENSTOCK_TRY(file->write(FileOffset(0), ConstHostSpan(std::span(text))));
  if (left_out != LeftOut::flush) PENSTOCK_TRY(file->sync());
  if (in_place) return ok();
  PENSTOCK_TRY(files.rename("/d/manifest.new", "/d/manifest"));
  if (left_out != LeftOut::directory_sync) PENSTOCK_TRY(files.sync_directory("/d"));
  return ok();
}

/// The power fails while manifest 'a' is replaced by 'b', before the call number `calls` of the protocol. True when
/// the disk has the old or the new one then, and the new one if the protocol had ended.
bool leaves_old_or_new(LeftOut left_out, std::uint64_t calls, std::uint64_t seed) {
  const std::string before(3000, 'a'), after(3000, 'b');
  SmallDisk disk;
  replace_manifest(disk.sim, before, LeftOut::nothing).value();
  FaultFileSystem off_at(disk.sim, {FileSystemFault::fail({}, calls, EIO, 100)});
  const bool done = replace_manifest(off_at, after, left_out).has_value();

  disk.sim.power_cut(seed);

  const auto found = disk.find("manifest");
  return found == after || (found == before && !done);
}

constexpr std::uint64_t protocol_calls = 5;

TEST(SimDiskProtocol, LeavesTheOldManifestOrTheNewOneWheneverThePowerFails) {
  for (std::uint64_t seed = 0; seed < seed_count; ++seed) {
    for (std::uint64_t calls = 0; calls <= protocol_calls; ++calls) {
      EXPECT_TRUE(leaves_old_or_new(LeftOut::nothing, calls, seed)) << "seed " << seed << ", call " << calls;
    }
  }
}

TEST(SimDiskProtocol, FailsAtSomeSeedWithAnyStepLeftOut) {
  for (const LeftOut left_out : {LeftOut::flush, LeftOut::directory_sync, LeftOut::rename}) {
    std::uint64_t failed = 0;
    for (std::uint64_t seed = 0; seed < seed_count; ++seed) {
      for (std::uint64_t calls = 0; calls <= protocol_calls; ++calls) {
        if (!leaves_old_or_new(left_out, calls, seed)) ++failed;
      }
    }
    EXPECT_GT(failed, seed_count / 20) << "left out: " << static_cast<int>(left_out);
  }
}

}  // namespace
}  // namespace penstock::tiers
