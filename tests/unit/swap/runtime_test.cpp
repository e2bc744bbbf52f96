#include "unit/swap/create_patiently.hpp"
#include "unit/swap/runtime_fixture.hpp"

#include "kit/pattern.hpp"
#include "kit/scratch_directory.hpp"
#include "kit/seeded_random.hpp"

#include "tiers/io/thread_pool_engine.hpp"
#include "tiers/io/uring_engine.hpp"

#include <gtest/gtest.h>
#include <chrono>
#include <thread>
#include <vector>

namespace penstock::swap {
namespace {

using test::add;
using test::holds;
using test::Simulation;
using test::write;
using tiers::Purpose;
using tiers::TensorId;

TEST(Runtime, KeepsEveryTensorsBytesThroughAnyOrderOfUses) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const bool lru = seed % 2 == 0;
    Simulation simulation(
        {.seed = seed, .host_budget = 192_KiB, .eviction = lru ? Eviction::lru : Eviction::planned});
    Runtime& runtime = *simulation.runtime;
    penstock::test::SeededRandom random(seed);
    std::vector<TensorId> tensors;
    std::vector<std::uint64_t> generations(12, 0);
    for (std::size_t i = 0; i < generations.size(); ++i) {
      tensors.push_back(add(runtime, ByteCount(1 + random.below(60'000)), true, random.below(2) == 0));
    }
    for (int i = 0; i < 150; ++i) {
      const std::size_t which = random.below(tensors.size());
      if (random.below(8) == 0) runtime.end_round();
      if (random.below(4) == 0) runtime.prefetch(tensors[random.below(tensors.size())]).value();
      if (generations[which] == 0 || random.below(3) == 0) {
        write(runtime, tensors[which], ++generations[which], Use::recorded);
      } else {
        ASSERT_TRUE(holds(runtime, tensors[which], generations[which], Use::recorded))
            << "seed " << seed << " use " << i;
      }
    }
    ASSERT_TRUE(runtime.flush());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(generations[i] == 0 || holds(runtime, tensors[i], generations[i])) << "seed " << seed;
    }
    EXPECT_LE(runtime.ledger().peak(tiers::Tier::host), 192_KiB);
  }
}

TEST(Runtime, NeverAcceptsBytesThatChangedOnDisk) {
  Simulation simulation({.host_budget = 96_KiB});
  Runtime& runtime = *simulation.runtime;
  const TensorId victim = add(runtime, 40_KiB), other = add(runtime, 60_KiB);
  write(runtime, victim, 1);
  ASSERT_TRUE(runtime.flush());
  write(runtime, other, 1);  // evicts the victim
  ASSERT_TRUE(runtime.flush());
  const tiers::Extent extent = *runtime.describe(victim).extent;
  simulation.file().data()[extent.offset.value() + 20'000] ^= std::byte{4};

  auto read = runtime.acquire(victim, Access::read);

  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::corrupted);
  EXPECT_NE(read.error().message().find("tensor, block 2"), std::string::npos) << read.error().message();
  EXPECT_TRUE(holds(runtime, other, 1));
}

TEST(Runtime, FreesMemoryAndExtentOfARemovedTensor) {
  Simulation simulation({.host_budget = 96_KiB});
  Runtime& runtime = *simulation.runtime;
  const TensorId stays = add(runtime, 8_KiB, /*on_disk=*/false);
  write(runtime, stays, 1);
  for (std::uint64_t generation = 1; generation <= 300; ++generation) {  // 300 × 60 KiB in 8 MiB
    const TensorId tensor = add(runtime, 60_KiB), in_memory = add(runtime, 20_KiB, /*on_disk=*/false);
    write(runtime, tensor, generation);
    write(runtime, in_memory, generation);
    if (generation % 2 == 0) {
      EXPECT_TRUE(runtime.flush());
    }
    (void)runtime.announce(tensor, Access::read);
    runtime.remove(in_memory).value();
    runtime.remove(tensor).value();
  }

  EXPECT_TRUE(holds(runtime, stays, 1));
  EXPECT_EQ(runtime.tensors().size(), 1u);
  EXPECT_EQ(runtime.ledger().line(tiers::Tier::nvme, Purpose::parameter_shard).held, 0_B);
  EXPECT_EQ(runtime.host_free(), 88_KiB);
}

TEST(Runtime, PrefetchesWhereNothingElseHappens) {
  penstock::test::ScratchDirectory directory;
  auto runtime =
      Runtime::create({.host_budget = 1_MiB, .paths = {{.directory = directory.path(), .capacity = 4_MiB}}})
          .value();
  const TensorId tensor = add(*runtime, 100_KiB), whole = add(*runtime, 1_MiB);
  write(*runtime, tensor, 1);
  write(*runtime, whole, 1);  // evicts the other one
  ASSERT_TRUE(runtime->flush());
  runtime->discard(whole).value();
  ASSERT_FALSE(runtime->in_memory(tensor));

  runtime->prefetch(tensor).value();
  for (int wait = 0; wait < 10'000 && !runtime->in_memory(tensor); ++wait)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(runtime->in_memory(tensor));
}

TEST(Runtime, RemovesTensorsWhileTheyAreBeingStoredAndPrefetched) {
  penstock::test::ScratchDirectory directory;
  auto runtime = Runtime::create({.host_budget = 1_MiB,
                                  .paths = {{.directory = directory.path(), .capacity = 16_MiB}},
                                  .lookahead = 1_MiB})
                     .value();
  for (int round = 0; round < 40; ++round) {
    std::vector<TensorId> tensors;
    for (int i = 0; i < 24; ++i) tensors.push_back(add(*runtime, 100_KiB));
    for (const TensorId tensor : tensors) {
      write(*runtime, tensor, 1, Use::recorded);
    }
    runtime->end_round();
    // The lookahead covers the round, the last stores are in flight, and each removal frees memory.
    for (const TensorId tensor : tensors) (void)runtime->announce(tensor, Access::read);
    for (const TensorId tensor : tensors) runtime->prefetch(tensor).value();
    for (const TensorId tensor : tensors) runtime->remove(tensor).value();
    ASSERT_EQ(runtime->tensors().size(), 0u);
  }
  EXPECT_TRUE(runtime->flush());
  EXPECT_EQ(runtime->host_free(), 1_MiB);
}

TEST(Runtime, KeepsTheContentsWhenAGrantedLeaseIsCancelled) {
  Simulation simulation({.host_budget = 64_KiB});
  Runtime& runtime = *simulation.runtime;
  const TensorId stored = add(runtime, 40_KiB), never_written = add(runtime, 4_KiB);
  write(runtime, stored, 1);
  ASSERT_TRUE(runtime.flush());
  for (const Access access : {Access::overwrite, Access::modify, Access::read}) {
    PendingLease pending = runtime.request(stored, access);
    simulation.run();
    pending.cancel();
    EXPECT_TRUE(holds(runtime, stored, 1));
  }
  PendingLease pending = runtime.request(never_written, Access::overwrite);
  simulation.run();
  pending.cancel();

  EXPECT_EQ(runtime.acquire(never_written, Access::read).error().code(), ErrorCode::invalid_argument);
}

TEST(Runtime, KeepsEveryByteOnARealDiskWithItsOwnThreads) {
  for (const auto engine :
       {tiers::EngineChoice::automatic, tiers::EngineChoice::libaio, tiers::EngineChoice::threads}) {
    penstock::test::ScratchDirectory directory;
    auto runtime =
        Runtime::create({.host_budget = 4_MiB,
                         .paths = {{.directory = directory.path(), .capacity = 16_MiB, .engine = engine}},
                         .lookahead = 1_MiB})
            .value();
    std::vector<TensorId> tensors;
    for (int i = 0; i < 12; ++i) tensors.push_back(add(*runtime, 1_MiB - 100_B));
    for (std::uint64_t generation = 1; generation <= 2; ++generation) {
      for (const TensorId tensor : tensors) {
        write(*runtime, tensor, generation, Use::recorded);
      }
      for (const TensorId tensor : tensors) {
        EXPECT_TRUE(holds(*runtime, tensor, generation, Use::recorded));
      }
      runtime->end_round();
    }
    EXPECT_TRUE(runtime->flush());
    EXPECT_EQ(directory.entry_count(), 0u);
  }
}

TEST(Runtime, ReturnsFromAHangingRequestAndFromItsDestructor) {
  for (const auto make : {+[] { return tiers::create_uring_engine({}); },
                          +[] { return tiers::create_thread_pool_engine({}); }}) {
    if (!make()) continue;  // no io_uring here
    penstock::test::ScratchDirectory directory;
    const auto make_engine =
        [make](const tiers::File::Properties&) -> Result<std::unique_ptr<tiers::IoEngine>> {
      return std::make_unique<tiers::FaultEngine>(
          make().value(),
          tiers::FaultPlan{{.operation = tiers::IoOperation::read, .effect = tiers::Fault::Effect::hang}});
    };
    const auto runtime = test::create_patiently([&] {
      return Runtime::create({.host_budget = 1_MiB,
                              .paths = {{.directory = directory.path(),
                                         .capacity = 4_MiB,
                                         .deadline = std::chrono::milliseconds(250),
                                         .make_engine = make_engine}}});
    });
    const TensorId tensor = add(*runtime, 700_KiB), other = add(*runtime, 800_KiB);
    write(*runtime, tensor, 1);
    ASSERT_TRUE(runtime->flush());
    write(*runtime, other, 1);  // evicts it
    ASSERT_TRUE(runtime->flush());

    auto hangs = runtime->acquire(tensor, Access::read);
    auto refused = runtime->acquire(tensor, Access::read);

    ASSERT_FALSE(hangs);
    EXPECT_EQ(hangs.error().code(), ErrorCode::deadline_exceeded);
    EXPECT_NE(hangs.error().message().find("are not reused"), std::string::npos) << hangs.error().message();
    EXPECT_FALSE(refused);  // the range that the kernel may write to is not handed out again
    EXPECT_LE(runtime->host_free(), 1_MiB - 700_KiB);
  }
}

}  // namespace
}  // namespace penstock::swap
