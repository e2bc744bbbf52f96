#include "swap/runtime_internals.hpp"
#include "tiers/store/block_table.hpp"
#include "unit/swap/runtime_fixture.hpp"

#include "kit/pattern.hpp"
#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <vector>

namespace penstock::swap {
namespace {

using test::add;
using test::holds;
using test::Simulation;
using test::write;
using Effect = tiers::Fault::Effect;
using tiers::TensorId;

/// Two disks, sixteen tensors, half of them on each, all written and none in memory.
class FailingPath : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 16; ++i) tensors_.push_back(add(runtime_, 16_KiB));
    write_all(1);
    const TensorId large = add(runtime_, 64_KiB, /*on_disk=*/false);  // evicts them all
    runtime_.remove(large).value();
    ASSERT_EQ(on_path(0), 8u);
  }
  void write_all(std::uint64_t generation) {
    for (const TensorId tensor : tensors_) write(runtime_, tensor, generation);
    EXPECT_TRUE(runtime_.flush());
  }
  bool all_hold(std::uint64_t generation) {
    return std::all_of(tensors_.begin(), tensors_.end(),
                       [&](TensorId tensor) { return holds(runtime_, tensor, generation); });
  }
  std::size_t on_path(std::uint32_t path) { return runtime_.tensors_on_path(path).size(); }
  std::uint64_t accepted(std::size_t path, tiers::IoOperation operation) {
    return simulation_.faults(path).accepted(operation);
  }
  /// From now on, such requests of the first disk's.
  void inject(tiers::IoOperation operation, Effect effect, std::uint64_t count = 1'000'000) {
    simulation_.faults(0).add({.operation = operation,
                               .occurrence = accepted(0, operation),
                               .count = count,
                               .effect = effect,
                               .error = ENODEV});
  }
  void retire_first_path() {
    const TensorId there = runtime_.tensors_on_path(0).back();
    for (int i = 0; i < 3; ++i) (void)RuntimeInternals(runtime_).corrupted(there, 0);
  }
  bool reported(std::string_view words) {
    for (std::string& line : runtime_.take_messages()) messages_ += line.append("\n");
    return messages_.find(words) != std::string::npos;
  }

  Simulation simulation_{{.host_budget = 64_KiB, .bandwidths = {1, 1}}};
  Runtime& runtime_ = *simulation_.runtime;
  std::vector<TensorId> tensors_;
  std::string messages_;
};

TEST_F(FailingPath, StoresATensorOnAnotherPathAfterAFailure) {
  inject(tiers::IoOperation::write, Effect::fail, 1);

  write_all(2);

  EXPECT_TRUE(reported("tensor is stored elsewhere: input/output error: simulated file in disk1"))
      << messages_;
  EXPECT_FALSE(reported("out of use"));
  EXPECT_GE(on_path(0), 7u);
  EXPECT_TRUE(all_hold(2));
}

TEST_F(FailingPath, ReportsErrorsThatShorterRequestsOvercome) {
  const auto fail_one = [&](tiers::IoOperation operation, int error) {
    simulation_.faults(0).add(tiers::Fault::fail(operation, accepted(0, operation), error));
  };
  const TensorId there = runtime_.tensors_on_path(0).front();
  EXPECT_TRUE(runtime_.take_messages().empty());
  std::vector<std::size_t> lines;

  for (int i = 0; i < 5; ++i) {
    fail_one(tiers::IoOperation::write, EIO);
    write(runtime_, there, 2);
    EXPECT_TRUE(runtime_.flush());
    const auto messages = runtime_.take_messages();
    lines.push_back(messages.size());
    for (const std::string& line : messages) messages_ += line + "\n";
  }

  EXPECT_EQ(lines, (std::vector<std::size_t>{1, 1, 0, 1, 0}));
  for (const char* const words :
       {"simulated file in disk1: 1 request failed", "simulated file in disk1: 2 requests",
        "simulated file in disk1: 4 requests", "input/output error", "dmesg"}) {
    EXPECT_NE(messages_.find(words), std::string::npos) << words << " in " << messages_;
  }
  EXPECT_EQ(on_path(0), 8u) << "no fault of the path";
  EXPECT_TRUE(holds(runtime_, there, 2));
}

TEST_F(FailingPath, IsRetiredAndEvacuatedAfterRepeatedFaults) {
  inject(tiers::IoOperation::write, Effect::fail);

  write_all(2);
  simulation_.run();

  EXPECT_TRUE(reported("simulated file in disk1 is retired after fault number 3")) << messages_;
  EXPECT_TRUE(reported("simulated file in disk1 is evacuated")) << messages_;
  EXPECT_EQ(on_path(0), 0u);
  EXPECT_TRUE(all_hold(2));
  const std::uint64_t writes = accepted(0, tiers::IoOperation::write);
  write_all(3);
  EXPECT_EQ(accepted(0, tiers::IoOperation::write), writes);  // left in peace
  EXPECT_TRUE(all_hold(3));
}

TEST_F(FailingPath, IsEvacuatedOfTensorsThatAreNotUsed) {
  inject(tiers::IoOperation::write, Effect::fail);
  std::vector<TensorId> extra;
  for (int i = 0; i < 6; ++i) write(runtime_, extra.emplace_back(add(runtime_, 4_KiB)), 1);

  EXPECT_TRUE(runtime_.flush());
  simulation_.run();

  EXPECT_EQ(on_path(0), 0u);
  EXPECT_TRUE(reported("is evacuated: ")) << messages_;
  EXPECT_TRUE(all_hold(1));
}

TEST_F(FailingPath, IsRetiredWhenAWriteHangsButIsStillRead) {
  inject(tiers::IoOperation::write, Effect::hang);

  write(runtime_, tensors_[0], 2);
  write(runtime_, tensors_[1], 2);
  EXPECT_TRUE(runtime_.flush());
  simulation_.run();

  EXPECT_TRUE(reported("did not complete in time")) << messages_;
  EXPECT_TRUE(reported("is evacuated")) << messages_;
  EXPECT_EQ(on_path(0), 0u);
  EXPECT_TRUE(holds(runtime_, tensors_[0], 2) && holds(runtime_, tensors_[1], 2));
  EXPECT_TRUE(holds(runtime_, tensors_[2], 1) && holds(runtime_, tensors_[3], 1));
}

TEST_F(FailingPath, NamesTensorsThatCannotBeReadAndEvacuatesTheOthers) {
  inject(tiers::IoOperation::read, Effect::fail);
  std::size_t lost = 0;
  for (const TensorId tensor : tensors_) {
    auto lease = runtime_.acquire(tensor, Access::read);
    if (lease) continue;
    EXPECT_EQ(lease.error().code(), ErrorCode::io);
    ++lost;
  }
  simulation_.run();

  EXPECT_GE(lost, 3u);
  EXPECT_TRUE(reported("is retired after fault")) << messages_;
  EXPECT_TRUE(reported("cannot be read: tensor")) << messages_;
  write_all(2);  // new contents do not need the path
  EXPECT_EQ(on_path(0), 0u);
  EXPECT_TRUE(all_hold(2));
}

TEST_F(FailingPath, CountsABlockThatDoesNotVerifyAsAFault) {
  for (std::byte& byte : simulation_.file(0).as<std::byte>()) byte ^= std::byte{1};
  std::size_t corrupted = 0;
  for (const TensorId tensor : tensors_) {
    auto lease = runtime_.acquire(tensor, Access::read);
    if (!lease && lease.error().code() == ErrorCode::corrupted) ++corrupted;
  }

  EXPECT_GE(corrupted, 3u);
  EXPECT_TRUE(reported("is retired after fault number 3")) << messages_;
}

TEST_F(FailingPath, CountsABlockThatACallerReportsAsCorruptedAsAFault) {
  for (const TensorId tensor : runtime_.tensors_on_path(0))
    (void)RuntimeInternals(runtime_).corrupted(tensor, 0);

  EXPECT_TRUE(reported("is retired after fault number 3")) << messages_;
}

TEST_F(FailingPath, IsEvacuatedWhileTheTrainerLoadsItsTensors) {
  retire_first_path();
  for (int round = 0; round < 3; ++round) {
    for (const TensorId tensor : tensors_) EXPECT_TRUE(holds(runtime_, tensor, 1));
  }
  simulation_.run();

  EXPECT_EQ(on_path(0), 0u);
  EXPECT_TRUE(reported("is evacuated")) << messages_;
}

TEST_F(FailingPath, NamesATensorWhoseLoadFailsAfterThePathWasRetired) {
  const TensorId there = runtime_.tensors_on_path(0).front();
  simulation_.faults(0).add({.operation = tiers::IoOperation::read,
                             .occurrence = accepted(0, tiers::IoOperation::read),
                             .effect = Effect::fail,
                             .error = ENODEV});
  PendingLease pending = runtime_.request(there, Access::read);
  retire_first_path();
  simulation_.run();

  EXPECT_FALSE(pending.poll().value());
  EXPECT_TRUE(reported("cannot be read: tensor")) << messages_;
  EXPECT_EQ(on_path(0), 1u);
}

TEST_F(FailingPath, DoesNotBlockTheDestructorOfTheRuntime) {
  retire_first_path();
  while (runtime_.poll()) {
  }
  const TimePoint before = simulation_.clock.now();
  simulation_.runtime.reset();

  // The tensor in flight is loaded and stored; all eight would take 1.5 ms.
  EXPECT_LT(simulation_.clock.now() - before, std::chrono::microseconds(600));
}

TEST_F(FailingPath, VerifiesEvacuatedTensorsThatAreSealedInAPass) {
  const TensorId sealed = runtime_
                              .add({.name = "tile",
                                    .key = test::next_key(),
                                    .size = 16_KiB,
                                    .block = 8_KiB,
                                    .write_behind = true,
                                    .retain = false,
                                    .sealed_in_pass = true},
                                   true)
                              .value();
  ASSERT_EQ(runtime_.describe(sealed).extent->path, 0u);
  {
    Lease lease = runtime_.acquire(sealed, Access::overwrite).value();
    penstock::test::Pattern{.tensor = 99}.fill(lease.bytes());
    RuntimeInternals(runtime_).blocks(sealed).seal_all(lease.bytes(), 1);
  }
  ASSERT_TRUE(runtime_.flush());
  simulation_.file(0).data()[runtime_.describe(sealed).extent->offset.value() + 9000] ^= std::byte{1};
  retire_first_path();
  simulation_.run();

  EXPECT_TRUE(reported("cannot be read: tile")) << messages_;
  EXPECT_EQ(runtime_.describe(sealed).extent->path, 0u);
}

TEST_F(FailingPath, LosesNoByteInAnyOrderOfUses) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Simulation simulation({.seed = seed, .host_budget = 96_KiB, .bandwidths = {2, 1, 1}});
    Runtime& runtime = *simulation.runtime;
    penstock::test::SeededRandom random(seed);
    std::vector<TensorId> tensors;
    std::vector<std::uint64_t> generations(14, 0);
    for (std::size_t i = 0; i < generations.size(); ++i) {
      tensors.push_back(runtime
                            .add({.name = "tensor",
                                  .key = test::next_key(),
                                  .size = ByteCount(1 + random.below(30'000)),
                                  .block = 8_KiB,
                                  .write_behind = random.below(2) == 0,
                                  .home_in_memory = random.below(4) == 0},
                                 true)
                            .value());
    }
    for (int i = 0; i < 200; ++i) {
      if (i == 60 || i == 120) {  // one disk's writes fail, then another's hang
        auto& faults = simulation.faults(i == 60 ? seed % 3 : (seed + 1) % 3);
        faults.add({.operation = tiers::IoOperation::write,
                    .occurrence = faults.accepted(tiers::IoOperation::write),
                    .count = 1'000'000,
                    .effect = i == 60 ? Effect::fail : Effect::hang,
                    .error = ENODEV});
      }
      const std::size_t which = random.below(tensors.size());
      if (random.below(16) == 0) {
        runtime.remove(tensors[which]).value();
        tensors[which] = add(runtime, ByteCount(1 + random.below(30'000)), true, random.below(2) == 0);
        generations[which] = 0;
      }
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
  }
}

}  // namespace
}  // namespace penstock::swap
