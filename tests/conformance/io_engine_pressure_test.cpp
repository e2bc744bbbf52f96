// Engines with more requests than they accept, while signals arrive, or when they are destroyed with requests in
// flight.
#include "io_engine_bench.hpp"
#include "kit/pattern.hpp"
#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

namespace penstock::tiers {
namespace {

using test::Pattern;

/// An interval timer whose signal this process handles, ten thousand times a second. One at a time.
class SignalStorm {
 public:
  explicit SignalStorm(int flags) {
    arrived = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { arrived.fetch_add(1); };
    action.sa_flags = flags;
    ::sigaction(SIGALRM, &action, &before_);
    const itimerval interval{.it_interval = {0, 100}, .it_value = {0, 100}};
    ::setitimer(ITIMER_REAL, &interval, nullptr);
  }
  SignalStorm(const SignalStorm&) = delete;
  SignalStorm& operator=(const SignalStorm&) = delete;
  ~SignalStorm() {
    const itimerval none{};
    ::setitimer(ITIMER_REAL, &none, nullptr);
    ::sigaction(SIGALRM, &before_, nullptr);
  }
  static std::uint32_t count() { return arrived.load(); }

 private:
  inline static std::atomic<std::uint32_t> arrived{0};
  struct sigaction before_ {};
};

class IoEngineUnderPressure : public OverEngines {
 protected:
  /// Submits all requests, refilling the queue whenever it has space, and returns the results by tag, which is the
  /// index.
  std::vector<std::int64_t> run(std::span<const IoRequest> requests) {
    std::vector<std::int64_t> results(requests.size(), pending);
    std::array<IoCompletion, 5> batch;
    std::size_t submitted = 0, completed = 0;
    while (completed < requests.size()) {
      submitted += engine().submit(requests.subspan(submitted));
      EXPECT_LE(engine().in_flight(), depth);
      EXPECT_EQ(engine().in_flight(), submitted - completed);
      const std::size_t count = bench_->reap(batch);
      EXPECT_GT(count, 0u) << "nothing had woken it";
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(std::exchange(results.at(batch[i].tag), batch[i].result), pending) << "a second completion";
      }
      completed += count;
    }
    return results;
  }
  static constexpr std::int64_t pending = INT64_MIN;
};

TEST_P(IoEngineUnderPressure, CompletesEachOfManyMoreRequestsThanItTakesOnceWithItsOwnBytes) {
  const std::uint64_t block = 4096, file_blocks = 1024, round_blocks = 64;
  File file = bench_->scratch(ByteCount(file_blocks * block));
  const HostSpan out = buffer(ByteCount(round_blocks * block)), in = buffer(ByteCount(round_blocks * block));
  test::SeededRandom random(20);
  for (std::uint64_t round = 0; round < 40; ++round) {
    // One piece of the file after the other, each of some blocks, until the buffer is used up.
    std::vector<IoRequest> writes, reads;
    const std::uint64_t begin = random.below(file_blocks - round_blocks);
    for (std::uint64_t at = 0; at < round_blocks;) {
      const std::uint64_t blocks = std::min(1 + random.below(6), round_blocks - at);
      const FileOffset offset((begin + at) * block);
      const ByteCount from(at * block), length(blocks * block);
      writes.push_back({IoOperation::write, file.handle(), offset, out.subspan(from, length), writes.size()});
      reads.push_back({IoOperation::read, file.handle(), offset, in.subspan(from, length), reads.size()});
      at += blocks;
    }
    ASSERT_GT(writes.size(), depth);
    Pattern{.tensor = 3, .generation = round}.fill(out);

    const auto wrote = run(writes), read = run(reads);

    for (std::size_t i = 0; i < writes.size(); ++i) {
      EXPECT_EQ(wrote[i], static_cast<std::int64_t>(writes[i].buffer.size().value()));
      EXPECT_EQ(read[i], static_cast<std::int64_t>(reads[i].buffer.size().value()));
    }
    ASSERT_FALSE((Pattern{.tensor = 3, .generation = round}.first_difference(in))) << "round " << round;
  }
}

TEST_P(IoEngineUnderPressure, CompletesEverythingOnceWhileSignalsArrive) {
  File file = bench_->scratch(1_MiB);
  const HostSpan out = buffer(512_KiB), in = buffer(512_KiB);
  std::vector<IoRequest> writes, reads;
  for (std::uint64_t i = 0; i < 2 * depth; ++i) {
    const ByteCount from = i * 32_KiB;
    writes.push_back(
        {IoOperation::write, file.handle(), FileOffset(from.value()), out.subspan(from, 32_KiB), i});
    reads.push_back(
        {IoOperation::read, file.handle(), FileOffset(from.value()), in.subspan(from, 32_KiB), i});
  }
  for (const int flags : {0, SA_RESTART}) {
    const SignalStorm storm(flags);
    for (std::uint64_t round = 0; SignalStorm::count() < 300; ++round) {
      Pattern{.tensor = 4, .generation = round}.fill(out);
      for (const auto& requests : {writes, reads}) {
        for (const std::int64_t result : run(requests)) ASSERT_EQ(result, 32 << 10);
      }
      ASSERT_FALSE((Pattern{.tensor = 4, .generation = round}.first_difference(in)));
    }
  }
}

TEST_P(IoEngineUnderPressure, WaitsUntilItsDeadlineWhileSignalsArrive) {
  if (bench_->disk) GTEST_SKIP() << "the simulated engine never blocks";
  std::array<IoCompletion, 1> none;
  for (const int flags : {0, SA_RESTART}) {
    const SignalStorm storm(flags);
    const TimePoint deadline = Clock::steady().now() + std::chrono::milliseconds(5);

    EXPECT_EQ(engine().reap(none, deadline), 0u);

    EXPECT_GE(Clock::steady().now(), deadline);
    EXPECT_GT(SignalStorm::count(), 0u);
  }
}

TEST_P(IoEngineUnderPressure, TouchesNoBufferAfterItWasDestroyedInFlight) {
  const ByteCount each = 4_MiB;
  File file = bench_->scratch(depth * each);
  std::vector<IoRequest> reads;
  for (std::uint64_t i = 0; i < depth; ++i) {
    const HostSpan bytes = buffer(each);
    Pattern{.tensor = i}.fill(bytes);  // written first: blocks that never were are read without the drive
    reads.push_back({IoOperation::read, file.handle(), FileOffset(i * each.value()), bytes, i});
  }
  std::vector<IoRequest> writes = reads;
  for (IoRequest& write : writes) write.operation = IoOperation::write;
  ASSERT_EQ(engine().submit(writes), depth);
  bench_->reap_all(depth);
  const HostSpan again = buffer(each);
  ASSERT_EQ(engine().submit(reads), depth);
  std::array<IoCompletion, 1> first;
  ASSERT_EQ(bench_->reap(first), 1u);  // now others are under way, with threads too

  bench_->engine.reset();

  for (const IoRequest& read : reads) std::memset(read.buffer.data(), 0x5a, each.value());
  if (!bench_->disk) {
    // A completion of an earlier request would arrive before those of the following ones.
    for (const IoRequest& read : reads) {
      ASSERT_EQ(::pread(static_cast<int>(file.handle()), again.data(), each.value(),
                        static_cast<off_t>(read.offset.value())),
                static_cast<ssize_t>(each.value()));
    }
  }
  for (const IoRequest& read : reads) {
    EXPECT_TRUE(std::all_of(read.buffer.data(), read.buffer.data() + each.value(),
                            [](std::byte byte) { return byte == std::byte{0x5a}; }))
        << "request " << read.tag;
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, IoEngineUnderPressure, every_engine(), engine_name);

}  // namespace
}  // namespace penstock::tiers
