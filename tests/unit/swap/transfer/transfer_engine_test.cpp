#include "swap/transfer/transfer_engine.hpp"

#include "kit/pattern.hpp"

#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/tiers/io/sim_disk.hpp>
#include "tiers/memory/host_arena.hpp"

#include <gtest/gtest.h>
#include <cerrno>
#include <string>
#include <vector>

namespace penstock::swap {
namespace {

using test::Pattern;

/// A hop that advances when the test lets it, and records the calls.
class ScriptedHop final : public Hop {
 public:
  struct Script {
    std::string name;
    std::vector<std::string>* log;
    Result<void> started;
    Result<HopState> state = HopState::pending;
    bool blocked = false;
    TimePoint poll_interval = forever;
  };
  explicit ScriptedHop(Script& script) : script_(script) {}
  ~ScriptedHop() override { script_.log->push_back(script_.name + " gone"); }

  Result<void> start() override {
    script_.log->push_back(script_.name + " started");
    return script_.started;
  }
  Result<HopState> poll() override { return script_.state; }
  TimePoint poll_interval() const override { return script_.poll_interval; }
  bool is_blocked() const override { return script_.blocked; }

 private:
  Script& script_;
};

class TransferEngineTest : public testing::Test {
 protected:
  std::vector<std::unique_ptr<Path>> simulated_path() {
    const auto make_engine =
        [this](const tiers::File::Properties&) -> Result<std::unique_ptr<tiers::IoEngine>> {
      auto sim = std::make_unique<tiers::SimEngine>(disk_, clock_, 1);
      sim_ = sim.get();
      auto faulty = std::make_unique<tiers::FaultEngine>(std::move(sim), tiers::FaultPlan{}, clock_);
      faults_ = faulty.get();
      return faulty;
    };
    std::vector<std::unique_ptr<Path>> paths;
    paths.push_back(Path::create({.directory = "sim",
                                  .capacity = 1_MiB,
                                  .request_max = 16_KiB,
                                  .file_system = &disk_,
                                  .make_engine = make_engine})
                        .value());
    return paths;
  }

  Move move_of(std::initializer_list<ScriptedHop::Script*> scripts) {
    Move move;
    for (auto* script : scripts) move.then(std::make_unique<ScriptedHop>(*script));
    move.on_event = [this](HopState state, const Result<void>& result) {
      log_.push_back(std::string(state == HopState::ordered ? "reported ordered" : "reported done") +
                     (result ? "" : ", failed"));
    };
    return move;
  }
  void begin(Move move) {
    transfers_.announce();
    transfers_.start(std::move(move));
  }
  /// One poll, after which the events are reported as by the runtime.
  bool poll() {
    std::vector<MoveEvent> events;
    const bool moved = transfers_.poll(events);
    for (const MoveEvent& event : events) {
      if (event.state == HopState::done) transfers_.end();
      event.on_event(event.state, event.result);
    }
    return moved;
  }

  tiers::SimDisk disk_{{}};
  tiers::SimClock clock_;
  tiers::SimEngine* sim_ = nullptr;
  tiers::FaultEngine* faults_ = nullptr;
  std::vector<std::unique_ptr<Path>> paths_ = simulated_path();
  std::vector<std::string> log_;
  TransferEngine transfers_{paths_};
};

TEST_F(TransferEngineTest, EndsAMoveWithoutHopsAtOnce) {
  begin(move_of({}));
  EXPECT_EQ(transfers_.poll_interval(), forever);

  EXPECT_TRUE(poll());

  EXPECT_EQ(log_, std::vector<std::string>{"reported done"});
  EXPECT_EQ(transfers_.active(), 0u);
}

TEST_F(TransferEngineTest, RunsHopsOneAfterTheOtherAndReportsDoneOnce) {
  ScriptedHop::Script first{.name = "first", .log = &log_}, second{.name = "second", .log = &log_};
  begin(move_of({&first, &second}));

  poll();
  EXPECT_EQ(log_, std::vector<std::string>{"first started"});
  EXPECT_FALSE(poll());
  first.state = HopState::done;
  EXPECT_TRUE(poll());
  EXPECT_EQ(log_.back(), "second started");
  EXPECT_EQ(transfers_.active(), 1u);
  second.state = HopState::done;
  poll();

  EXPECT_EQ(log_, (std::vector<std::string>{"first started", "second started", "first gone", "second gone",
                                            "reported done"}));
  EXPECT_EQ(transfers_.active(), 0u);
  EXPECT_FALSE(poll());
}

TEST_F(TransferEngineTest, ReportsOrderedOnlyOfTheLastHop) {
  ScriptedHop::Script first{.name = "first", .log = &log_}, second{.name = "second", .log = &log_};
  first.state = HopState::ordered;
  begin(move_of({&first, &second}));
  poll();
  EXPECT_EQ(log_, std::vector<std::string>{"first started"});  // not the end of the move
  first.state = HopState::done;
  second.state = HopState::ordered;
  poll();
  EXPECT_EQ(log_.back(), "reported ordered");
  EXPECT_FALSE(poll());  // once
  second.state = HopState::done;
  poll();

  EXPECT_EQ(log_.back(), "reported done");
}

TEST_F(TransferEngineTest, EndsAMoveWithTheFirstErrorAndStartsNothingAfterIt) {
  ScriptedHop::Script refused{.name = "refused", .log = &log_, .started = Error(ErrorCode::io, "Hop")};
  ScriptedHop::Script failing{.name = "failing", .log = &log_, .state = Error(ErrorCode::io, "Hop")};
  ScriptedHop::Script never{.name = "never", .log = &log_};
  begin(move_of({&refused, &never}));
  begin(move_of({&failing, &never}));

  poll();

  EXPECT_EQ(std::count(log_.begin(), log_.end(), "reported done, failed"), 2);
  EXPECT_EQ(std::count(log_.begin(), log_.end(), "never started"), 0);
  EXPECT_EQ(transfers_.active(), 0u);
}

TEST_F(TransferEngineTest, ReportsBlockedMovesAndTheShortestIntervalOfItsHops) {
  ScriptedHop::Script waits{.name = "waits", .log = &log_, .blocked = true};
  ScriptedHop::Script works{.name = "works", .log = &log_};
  begin(move_of({&waits}));
  begin(move_of({&works}));
  poll();
  EXPECT_EQ(transfers_.active(), 2u);
  EXPECT_EQ(transfers_.blocked(), 1u);
  EXPECT_EQ(transfers_.poll_interval(), forever);
  works.poll_interval = TimePoint(300);
  EXPECT_EQ(transfers_.poll_interval(), TimePoint(300));
  waits.poll_interval = TimePoint(200);
  EXPECT_EQ(transfers_.poll_interval(), TimePoint(200));
  waits.state = works.state = HopState::done;
  poll();

  EXPECT_EQ(transfers_.blocked(), 0u);
}

TEST_F(TransferEngineTest, WritesAndReadsExtentsAndGivesEachOutcomeToItsHop) {
  auto arena = tiers::HostArena::create({.size = 1_MiB}).value();
  const tiers::Extent one{.path = 0, .offset = FileOffset(0), .length = 64_KiB},
      two{.path = 0, .offset = FileOffset(65536), .length = 32_KiB};
  const HostSpan a = arena.bytes().subspan(0_KiB, 64_KiB), b = arena.bytes().subspan(64_KiB, 32_KiB),
                 c = arena.bytes().subspan(128_KiB, 64_KiB);
  Pattern{.tensor = 1}.fill(a);
  Pattern{.tensor = 2}.fill(b);
  std::vector<Result<void>> ended;
  const auto transfer = [&](tiers::IoOperation operation, const tiers::Extent& extent, HostSpan span) {
    Move move;
    move.then(transfers_.disk_hop(operation, extent, span));
    move.on_event = [&](HopState, const Result<void>& result) { ended.push_back(result); };
    begin(std::move(move));
  };
  const auto drive = [&] {
    while (transfers_.active() > 0) {
      paths_[0]->drive();
      const TimePoint due = std::min(sim_->next_due(), faults_->next_due());
      if (!poll() && due != forever) clock_.advance_to(due);
    }
  };

  transfer(tiers::IoOperation::write, one, a);
  transfer(tiers::IoOperation::write, two, b);
  drive();
  faults_->add(
      tiers::Fault::fail({}, faults_->accepted(), ENODEV));  // the first request of the next transfer
  transfer(tiers::IoOperation::read, two, b);
  drive();
  transfer(tiers::IoOperation::read, one, c);
  drive();

  ASSERT_EQ(ended.size(), 4u);
  EXPECT_TRUE(ended[0] && ended[1] && ended[3]);
  EXPECT_EQ(ended[2].error().code(), ErrorCode::io);
  EXPECT_FALSE(Pattern{.tensor = 1}.first_difference(c));
}

TEST_F(TransferEngineTest, FlushesAPathAfterTheWritesThatWereStartedBefore) {
  auto arena = tiers::HostArena::create({.size = 1_MiB}).value();
  const tiers::Extent extent{.path = 0, .offset = FileOffset(0), .length = 64_KiB};
  const auto add = [&](const char* name, tiers::IoOperation operation, HostSpan buffer) {
    Move move;
    move.then(transfers_.disk_hop(operation, extent, buffer));
    move.on_event = [this, name](HopState, const Result<void>& result) {
      log_.push_back(result ? name : result.error().operation());
    };
    begin(std::move(move));
  };
  faults_->add(tiers::Fault::fail(tiers::IoOperation::flush, 1, EIO));

  add("write", tiers::IoOperation::write, arena.bytes().subspan(0_KiB, 64_KiB));
  add("flush", tiers::IoOperation::flush, {});
  add("second flush", tiers::IoOperation::flush, {});
  while (transfers_.active() > 0) {
    paths_[0]->drive();
    const TimePoint due = std::min(sim_->next_due(), faults_->next_due());
    if (!poll() && due != forever) clock_.advance_to(due);
  }

  EXPECT_EQ(log_, (std::vector<std::string>{"write", "flush", "BlockFile::flush"}));
  EXPECT_EQ(disk_.flush_count(), 1u);
}

/// Runs posted tasks when the test calls it.
class LaterExecutor final : public Executor {
 public:
  void post(std::function<void()> task) override { tasks.push_back(std::move(task)); }
  std::vector<std::function<void()>> tasks;
};

TEST_F(TransferEngineTest, RunsWorkOnTheExecutorAndWakesTheMoverWithItsResult) {
  LaterExecutor executor;
  int woken = 0;
  std::vector<Result<void>> ended;
  Move move;
  const std::function<void()> wake = [&] { ++woken; };
  move.then(
      make_work_hop(executor, wake, []() -> Result<void> { return Error(ErrorCode::corrupted, "Work"); }));
  move.on_event = [&](HopState, const Result<void>& result) { ended.push_back(result); };
  begin(std::move(move));
  poll();
  EXPECT_TRUE(ended.empty());
  ASSERT_EQ(executor.tasks.size(), 1u);

  executor.tasks[0]();
  poll();

  EXPECT_EQ(woken, 1);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].error().code(), ErrorCode::corrupted);
}

}  // namespace
}  // namespace penstock::swap
