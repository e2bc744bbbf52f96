#include <penstock/swap/runtime.hpp>

#include "kit/pattern.hpp"
#include "kit/scratch_directory.hpp"
#include "kit/seeded_random.hpp"

#include <penstock/tiers/fault_engine.hpp>
#include <penstock/tiers/sim_disk.hpp>
#include <penstock/tiers/thread_pool_engine.hpp>
#include <penstock/tiers/uring_engine.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <numeric>
#include <span>
#include <vector>

namespace penstock::swap {
namespace {

using test::Pattern;
using tiers::Purpose;
using tiers::TensorId;

/// A runtime over a simulated disk, driven by the test's own thread.
class Simulation final : public Driving {
 public:
  Simulation(std::uint64_t seed, ByteCount host_budget, Eviction eviction = Eviction::planned)
      : random_(seed) {
    auto engine = std::make_unique<tiers::SimEngine>(disk, clock_, seed);
    engine_ = engine.get();
    auto faulty = std::make_unique<tiers::FaultEngine>(std::move(engine), tiers::FaultPlan{}, clock_);
    faults_ = faulty.get();
    std::vector<std::unique_ptr<Path>> paths;
    paths.push_back(
        Path::create({.directory = "sim", .capacity = 8_MiB, .request_max = 16_KiB}, disk, std::move(faulty))
            .value());
    runtime = Runtime::create(
                  {.host_budget = host_budget, .eviction = eviction, .lookahead = 64_KiB, .driving = this},
                  std::move(paths))
                  .value();
  }
  void idle() override {
    const TimePoint due = next_due();
    ASSERT_NE(due, forever) << "nothing is in flight and somebody waits";
    clock_.advance_to(due);
  }

  /// Until nothing more happens by itself.
  void run() {
    while (runtime->poll() || next_due() != forever) {
      if (next_due() != forever) clock_.advance_to(next_due());
    }
  }
  /// The disk's next `count` requests fail.
  void fail_requests(std::uint64_t count) {
    faults_->add(tiers::Fault::fail({}, faults_->accepted(), EIO, count));
  }

  tiers::SimDisk disk{{}};

 private:
  TimePoint next_due() const { return std::min(engine_->next_due(), faults_->next_due()); }

  test::SeededRandom random_;
  tiers::SimClock clock_;
  tiers::SimEngine* engine_ = nullptr;
  tiers::FaultEngine* faults_ = nullptr;

 public:
  std::unique_ptr<Runtime> runtime;  // goes first: it drives until nothing is in flight
};

TensorId add(Runtime& runtime, ByteCount size, bool on_disk = true, bool write_behind = true) {
  return runtime
      .add({.name = "tensor",
            .purpose = Purpose::parameter_shard,
            .size = size,
            .block = 8_KiB,
            .write_behind = write_behind},
           on_disk)
      .value();
}

void write(Runtime& runtime, TensorId tensor, std::uint64_t generation) {
  Lease lease = runtime.acquire(tensor, Access::overwrite).value();
  Pattern{.tensor = static_cast<std::uint64_t>(tensor), .generation = generation}.fill(lease.bytes());
}

bool holds(Runtime& runtime, TensorId tensor, std::uint64_t generation) {
  Lease lease = runtime.acquire(tensor, Access::read).value();
  return !Pattern{.tensor = static_cast<std::uint64_t>(tensor), .generation = generation}.first_difference(
      lease.bytes());
}

TEST(Runtime, KeepsEveryTensorsBytesThroughAnyOrderOfUses) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const bool lru = seed % 2 == 0;
    Simulation simulation(seed, 192_KiB, lru ? Eviction::lru : Eviction::planned);
    Runtime& runtime = *simulation.runtime;
    test::SeededRandom random(seed);
    std::vector<TensorId> tensors;
    std::vector<std::uint64_t> generations(12, 0);
    for (std::size_t i = 0; i < generations.size(); ++i) {
      tensors.push_back(add(runtime, ByteCount(1 + random.below(60'000)), true, random.below(2) == 0));
    }
    for (int i = 0; i < 150; ++i) {
      const std::size_t which = random.below(tensors.size());
      runtime.use(tensors[which]);
      if (random.below(8) == 0) runtime.end_round();
      if (random.below(4) == 0) runtime.prefetch(tensors[random.below(tensors.size())]);
      if (generations[which] == 0 || random.below(3) == 0) {
        write(runtime, tensors[which], ++generations[which]);
      } else {
        ASSERT_TRUE(holds(runtime, tensors[which], generations[which])) << "seed " << seed << " use " << i;
      }
    }
    ASSERT_TRUE(runtime.drain());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(generations[i] == 0 || holds(runtime, tensors[i], generations[i])) << "seed " << seed;
    }
    EXPECT_LE(runtime.ledger().peak(tiers::Tier::host), 192_KiB);
  }
}

TEST(Runtime, NamesTheHoldersWhenNothingCouldEverFreeTheRoom) {
  Simulation simulation(1, 64_KiB);
  Runtime& runtime = *simulation.runtime;
  const TensorId first = add(runtime, 40_KiB), second = add(runtime, 40_KiB);
  Lease held = runtime.acquire(first, Access::overwrite).value();

  auto refused = runtime.acquire(second, Access::overwrite);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::budget_too_small);
  EXPECT_NE(refused.error().message().find("leased  tensor 40.0 KiB"), std::string::npos)
      << refused.error().message();
  held.end();
  EXPECT_TRUE(runtime.acquire(second, Access::overwrite));
}

TEST(Runtime, RefusesToReadWhatWasNeverWritten) {
  Simulation simulation(1, 64_KiB);
  const TensorId tensor = add(*simulation.runtime, 4_KiB);

  EXPECT_EQ(simulation.runtime->acquire(tensor, Access::read).error().code(), ErrorCode::invalid_argument);
}

TEST(Runtime, NestsReadLeasesAndKeepsAModifyOut) {
  Simulation simulation(1, 64_KiB);
  Runtime& runtime = *simulation.runtime;
  const TensorId tensor = add(runtime, 4_KiB, /*on_disk=*/false);
  write(runtime, tensor, 1);
  auto first = runtime.acquire(tensor, Access::read).value();
  auto second = runtime.acquire(tensor, Access::read).value();

  const Ticket modify = runtime.request(tensor, Access::modify);
  runtime.poll();
  EXPECT_FALSE(runtime.take(modify, tensor, Access::modify));
  first.end();
  second.end();
  runtime.poll();

  EXPECT_TRUE(runtime.take(modify, tensor, Access::modify).value());
}

TEST(Runtime, NeverAcceptsBytesThatChangedOnDisk) {
  Simulation simulation(1, 96_KiB);
  Runtime& runtime = *simulation.runtime;
  const TensorId victim = add(runtime, 40_KiB), other = add(runtime, 60_KiB);
  write(runtime, victim, 1);
  ASSERT_TRUE(runtime.drain());
  write(runtime, other, 1);  // evicts the victim
  ASSERT_TRUE(runtime.drain());
  const auto& extent = *runtime.store().description(victim).extent;
  simulation.disk.bytes(tiers::FileHandle{1000}).data()[extent.offset.value() + 20'000] ^= std::byte{4};

  auto read = runtime.acquire(victim, Access::read);

  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::corrupted);
  EXPECT_NE(read.error().message().find("tensor, block 2"), std::string::npos) << read.error().message();
  EXPECT_TRUE(holds(runtime, other, 1));
}

TEST(Runtime, TellsOfAStoreThatFailedOnceAndStoresAgain) {
  Simulation simulation(1, 96_KiB);
  Runtime& runtime = *simulation.runtime;
  const TensorId tensor = add(runtime, 40_KiB), other = add(runtime, 80_KiB);
  simulation.fail_requests(1);
  write(runtime, tensor, 1);

  auto failed = runtime.drain();
  auto drained = runtime.drain();

  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::io);
  EXPECT_NE(failed.error().message().find("tensor stays in memory, not yet stored"), std::string::npos)
      << failed.error().message();
  EXPECT_TRUE(drained);
  write(runtime, other, 1);  // evicts it
  EXPECT_TRUE(holds(runtime, tensor, 1));
}

TEST(Runtime, LetsRequestsWaitForTheRoomOfAFailedStoreUntilSomebodyHasHeard) {
  Simulation simulation(1, 64_KiB);
  Runtime& runtime = *simulation.runtime;
  const TensorId dirty = add(runtime, 40_KiB, true, /*write_behind=*/false), next = add(runtime, 40_KiB);
  write(runtime, dirty, 1);
  simulation.fail_requests(3);

  const Ticket ticket = runtime.request(next, Access::overwrite);  // needs the room of what must be stored
  simulation.run();

  EXPECT_FALSE(runtime.take(ticket, next, Access::overwrite));  // neither refused nor tried for ever
  EXPECT_EQ(runtime.check_stores().error().code(), ErrorCode::io);
  simulation.run();
  EXPECT_TRUE(runtime.check_stores());
  EXPECT_TRUE(runtime.take(ticket, next, Access::overwrite).value());
  EXPECT_TRUE(holds(runtime, dirty, 1));
}

TEST(Runtime, AcquiresNothingWhileAFailedStoreIsUnheardOf) {
  Simulation simulation(1, 64_KiB);
  Runtime& runtime = *simulation.runtime;
  const TensorId tensor = add(runtime, 4_KiB);
  simulation.fail_requests(1);
  write(runtime, tensor, 1);
  simulation.run();

  EXPECT_EQ(runtime.acquire(tensor, Access::read).error().code(), ErrorCode::io);
  EXPECT_TRUE(holds(runtime, tensor, 1));
}

TEST(Runtime, GivesBackWhatATensorHeldWhenItIsRemoved) {
  Simulation simulation(1, 96_KiB);
  Runtime& runtime = *simulation.runtime;
  const TensorId stays = add(runtime, 8_KiB, /*on_disk=*/false);
  write(runtime, stays, 1);
  for (std::uint64_t generation = 1; generation <= 300; ++generation) {  // 300 × 60 KiB in 8 MiB
    const TensorId tensor = add(runtime, 60_KiB), in_memory = add(runtime, 20_KiB, /*on_disk=*/false);
    write(runtime, tensor, generation);
    write(runtime, in_memory, generation);
    if (generation % 2 == 0) {
      EXPECT_TRUE(runtime.drain());
    }
    runtime.use(tensor);
    runtime.remove(in_memory);
    runtime.remove(tensor);
  }

  EXPECT_TRUE(holds(runtime, stays, 1));
  EXPECT_EQ(runtime.store().tensor_count(), 1u);
  EXPECT_EQ(runtime.ledger().line(tiers::Tier::nvme, Purpose::parameter_shard).held, 0_B);
  EXPECT_EQ(runtime.host_budget().free(), 88_KiB);
}

TEST(Runtime, RemovesTensorsWhileTheyAreBeingStoredAndPrefetched) {
  test::ScratchDirectory directory;
  auto runtime = Runtime::create({.host_budget = 1_MiB,
                                  .paths = {{.directory = directory.path(), .capacity = 16_MiB}},
                                  .lookahead = 1_MiB})
                     .value();
  for (int round = 0; round < 40; ++round) {
    std::vector<TensorId> tensors;
    for (int i = 0; i < 24; ++i) tensors.push_back(add(*runtime, 100_KiB));
    for (const TensorId tensor : tensors) {
      runtime->use(tensor);
      write(*runtime, tensor, 1);
    }
    runtime->end_round();
    // The whole round is looked ahead to, the last stores are under way, and each removal makes room.
    for (const TensorId tensor : tensors) runtime->use(tensor);
    for (const TensorId tensor : tensors) runtime->prefetch(tensor);
    for (const TensorId tensor : tensors) runtime->remove(tensor);
    ASSERT_EQ(runtime->store().tensor_count(), 0u);
  }
  EXPECT_TRUE(runtime->drain());
  EXPECT_EQ(runtime->host_budget().free(), 1_MiB);
}

TEST(Runtime, IsNotConcernedWithTheFailedStoreOfWhatWasRemoved) {
  Simulation simulation(1, 64_KiB);
  Runtime& runtime = *simulation.runtime;
  const TensorId removed = add(runtime, 4_KiB), stays = add(runtime, 4_KiB);
  simulation.fail_requests(2);
  write(runtime, removed, 1);
  write(runtime, stays, 1);
  simulation.run();

  runtime.remove(removed);

  simulation.run();
  EXPECT_TRUE(runtime.drain());  // what failed with it was stored again
  EXPECT_TRUE(holds(runtime, stays, 1));
}

TEST(Runtime, StoresWhatFailedBesideWhatWasRemovedWithThreadsOfItsOwn) {
  test::ScratchDirectory directory;
  auto faulty = std::make_unique<tiers::FaultEngine>(
      tiers::create_thread_pool_engine({}).value(),
      tiers::FaultPlan{tiers::Fault::fail(tiers::IoOperation::write, 0, EIO, 2)});
  std::vector<std::unique_ptr<Path>> paths;
  paths.push_back(Path::create({.directory = directory.path(), .capacity = 1_MiB}, tiers::real_file_system(),
                               std::move(faulty))
                      .value());
  auto runtime = Runtime::create({.host_budget = 1_MiB}, std::move(paths)).value();
  const TensorId removed = add(*runtime, 4_KiB), stays = add(*runtime, 4_KiB);
  {
    // Both before either has failed: an acquire would be told of it.
    Lease first = runtime->acquire(removed, Access::overwrite).value();
    Lease second = runtime->acquire(stays, Access::overwrite).value();
    for (const auto& [tensor, lease] : {std::pair(removed, &first), std::pair(stays, &second)}) {
      Pattern{.tensor = static_cast<std::uint64_t>(tensor), .generation = 1}.fill(lease->bytes());
    }
  }
  runtime->wait_for_stores(0);  // both have failed

  runtime->remove(removed);

  (void)runtime->drain();  // it may have failed after the removal, and is then told once
  EXPECT_TRUE(runtime->drain());
  EXPECT_TRUE(holds(*runtime, stays, 1));
}

TEST(Runtime, ChangesNothingInAnAcquireThatIsToldOfAFailedStore) {
  Simulation simulation(1, 64_KiB);
  Runtime& runtime = *simulation.runtime;
  const TensorId tensor = add(runtime, 40_KiB), dirty = add(runtime, 40_KiB, true, /*write_behind=*/false);
  write(runtime, tensor, 1);
  ASSERT_TRUE(runtime.drain());
  write(runtime, dirty, 2);  // evicts it
  simulation.fail_requests(3);

  auto failed = runtime.acquire(tensor, Access::overwrite);  // needs the room of what cannot be stored

  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::io);
  simulation.run();
  EXPECT_TRUE(holds(runtime, tensor, 1));
  EXPECT_TRUE(holds(runtime, dirty, 2));
}

TEST(Runtime, KeepsTheContentsWhenAGrantedLeaseIsCancelled) {
  Simulation simulation(1, 64_KiB);
  Runtime& runtime = *simulation.runtime;
  const TensorId stored = add(runtime, 40_KiB), never_written = add(runtime, 4_KiB);
  write(runtime, stored, 1);
  ASSERT_TRUE(runtime.drain());
  for (const Access access : {Access::overwrite, Access::modify, Access::read}) {
    const Ticket ticket = runtime.request(stored, access);
    simulation.run();
    runtime.cancel(ticket, stored, access);
    EXPECT_TRUE(holds(runtime, stored, 1));
  }
  const Ticket ticket = runtime.request(never_written, Access::overwrite);
  simulation.run();
  runtime.cancel(ticket, never_written, Access::overwrite);

  EXPECT_EQ(runtime.acquire(never_written, Access::read).error().code(), ErrorCode::invalid_argument);
}

TEST(Runtime, StaysWholeWhenATensorThatIsToStayFindsNoRoom) {
  Simulation simulation(1, 64_KiB);
  Runtime& runtime = *simulation.runtime;
  const TensorId dirty = add(runtime, 40_KiB, true, /*write_behind=*/false);
  write(runtime, dirty, 1);

  EXPECT_EQ(runtime.add({.name = "stays", .size = 40_KiB}, false).error().code(), ErrorCode::budget_too_small);

  EXPECT_FALSE(runtime.poll());  // nothing was started that nobody waits for
  EXPECT_TRUE(runtime.drain());
  EXPECT_TRUE(holds(runtime, dirty, 1));
  EXPECT_EQ(runtime.store().tensor_count(), 1u);
}

TEST(Runtime, KeepsTheRangeOfWhatStaysInMemoryFromTheStart) {
  Simulation simulation(1, 64_KiB);
  Runtime& runtime = *simulation.runtime;
  const TensorId stays = add(runtime, 40_KiB, /*on_disk=*/false), streams = add(runtime, 24_KiB);
  EXPECT_EQ(runtime.add({.name = "too much", .size = 28_KiB}, false).error().code(),
            ErrorCode::budget_too_small);
  for (std::uint64_t generation = 1; generation <= 3; ++generation) {
    write(runtime, streams, generation);
    write(runtime, stays, generation);  // would find no room had it given it up
    runtime.discard(stays);
    EXPECT_TRUE(runtime.drain());
  }

  EXPECT_EQ(runtime.host_budget().free(), 0_KiB);
  EXPECT_EQ(runtime.acquire(stays, Access::read).error().code(), ErrorCode::invalid_argument);
}

TEST(Runtime, LosesNothingWithThreadsOfItsOwnOnARealDisk) {
  for (const auto engine :
       {tiers::EngineChoice::automatic, tiers::EngineChoice::libaio, tiers::EngineChoice::threads}) {
    test::ScratchDirectory directory;
    auto runtime =
        Runtime::create({.host_budget = 4_MiB,
                         .paths = {{.directory = directory.path(), .capacity = 16_MiB, .engine = engine}},
                         .lookahead = 1_MiB})
            .value();
    std::vector<TensorId> tensors;
    for (int i = 0; i < 12; ++i) tensors.push_back(add(*runtime, 1_MiB - 100_B));
    for (std::uint64_t generation = 1; generation <= 2; ++generation) {
      for (const TensorId tensor : tensors) {
        runtime->use(tensor);
        write(*runtime, tensor, generation);
      }
      for (const TensorId tensor : tensors) {
        runtime->use(tensor);
        EXPECT_TRUE(holds(*runtime, tensor, generation));
      }
      runtime->end_round();
    }
    EXPECT_TRUE(runtime->drain());
    EXPECT_EQ(directory.entry_count(), 0u);
  }
}

TEST(Runtime, ComesBackFromARequestThatHangsAndFromItsOwnEnd) {
  for (const auto make : {+[] { return tiers::create_uring_engine({}); },
                          +[] { return tiers::create_thread_pool_engine({}); }}) {
    auto within = make();
    if (!within) continue;  // no io_uring here
    test::ScratchDirectory directory;
    auto faulty = std::make_unique<tiers::FaultEngine>(
        std::move(*within),
        tiers::FaultPlan{{.operation = tiers::IoOperation::read, .effect = tiers::Fault::Effect::hang}});
    std::vector<std::unique_ptr<Path>> paths;
    paths.push_back(Path::create({.directory = directory.path(),
                                  .capacity = 4_MiB,
                                  .deadline = std::chrono::milliseconds(20)},
                                 tiers::real_file_system(), std::move(faulty))
                        .value());
    auto runtime = Runtime::create({.host_budget = 1_MiB}, std::move(paths)).value();
    const TensorId tensor = add(*runtime, 700_KiB), other = add(*runtime, 800_KiB);
    write(*runtime, tensor, 1);
    ASSERT_TRUE(runtime->drain());
    write(*runtime, other, 1);  // evicts it
    ASSERT_TRUE(runtime->drain());

    auto hangs = runtime->acquire(tensor, Access::read);
    auto refused = runtime->acquire(tensor, Access::read);

    ASSERT_FALSE(hangs);
    EXPECT_EQ(hangs.error().code(), ErrorCode::deadline_exceeded);
    EXPECT_NE(hangs.error().message().find("are kept from use"), std::string::npos) << hangs.error().message();
    EXPECT_FALSE(refused);  // the range that the kernel may write to is not handed out again
    EXPECT_LE(runtime->host_budget().free(), 1_MiB - 700_KiB);
  }
}

/// Several simulated disks of different speed, driven by the test's own thread.
class Disks final : public Driving {
 public:
  Disks(std::span<const double> bandwidths, ByteCount host_budget) {
    std::vector<std::unique_ptr<Path>> paths;
    for (const double bandwidth : bandwidths) {
      disks_.push_back(std::make_unique<tiers::SimDisk>(
          tiers::SimDisk::Options{.bytes_per_second = static_cast<std::uint64_t>(bandwidth * 1e9)}));
      auto engine = std::make_unique<tiers::SimEngine>(*disks_.back(), clock, /*seed=*/disks_.size());
      engines_.push_back(engine.get());
      paths.push_back(Path::create({.directory = "sim", .capacity = 64_MiB, .weight = bandwidth}, *disks_.back(),
                                   std::move(engine))
                          .value());
    }
    runtime = Runtime::create({.host_budget = host_budget, .driving = this}, std::move(paths)).value();
  }
  void idle() override {
    TimePoint due = forever;
    for (const tiers::SimEngine* engine : engines_) due = std::min(due, engine->next_due());
    ASSERT_NE(due, forever) << "nothing is in flight and somebody waits";
    clock.advance_to(due);
  }

  tiers::SimClock clock;

 private:
  std::vector<std::unique_ptr<tiers::SimDisk>> disks_;
  std::vector<tiers::SimEngine*> engines_;

 public:
  std::unique_ptr<Runtime> runtime;
};

TEST(Runtime, MovesAtTheSumOfItsPathsSpeedsWhenTheirWeightsAreTheirSpeeds) {
  for (const std::vector<double>& bandwidths :
       {std::vector<double>{2, 1}, std::vector<double>{1, 1, 4}, std::vector<double>{1}}) {
    Disks disks(bandwidths, 50_MiB);
    Runtime& runtime = *disks.runtime;
    std::vector<TensorId> tensors;
    for (int i = 0; i < 48; ++i) tensors.push_back(add(runtime, 1_MiB));
    const double sum = std::accumulate(bandwidths.begin(), bandwidths.end(), 0.0);

    const TimePoint began = disks.clock.now();
    for (const TensorId tensor : tensors) write(runtime, tensor, 1);
    ASSERT_TRUE(runtime.drain());

    const std::chrono::duration<double> took = disks.clock.now() - began;
    EXPECT_GE(48.0 * 1048576 / took.count() / 1e9, 0.95 * sum) << bandwidths.size() << " paths";
  }
}

TEST(Runtime, DealsExtentsWhereThereIsRoom) {
  test::ScratchDirectory one, two;
  auto runtime = Runtime::create({.host_budget = 2_MiB,
                                  .paths = {{.directory = one.path(), .capacity = 1_MiB},
                                            {.directory = two.path(), .capacity = 3_MiB}}})
                     .value();
  std::array<int, 2> dealt{};
  for (int i = 0; i < 4; ++i) {
    const TensorId tensor = add(*runtime, 1_MiB);
    ++dealt[runtime->store().description(tensor).extent->path];
    write(*runtime, tensor, 1);
    EXPECT_TRUE(holds(*runtime, tensor, 1));
  }

  EXPECT_EQ(dealt[0], 1);
  EXPECT_EQ(dealt[1], 3);
  EXPECT_EQ(runtime->add({.name = "one more", .size = 1_MiB}, true).error().code(), ErrorCode::no_space);
}

}  // namespace
}  // namespace penstock::swap
