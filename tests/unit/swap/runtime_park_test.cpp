#include "unit/swap/runtime_fixture.hpp"

#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace penstock::swap {
namespace {

using test::add;
using test::holds;
using test::Simulation;
using test::write;
using tiers::TensorId;

TEST(RuntimePark, BringsEveryTensorBack) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Simulation simulation({.seed = seed, .host_budget = 256_KiB, .bandwidths = {1, 2}});
    Runtime& runtime = *simulation.runtime;
    std::vector<TensorId> tensors;
    for (std::uint64_t i = 0; i < 8; ++i) {
      tensors.push_back(add(runtime, ByteCount(30'000 + 3'000 * i), true, /*write_behind=*/i % 2 == 0));
      write(runtime, tensors.back(), i + 1);
    }
    for (int round = 0; round < 2; ++round) {
      ASSERT_FALSE(runtime.parked());
      (void)runtime.park().value();
      ASSERT_TRUE(runtime.parked());
      for (const TensorId tensor : tensors) EXPECT_FALSE(runtime.in_memory(tensor));
      runtime.unpark().value();
      for (std::uint64_t i = 0; i < 8; ++i)
        ASSERT_TRUE(holds(runtime, tensors[i], i + 1)) << seed << " " << i;
    }
    EXPECT_LE(runtime.ledger().peak(tiers::Tier::host), 256_KiB);
  }
}

TEST(RuntimePark, RefusesLeasesMeanwhile) {
  Simulation simulation({.host_budget = 256_KiB});
  Runtime& runtime = *simulation.runtime;
  const TensorId tensor = add(runtime, 40_KiB);
  write(runtime, tensor, 1);
  (void)runtime.park().value();
  const auto expect_parked = [](const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::failed_state);
    EXPECT_NE(error.message().find("the runtime is parked"), std::string::npos) << error.message();
  };
  expect_parked(runtime.acquire(tensor, Access::read).error());
  expect_parked(runtime.request(tensor, Access::read).poll().value().error());
  expect_parked(runtime.park().error());
  runtime.prefetch(tensor).value();  // a hint that waits
  const TensorId other = add(runtime, 40_KiB);
  runtime.unpark().value();
  EXPECT_EQ(runtime.unpark().error().code(), ErrorCode::failed_state);
  simulation.run();
  EXPECT_TRUE(runtime.in_memory(tensor));
  EXPECT_TRUE(holds(runtime, tensor, 1));
  write(runtime, other, 2);
  EXPECT_TRUE(holds(runtime, other, 2));
}

TEST(RuntimePark, ChangesNothingWhereItIsRefused) {
  Simulation simulation({.host_budget = 256_KiB});
  Runtime& runtime = *simulation.runtime;
  const TensorId tensor = add(runtime, 40_KiB);
  write(runtime, tensor, 1);
  auto lease = runtime.acquire(tensor, Access::read).value();
  const auto leased = runtime.park();
  ASSERT_FALSE(leased);
  EXPECT_EQ(leased.error().code(), ErrorCode::budget_too_small);
  EXPECT_NE(leased.error().message().find(runtime.name(tensor)), std::string::npos)
      << leased.error().message();
  lease.end();
  const TensorId stays = add(runtime, 40_KiB, /*on_disk=*/false);
  const auto kept = runtime.park();
  ASSERT_FALSE(kept);
  EXPECT_EQ(kept.error().code(), ErrorCode::unsupported);
  EXPECT_NE(kept.error().message().find(runtime.name(stays)), std::string::npos) << kept.error().message();
  runtime.remove(stays).value();
  EXPECT_FALSE(runtime.parked());
  EXPECT_TRUE(holds(runtime, tensor, 1));
  EXPECT_TRUE(runtime.park());
}

TEST(RuntimePark, ReportsAStoreThatFails) {
  Simulation simulation({.host_budget = 256_KiB});
  Runtime& runtime = *simulation.runtime;
  const TensorId tensor = add(runtime, 40_KiB, true, /*write_behind=*/false);
  write(runtime, tensor, 1);
  simulation.fail_requests(1000);
  EXPECT_FALSE(runtime.park());
  EXPECT_FALSE(runtime.parked());
  simulation.fail_requests(0);
  EXPECT_TRUE(holds(runtime, tensor, 1));
}

/// Bytes of this process in memory.
std::uint64_t resident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

TEST(RuntimePark, GivesTheMemoryToTheOperatingSystem) {
  const penstock::test::ScratchDirectory scratch;
  const auto runtime =
      Runtime::create({.host_budget = 64_MiB, .paths = {{.directory = scratch.path(), .capacity = 96_MiB}}})
          .value();
  std::vector<TensorId> tensors;
  for (std::uint64_t i = 0; i < 12; ++i) {
    tensors.push_back(add(*runtime, 7_MiB, true, /*write_behind=*/false));
    write(*runtime, tensors.back(), i);
  }
  [[maybe_unused]] const std::uint64_t before = resident();
  EXPECT_EQ(runtime->park().value(), 64_MiB);
  EXPECT_TRUE(runtime->take_messages().empty());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(resident(), before - (60 << 20));
#endif
  std::thread([&] { runtime->unpark().value(); }).join();  // any thread
  for (std::uint64_t i = 0; i < 12; ++i) EXPECT_TRUE(holds(*runtime, tensors[i], i));
}

TEST(RuntimePark, SaysWhyItKeepsMemory) {
  Simulation simulation({.host_budget = 256_KiB});  // less than a page of 2 MiB
  EXPECT_EQ(simulation.runtime->park().value(), ByteCount());
  const std::vector<std::string> messages = simulation.runtime->take_messages();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_NE(messages[0].find("gave back 0 B of 256.0 KiB: it fills no page"), std::string::npos)
      << messages[0];
}

TEST(RuntimePark, EndsWithTheRuntime) {
  Simulation simulation({.host_budget = 256_KiB});
  write(*simulation.runtime, add(*simulation.runtime, 40_KiB), 1);
  EXPECT_TRUE(simulation.runtime->park());
}

TEST(RuntimePark, LetsOtherThreadsHaveTensorsBeforeAndAfter) {
  const penstock::test::ScratchDirectory scratch;
  const auto runtime =
      Runtime::create({.host_budget = 8_MiB, .paths = {{.directory = scratch.path(), .capacity = 16_MiB}}})
          .value();
  std::vector<TensorId> tensors;
  for (std::uint64_t i = 0; i < 4; ++i) {
    tensors.push_back(add(*runtime, 1_MiB, true, /*write_behind=*/false));
    write(*runtime, tensors.back(), i);
  }
  std::atomic<bool> stops = false;
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      while (!stops) {
        auto lease = runtime->acquire(tensors[i], Access::modify);
        if (!lease) {
          EXPECT_EQ(lease.error().code(), ErrorCode::failed_state) << lease.error().message();
          std::this_thread::yield();
        }
      }
    });
  }
  int parked = 0;
  for (int i = 0; i < 200'000 && parked < 20; ++i) {
    const auto outcome = runtime->park();
    if (!outcome) {
      EXPECT_EQ(outcome.error().code(), ErrorCode::budget_too_small) << outcome.error().message();
      continue;
    }
    ++parked;
    runtime->unpark().value();
  }
  stops = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(parked, 0);
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(holds(*runtime, tensors[i], i));
}

}  // namespace
}  // namespace penstock::swap
