#include "io_engine_bench.hpp"
#include "kit/pattern.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <set>
#include <thread>
#include <vector>

namespace penstock::tiers {
namespace {

using test::Pattern;

class IoEngineConformance : public OverEngines {};

TEST_P(IoEngineConformance, ReadsBackWhatItWrote) {
  File file = bench_->scratch(1_MiB);
  std::vector<IoRequest> writes, reads;
  for (std::uint64_t i = 0; i < depth; ++i) {
    const ByteCount size = (i + 1) * 4_KiB;
    const FileOffset offset(i * 64 * 1024);
    writes.push_back({IoOperation::write, file.handle(), offset, buffer(size), i});
    reads.push_back({IoOperation::read, file.handle(), offset, buffer(size), i});
    Pattern{.tensor = i}.fill(writes.back().buffer);
  }

  ASSERT_EQ(engine().submit(writes), writes.size());
  auto wrote = bench_->reap_all(writes.size());
  ASSERT_EQ(engine().submit(reads), reads.size());
  auto read = bench_->reap_all(reads.size());

  for (const IoCompletion& completion : wrote) {
    EXPECT_EQ(completion.result, static_cast<std::int64_t>((completion.tag + 1) * 4096));
  }
  for (std::uint64_t i = 0; i < depth; ++i) {
    EXPECT_FALSE(Pattern{.tensor = i}.first_difference(reads[i].buffer)) << "request " << i;
  }
}

TEST_P(IoEngineConformance, AcceptsAPrefixWhenItsQueueIsFull) {
  File file = bench_->scratch(1_MiB);
  std::vector<IoRequest> requests;
  for (std::uint64_t i = 0; i < depth + 3; ++i) {
    requests.push_back({IoOperation::read, file.handle(), FileOffset(0), buffer(4_KiB), i});
  }

  const std::size_t accepted = engine().submit(requests);

  EXPECT_EQ(accepted, depth);
  EXPECT_EQ(engine().submit(std::span(requests).last(1)), 0u);
  bench_->reap_all(accepted);
  EXPECT_EQ(engine().in_flight(), 0u);
  EXPECT_EQ(engine().submit(std::span(requests).last(1)), 1u);
  EXPECT_EQ(bench_->reap_all(1)[0].tag, depth + 2);
}

TEST_P(IoEngineConformance, ReportsAReadBeyondTheEndAsShortAndThenZero) {
  File file = bench_->scratch(8_KiB);
  std::vector<IoRequest> reads = {
      {IoOperation::read, file.handle(), FileOffset(4096), buffer(8_KiB), 1},
      {IoOperation::read, file.handle(), FileOffset(8192), buffer(4_KiB), 2},
  };

  ASSERT_EQ(engine().submit(reads), 2u);

  for (const IoCompletion& completion : bench_->reap_all(2)) {
    EXPECT_EQ(completion.result, completion.tag == 1 ? 4096 : 0);
  }
}

TEST_P(IoEngineConformance, CompletesEmptyAndUnalignedRequestsOnceWithWhatTheKernelSays) {
  File file = bench_->scratch(64_KiB);
  const HostSpan all = buffer(32_KiB);
  std::fill_n(all.data(), all.size().value(), std::byte{0x5a});
  std::vector<IoRequest> reads;
  for (const ByteCount length : {0_B, 1_B, 4095_B, 4096_B, 4097_B}) {
    reads.push_back(
        {IoOperation::read, file.handle(), FileOffset(0), all.subspan(0_B, length), reads.size()});
  }
  for (const IoRequest& read : reads) {
    ASSERT_EQ(engine().submit({&read, 1}), 1u);
    const auto completions = bench_->reap_all(1);  // one at a time: they share the buffer
    EXPECT_EQ(completions[0].tag, read.tag);
    const auto length = static_cast<std::int64_t>(read.buffer.size().value());
    // Direct I/O refuses lengths that are not whole blocks; buffered I/O accepts them.
    EXPECT_TRUE(completions[0].result == length || (length % 4096 != 0 && completions[0].result == -EINVAL))
        << length << " bytes: " << completions[0].result;
  }
  EXPECT_EQ(engine().in_flight(), 0u);
  EXPECT_EQ(all.data()[8192], std::byte{0x5a});  // nothing beyond the longest request
}

TEST_P(IoEngineConformance, ReportsTheKernelsErrorRaw) {
  const IoRequest read{IoOperation::read, FileHandle(987654), FileOffset(0), buffer(4_KiB), 5};

  ASSERT_EQ(engine().submit({&read, 1}), 1u);

  const IoCompletion completion = bench_->reap_all(1)[0];
  EXPECT_EQ(completion.tag, 5u);
  EXPECT_EQ(completion.result, -EBADF);
}

TEST_P(IoEngineConformance, ReachesOffsetsBeyondFourGibibytes) {
  if (bench_->disk) GTEST_SKIP() << "the simulated disk would hold 5 GiB of memory";
  File file = bench_->scratch(5_GiB);
  const HostSpan out = buffer(4_KiB), in = buffer(4_KiB);
  Pattern{.tensor = 9}.fill(out);
  const FileOffset far((4_GiB + 64_KiB).value());
  const IoRequest write{IoOperation::write, file.handle(), far, out, 1};
  const IoRequest read{IoOperation::read, file.handle(), far, in, 2};

  ASSERT_EQ(engine().submit({&write, 1}), 1u);
  EXPECT_EQ(bench_->reap_all(1)[0].result, 4096);
  ASSERT_EQ(engine().submit({&read, 1}), 1u);
  bench_->reap_all(1);

  EXPECT_FALSE(Pattern{.tensor = 9}.first_difference(in));
}

TEST_P(IoEngineConformance, FlushesAFile) {
  File file = bench_->scratch(4_KiB);
  const IoRequest flush{IoOperation::flush, file.handle(), FileOffset(0), {}, 3};

  ASSERT_EQ(engine().submit({&flush, 1}), 1u);

  EXPECT_EQ(bench_->reap_all(1)[0].result, 0);
}

TEST_P(IoEngineConformance, FlushesANamedFileThatWasWrittenAndOpenedAgain) {
  if (bench_->disk) bench_->disk->make_directory(bench_->directory.path());
  const auto path = bench_->directory.path() / "swap";
  const HostSpan out = buffer(64_KiB), in = buffer(64_KiB);
  Pattern{.tensor = 4}.fill(out);
  for (const bool again : {false, true}) {
    File file = again ? bench_->file_system().open(path, DirectIo::preferred).value()
                      : bench_->file_system().create(path, 64_KiB, DirectIo::preferred).value();
    const IoRequest transfer{again ? IoOperation::read : IoOperation::write, file.handle(), FileOffset(0),
                             again ? in : out, 1};
    const IoRequest flush{IoOperation::flush, file.handle(), FileOffset(0), {}, 2};
    ASSERT_EQ(engine().submit({&transfer, 1}), 1u);
    EXPECT_EQ(bench_->reap_all(1)[0].result, 65536);
    ASSERT_EQ(engine().submit({&flush, 1}), 1u);
    EXPECT_EQ(bench_->reap_all(1)[0].result, 0);
  }

  EXPECT_FALSE(Pattern{.tensor = 4}.first_difference(in));
}

TEST_P(IoEngineConformance, ReportsTheErrorOfAFlushRaw) {
  const IoRequest flush{IoOperation::flush, FileHandle(987654), FileOffset(0), {}, 5};

  ASSERT_EQ(engine().submit({&flush, 1}), 1u);

  EXPECT_EQ(bench_->reap_all(1)[0].result, -EBADF);
}

TEST_P(IoEngineConformance, CompletesEveryAcceptedRequestOnceWhenClosedInFlight) {
  File file = bench_->scratch(64_MiB);
  std::vector<IoRequest> reads;
  for (std::uint64_t i = 0; i < depth; ++i) {
    reads.push_back({IoOperation::read, file.handle(), FileOffset(i * (8_MiB).value()), buffer(8_MiB), i});
  }
  const std::size_t accepted = engine().submit(reads);

  EXPECT_TRUE(engine().close(forever));

  std::vector<std::byte> last;  // detects writes of the kernel after close
  for (const IoRequest& read : reads) last.push_back(read.buffer.data()[read.buffer.size().value() - 1]);
  std::multiset<std::uint64_t> tags;
  std::array<IoCompletion, 5> batch;
  while (const std::size_t count = engine().reap(batch, TimePoint::min())) {
    for (std::size_t i = 0; i < count; ++i) tags.insert(batch[i].tag);
  }
  EXPECT_EQ(tags.size(), accepted);
  EXPECT_EQ(std::set<std::uint64_t>(tags.begin(), tags.end()).size(), accepted);
  EXPECT_EQ(engine().submit(reads), 0u);
  for (std::size_t i = 0; i < reads.size(); ++i) {
    EXPECT_EQ(reads[i].buffer.data()[reads[i].buffer.size().value() - 1], last[i]);
  }
}

TEST_P(IoEngineConformance, ReapsNothingWithoutWaitingAfterClose) {
  std::array<IoCompletion, 1> none;

  EXPECT_TRUE(engine().close(forever));

  EXPECT_EQ(engine().reap(none, forever), 0u);
}

TEST_P(IoEngineConformance, WakesAReapThatBlocks) {
  if (bench_->disk) GTEST_SKIP() << "the simulated engine never blocks";
  std::array<IoCompletion, 1> none;
  std::size_t count = 1;
  std::thread driver([&] { count = engine().reap(none, forever); });

  engine().wake();
  driver.join();

  EXPECT_EQ(count, 0u);
}

TEST_P(IoEngineConformance, AWakeBeforeTheReapIsNotLost) {
  if (bench_->disk) GTEST_SKIP() << "the simulated engine never blocks";
  std::array<IoCompletion, 1> none;

  engine().wake();

  EXPECT_EQ(engine().reap(none, forever), 0u);
}

INSTANTIATE_TEST_SUITE_P(Engines, IoEngineConformance, every_engine(), engine_name);

}  // namespace
}  // namespace penstock::tiers
