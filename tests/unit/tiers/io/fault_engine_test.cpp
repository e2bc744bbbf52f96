#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/tiers/io/sim_disk.hpp>

#include "kit/child_process.hpp"
#include "kit/pattern.hpp"
#include "unit/tiers/io/scripted_engine.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <array>
#include <cerrno>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace penstock::tiers {
namespace {

using test::Pattern;
using Effect = Fault::Effect;

/// A simulated disk behind faults, and memory for a few blocks.
class FaultEngineTest : public testing::Test {
 protected:
  void plan(FaultPlan faults) {
    auto sim = std::make_unique<SimEngine>(disk_, clock_, /*seed=*/1);
    sim_ = sim.get();
    engine_ = std::make_unique<FaultEngine>(std::move(sim), std::move(faults), clock_);
  }
  HostSpan block(std::size_t index) { return HostSpan(memory_.get() + index * 4096, 4_KiB); }
  HostSpan on_disk(std::uint64_t offset) {
    return disk_.bytes(file_.handle()).subspan(ByteCount(offset), 4_KiB);
  }

  bool submit(IoOperation operation, std::uint64_t offset, HostSpan buffer, std::uint64_t tag) {
    const IoRequest request{operation, file_.handle(), FileOffset(offset), buffer, tag};
    return engine_->submit({&request, 1}) == 1;
  }
  /// Advances time until nothing is due; the results of the completed requests by tag.
  std::map<std::uint64_t, std::int64_t> run() {
    std::map<std::uint64_t, std::int64_t> results;
    std::array<IoCompletion, 8> completions;
    while (true) {
      const std::size_t count = engine_->reap(completions, TimePoint::min());
      for (std::size_t i = 0; i < count; ++i) results[completions[i].tag] = completions[i].result;
      if (count > 0) continue;
      const TimePoint due = std::min(sim_->next_due(), engine_->next_due());
      if (due == forever) return results;
      clock_.advance_to(due);
    }
  }
  std::int64_t transfer(IoOperation operation, std::uint64_t offset, HostSpan buffer) {
    EXPECT_TRUE(submit(operation, offset, buffer, 7));
    return run().at(7);
  }

  SimDisk disk_{{}};
  SimClock clock_;
  File file_ = disk_.create_scratch("sim", 64_KiB, DirectIo::preferred).value();
  std::unique_ptr<std::byte, decltype(&std::free)> memory_{
      static_cast<std::byte*>(std::aligned_alloc(4096, 65536)), &std::free};
  std::unique_ptr<FaultEngine> engine_;

  SimEngine* sim_ = nullptr;
};

TEST_F(FaultEngineTest, InjectsFaultsIntoThePlannedRequestsOnly) {
  plan({Fault::fail(IoOperation::write, 1, ENOSPC), Fault::fail(IoOperation::read, 0, EIO, 2)});

  EXPECT_EQ(transfer(IoOperation::write, 0, block(0)), 4096);
  EXPECT_EQ(transfer(IoOperation::read, 0, block(1)), -EIO);
  EXPECT_EQ(transfer(IoOperation::write, 0, block(0)), -ENOSPC);
  EXPECT_EQ(transfer(IoOperation::read, 0, block(1)), -EIO);
  EXPECT_EQ(transfer(IoOperation::write, 0, block(0)), 4096);
  EXPECT_EQ(transfer(IoOperation::read, 0, block(1)), 4096);
  EXPECT_EQ(engine_->injected(), 3u);
  EXPECT_EQ(engine_->accepted(), 6u);
  EXPECT_EQ(engine_->accepted(IoOperation::write), 3u);
}

TEST_F(FaultEngineTest, ShortensATransferAndReportsTheLength) {
  plan({{.operation = IoOperation::write, .effect = Effect::shorten, .length = ByteCount(4096)},
        {.operation = IoOperation::read, .effect = Effect::shorten, .length = ByteCount(0)}});
  const HostSpan two(block(0).data(), 8_KiB);
  Pattern{.tensor = 1}.fill(two);

  EXPECT_EQ(transfer(IoOperation::write, 0, two), 4096);
  EXPECT_EQ(transfer(IoOperation::read, 0, block(2)), 0);
  EXPECT_FALSE(Pattern{.tensor = 1}.first_difference(on_disk(0)));
  EXPECT_EQ(on_disk(4096).data()[0], std::byte(0));
}

TEST_F(FaultEngineTest, TearsAWriteAndReportsItWhole) {
  plan({{.effect = Effect::tear, .length = ByteCount(4096)}});
  const HostSpan two(block(0).data(), 8_KiB);
  Pattern{.tensor = 1}.fill(two);

  EXPECT_EQ(transfer(IoOperation::write, 0, two), 8192);

  EXPECT_FALSE(Pattern{.tensor = 1}.first_difference(on_disk(0)));
  EXPECT_EQ(on_disk(4096).data()[0], std::byte(0));
}

TEST_F(FaultEngineTest, MisdirectsAWriteAndLosesAnother) {
  plan({{.effect = Effect::misdirect, .distance = 8192}, {.occurrence = 1, .effect = Effect::lose}});
  Pattern{.tensor = 1}.fill(block(0));

  EXPECT_EQ(transfer(IoOperation::write, 4096, block(0)), 4096);
  EXPECT_EQ(transfer(IoOperation::write, 20480, block(0)), 4096);

  EXPECT_FALSE(Pattern{.tensor = 1}.first_difference(on_disk(12288)));
  EXPECT_TRUE(Pattern{.tensor = 1}.first_difference(on_disk(4096)));
  EXPECT_TRUE(Pattern{.tensor = 1}.first_difference(on_disk(20480)));
}

TEST_F(FaultEngineTest, KillsTheProcessOnceTheRequestIsOnItsWay) {
  const auto write_three = [&] {
    plan({{.operation = IoOperation::write, .occurrence = 2, .effect = Effect::kill}});
    for (std::uint64_t tag = 0; tag < 2; ++tag) {
      if (!submit(IoOperation::write, 0, block(0), tag)) return 1;
    }
    (void)submit(IoOperation::write, 0, block(0), 2);
    return 0;
  };

  EXPECT_EQ(test::in_child(write_three), -SIGKILL);
}

TEST_F(FaultEngineTest, LeavesReadsUnchangedByEffectsOnWrites) {
  plan({{.count = 9, .effect = Effect::tear},
        {.count = 9, .effect = Effect::misdirect, .distance = 8192},
        {.count = 9, .effect = Effect::lose}});
  Pattern{.tensor = 1}.fill(on_disk(0));

  EXPECT_EQ(transfer(IoOperation::read, 0, block(0)), 4096);

  EXPECT_FALSE(Pattern{.tensor = 1}.first_difference(block(0)));
  EXPECT_EQ(engine_->injected(), 0u);
}

TEST_F(FaultEngineTest, FailsOrLosesAFlushAndCutsNone) {
  plan({Fault::fail(IoOperation::flush, 0, EIO),
        {.operation = IoOperation::flush, .occurrence = 1, .effect = Effect::lose},
        {.operation = IoOperation::flush, .occurrence = 2, .effect = Effect::shorten},
        {.operation = IoOperation::flush, .occurrence = 3, .effect = Effect::tear}});
  const std::size_t flushes_of_disk[] = {0, 0, 1, 2};

  for (const std::size_t reached : flushes_of_disk) {
    const bool first = engine_->accepted() == 0;
    EXPECT_EQ(transfer(IoOperation::flush, 0, {}), first ? -EIO : 0);
    EXPECT_EQ(disk_.flush_count(), reached);
  }
}

TEST_F(FaultEngineTest, ReportsTheLimitAsTheLengthOfAWriteBeyondIt) {
  plan({{.effect = Effect::lose}, {.occurrence = 1, .effect = Effect::tear}});
  const HostSpan too_long(memory_.get(), 3_GiB);  // nothing looks at its bytes

  EXPECT_EQ(transfer(IoOperation::write, 0, too_long), 1 << 30);
  EXPECT_EQ(transfer(IoOperation::write, 0, too_long), 1 << 30);
}

TEST_F(FaultEngineTest, FlipsOneBitOfARead) {
  plan({{.operation = IoOperation::read, .effect = Effect::flip_bit, .bit = 8 * 1000 + 3}});
  Pattern{.tensor = 1}.fill(block(0));
  ASSERT_EQ(transfer(IoOperation::write, 0, block(0)), 4096);

  EXPECT_EQ(transfer(IoOperation::read, 0, block(1)), 4096);

  EXPECT_EQ(Pattern{.tensor = 1}.first_difference(block(1)), 1000u);
  block(1).data()[1000] ^= std::byte(8);
  EXPECT_FALSE(Pattern{.tensor = 1}.first_difference(block(1)));
}

TEST_F(FaultEngineTest, DelaysOneCompletionAndLetsOthersPass) {
  const TimePoint late = std::chrono::seconds(5);
  plan({{.effect = Effect::delay, .delay = late}});
  ASSERT_TRUE(submit(IoOperation::read, 0, block(0), 1));
  ASSERT_TRUE(submit(IoOperation::read, 4096, block(1), 2));
  std::array<IoCompletion, 4> completions;
  std::vector<std::uint64_t> order;
  while (order.size() < 2) {
    const std::size_t count = engine_->reap(completions, TimePoint::min());
    for (std::size_t i = 0; i < count; ++i) order.push_back(completions[i].tag);
    if (count == 0) clock_.advance_to(std::min(sim_->next_due(), engine_->next_due()));
  }

  EXPECT_EQ(order, (std::vector<std::uint64_t>{2, 1}));
  EXPECT_GE(clock_.now(), late);
}

TEST_F(FaultEngineTest, CompletesAHangingRequestOnlyWhenItIsClosed) {
  plan({{.effect = Effect::hang}});
  ASSERT_TRUE(submit(IoOperation::read, 0, block(0), 1));
  EXPECT_TRUE(run().empty());
  EXPECT_EQ(engine_->in_flight(), 1u);

  EXPECT_TRUE(engine_->close(forever));

  EXPECT_EQ(run(), (std::map<std::uint64_t, std::int64_t>{{1, -ECANCELED}}));
  EXPECT_EQ(engine_->in_flight(), 0u);
}

TEST_F(FaultEngineTest, ReportsRequestsInFlightEachTimeItIsClosed) {
  plan({{.effect = Effect::hang}});
  ASSERT_TRUE(submit(IoOperation::read, 0, block(0), 1));

  EXPECT_FALSE(engine_->close(clock_.now()));
  EXPECT_FALSE(engine_->close(forever));
}

TEST_F(FaultEngineTest, AcceptsFurtherFaultsWhileItRuns) {
  plan({});
  EXPECT_EQ(transfer(IoOperation::read, 0, block(0)), 4096);

  engine_->add(Fault::fail({}, engine_->accepted(), EIO));

  EXPECT_EQ(transfer(IoOperation::read, 0, block(0)), -EIO);
  EXPECT_EQ(transfer(IoOperation::read, 0, block(0)), 4096);
}

TEST(FaultEngine, ReportsAFailureOfTheWrappedEngine) {
  auto wrapped = std::make_unique<ScriptedEngine>();
  ScriptedEngine& scripted = *wrapped;
  const FaultEngine engine(std::move(wrapped), {});
  EXPECT_EQ(engine.failure(), "");

  scripted.failed = "io_getevents failed";

  EXPECT_EQ(engine.failure(), "io_getevents failed");
}

}  // namespace
}  // namespace penstock::tiers
