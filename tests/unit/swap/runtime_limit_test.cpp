#include "unit/swap/runtime_fixture.hpp"

#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace penstock::swap {
namespace {

using penstock::test::ScratchDirectory;
using test::add;
using test::holds;
using test::Simulation;
using test::write;
using tiers::TensorId;

ByteCount resident(const Runtime& runtime) {
  const HostSpan memory = runtime.host_memory();
  std::vector<unsigned char> pages(memory.size().value() / 4096);
  if (::mincore(memory.data(), memory.size().value(), pages.data()) != 0) return {};
  return ByteCount(4096) * static_cast<std::uint64_t>(std::count_if(
                               pages.begin(), pages.end(), [](auto page) { return (page & 1) != 0; }));
}

/// A runtime with memory for eight tensors of 2 MiB, and twelve that are stored.
struct Full {
  ScratchDirectory scratch;
  std::unique_ptr<Runtime> runtime =
      Runtime::create({.host_budget = 16_MiB, .paths = {{.directory = scratch.path(), .capacity = 64_MiB}}})
          .value();
  std::vector<TensorId> tensors;

  Full() {
    for (std::uint64_t i = 0; i < 12; ++i) {
      tensors.push_back(add(*runtime, 2_MiB));
      write(*runtime, tensors.back(), i);
    }
    runtime->flush().value();
  }
  [[nodiscard]] bool all_hold() {
    for (std::uint64_t i = 0; i < tensors.size(); ++i) {
      if (!holds(*runtime, tensors[i], i)) return false;
    }
    return true;
  }
};

TEST(RuntimeLimit, GivesMemoryBackAndTensorsStay) {
  Full full;
  ASSERT_EQ(resident(*full.runtime), 16_MiB);

  EXPECT_EQ(full.runtime->limit_memory(6_MiB).value(), 6_MiB);

  EXPECT_EQ(resident(*full.runtime), 6_MiB);
  EXPECT_TRUE(full.all_hold());
  EXPECT_EQ(resident(*full.runtime), 6_MiB) << "they used no more";
}

TEST(RuntimeLimit, TakesItAgain) {
  Full full;
  ASSERT_TRUE(full.runtime->limit_memory(4_MiB));
  EXPECT_EQ(full.runtime->limit_memory(10_MiB).value(), 10_MiB);
  EXPECT_EQ(resident(*full.runtime), 10_MiB);
  EXPECT_TRUE(full.all_hold());
  EXPECT_EQ(full.runtime->limit_memory(8_MiB).value(), 8_MiB);
  EXPECT_EQ(resident(*full.runtime), 8_MiB);

  EXPECT_EQ(full.runtime->limit_memory(ByteCount(~std::uint64_t{0})).value(), 16_MiB);

  EXPECT_EQ(resident(*full.runtime), 16_MiB);
  EXPECT_TRUE(full.all_hold());
  std::vector<Lease> leases;
  for (std::size_t i = 0; i < 8; ++i)
    leases.push_back(full.runtime->acquire(full.tensors[i], Access::read).value());
}

/// The most memory that this process has had since reset_peak().
ByteCount peak() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return ByteCount(std::stoull(line.substr(6)) * 1024);
  }
  return {};
}
bool reset_peak() {
  std::ofstream("/proc/self/clear_refs") << 5;  // proc_pid_clear_refs(5)
  return std::ofstream("/proc/self/clear_refs").good();
}

TEST(RuntimeLimit, TakesNoMoreThanItIsRaisedBy) {
  const auto runtime = Runtime::create({.host_budget = 256_MiB}).value();
  ASSERT_EQ(runtime->limit_memory(16_MiB).value(), 16_MiB);
  if (!reset_peak()) GTEST_SKIP() << "the kernel does not reset the peak";
  const ByteCount before = peak();

  EXPECT_EQ(runtime->limit_memory(32_MiB).value(), 32_MiB);

  EXPECT_LT(peak(), before + 40_MiB);
  EXPECT_EQ(resident(*runtime), 32_MiB);
}

TEST(RuntimeLimit, StoresWhatIsOnlyInMemory) {
  ScratchDirectory scratch;
  const auto runtime =
      Runtime::create({.host_budget = 16_MiB, .paths = {{.directory = scratch.path(), .capacity = 64_MiB}}})
          .value();
  std::vector<TensorId> tensors;
  for (std::uint64_t i = 0; i < 8; ++i) {
    tensors.push_back(add(*runtime, 2_MiB, true, /*write_behind=*/false));
    write(*runtime, tensors.back(), i);
  }

  EXPECT_GE(runtime->limit_memory(2_MiB).value(), 2_MiB);
  runtime->flush().value();

  EXPECT_EQ(runtime->limit_memory(2_MiB).value(), 2_MiB);
  EXPECT_EQ(resident(*runtime), 2_MiB);
  for (std::uint64_t i = 0; i < 8; ++i) EXPECT_TRUE(holds(*runtime, tensors[i], i)) << i;
}

TEST(RuntimeLimit, LeavesWhatIsLeasedUntilALaterCall) {
  Full full;
  std::vector<Lease> leases;
  for (std::size_t i = 0; i < 8; ++i)
    leases.push_back(full.runtime->acquire(full.tensors[i], Access::read).value());

  EXPECT_EQ(full.runtime->limit_memory(4_MiB).value(), 16_MiB);
  EXPECT_EQ(resident(*full.runtime), 16_MiB);
  leases.clear();

  EXPECT_EQ(full.runtime->limit_memory(4_MiB).value(), 4_MiB);
  EXPECT_TRUE(full.all_hold());
}

TEST(RuntimeLimit, RefusesLessThanWhatStaysInMemory) {
  Full full;
  (void)full.runtime->add({.name = "kept", .key = test::next_key(), .size = 3_MiB}, /*on_disk=*/false)
      .value();
  const ByteCount least = full.runtime->memory_least();
  EXPECT_GE(least, 3_MiB + 2_MiB) << "a stored tensor needs room beside it";

  const auto refused = full.runtime->limit_memory(least - 4_KiB);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::budget_too_small);
  EXPECT_NE(refused.error().message().find("kept"), std::string::npos) << refused.error().message();
  EXPECT_EQ(resident(*full.runtime), 16_MiB);
  EXPECT_TRUE(full.runtime->limit_memory(least));
}

TEST(RuntimeLimit, AndParkingExcludeEachOther) {
  Full full;
  ASSERT_TRUE(full.runtime->limit_memory(4_MiB));
  EXPECT_EQ(full.runtime->park().error().code(), ErrorCode::failed_state);
  ASSERT_TRUE(full.runtime->limit_memory(16_MiB));
  ASSERT_TRUE(full.runtime->park());
  EXPECT_EQ(full.runtime->limit_memory(4_MiB).error().code(), ErrorCode::failed_state);
  ASSERT_TRUE(full.runtime->unpark());
  EXPECT_TRUE(full.all_hold());
}

TEST(RuntimeLimit, MayChangeWhileThreadsUseTensors) {
  Full full;
  std::atomic<bool> stopping = false;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      while (!stopping) {
        for (std::uint64_t i = t; i < full.tensors.size(); i += 3) {
          if (!holds(*full.runtime, full.tensors[i], i)) ++wrong;
          write(*full.runtime, full.tensors[i], i);
        }
      }
    });
  }
  // Three leases at a time, and as many gaps as they leave.
  for (std::uint64_t i = 0; i < 40; ++i)
    EXPECT_TRUE(full.runtime->limit_memory(ByteCount((12 + 2 * (i % 3)) << 20)));
  stopping = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(full.all_hold());
}

TEST(RuntimeLimit, ChangesNothingButThePlaceInAnyOrderOfEvents) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Simulation simulation({.seed = seed, .host_budget = 256_KiB, .bandwidths = {1, 2}});
    Runtime& runtime = *simulation.runtime;
    std::vector<TensorId> tensors;
    for (std::uint64_t i = 0; i < 10; ++i) {
      tensors.push_back(add(runtime, ByteCount(20'000 + 2'000 * i), true, /*write_behind=*/i % 2 == 0));
      write(runtime, tensors.back(), i);
    }
    for (std::uint64_t round = 0; round < 8; ++round) {
      const ByteCount limit = round % 2 == 0 ? ByteCount(40'000 + 10'000 * ((seed + round) % 5)) : 256_KiB;
      ASSERT_TRUE(runtime.limit_memory(limit)) << seed;
      for (std::uint64_t i = 0; i < 10; ++i) {
        ASSERT_TRUE(holds(runtime, tensors[i], i)) << seed << " " << i;
        if ((seed + i + round) % 3 == 0) write(runtime, tensors[i], i);
      }
    }
  }
}

}  // namespace
}  // namespace penstock::swap
