// Swap files with names: what is synced and pinned is there for a later process.
#include "unit/swap/runtime_fixture.hpp"

#include "kit/pattern.hpp"
#include "kit/scratch_directory.hpp"
#include "swap/runtime_internals.hpp"

#include <penstock/tiers/io/file_system.hpp>

#include <gtest/gtest.h>
#include <cerrno>
#include <string>
#include <vector>

namespace penstock::swap::test {
namespace {

using penstock::test::Pattern;
using penstock::test::ScratchDirectory;

RuntimeOptions named(const ScratchDirectory& directory, std::vector<PinnedExtent> pinned = {}) {
  return {.host_budget = 1_MiB,
          .paths = {{.directory = directory.path(), .capacity = 64_KiB, .file_name = "swap"}},
          .pinned = std::move(pinned)};
}

tiers::TensorId add_tensor(Runtime& runtime, std::uint32_t unit) {
  return runtime.add({.name = "tensor", .key = {.unit = unit}, .size = 16_KiB, .write_behind = true}, true)
      .value();
}

void fill(Runtime& runtime, tiers::TensorId tensor, Pattern pattern) {
  const auto lease = runtime.acquire(tensor, Access::overwrite).value();
  pattern.fill(lease.bytes());
}

TEST(RuntimeWithANamedFile, StoresWhatHasItsHomeInMemoryWhenItIsFlushed) {
  const ScratchDirectory directory;
  const auto runtime = Runtime::create(named(directory)).value();
  const auto tensor =
      runtime
          ->add({.name = "tensor", .key = {}, .size = 16_KiB, .write_behind = true, .home_in_memory = true},
                true)
          .value();
  for (std::uint32_t generation = 1; generation <= 3; ++generation) {
    fill(*runtime, tensor, {.tensor = 1, .generation = generation});
    runtime->wait_for_stores(0);
  }
  EXPECT_EQ(runtime->ledger().traffic().written, 0_B);
  EXPECT_FALSE(runtime->pin_extent(tensor, 1));

  ASSERT_TRUE(runtime->flush());

  EXPECT_EQ(runtime->ledger().traffic().written, 16_KiB);
  EXPECT_TRUE(runtime->pin_extent(tensor, 1));
  EXPECT_TRUE(runtime->in_memory(tensor));
  ASSERT_TRUE(runtime->flush());
  EXPECT_EQ(runtime->ledger().traffic().written, 16_KiB);
}

TEST(RuntimeWithANamedFile, KeepsPinnedBytesForALaterProcess) {
  const ScratchDirectory directory;
  const Pattern pattern{.tensor = 1, .generation = 1};
  tiers::Extent extent;
  {
    const auto runtime = Runtime::create(named(directory)).value();
    const auto tensor = add_tensor(*runtime, 1);
    fill(*runtime, tensor, pattern);
    ASSERT_TRUE(runtime->sync());
    ASSERT_TRUE(runtime->pin_extent(tensor, 1));
    extent = *runtime->describe(tensor).extent;
    fill(*runtime, tensor, {.tensor = 1, .generation = 2});  // stored elsewhere
    ASSERT_TRUE(runtime->flush());
  }
  const auto later = Runtime::create(named(directory, {{.extent = extent, .generation = 1}})).value();
  for (std::uint32_t unit = 0; unit < 4; ++unit)
    fill(*later, add_tensor(*later, unit), {.tensor = unit, .generation = 3});
  ASSERT_TRUE(later->flush());

  const auto file = tiers::real_file_system().open(directory.path() / "swap", tiers::DirectIo::off).value();
  std::vector<std::byte> bytes(extent.length.value());
  ASSERT_TRUE(file.read(extent.offset, HostSpan(std::span(bytes))));
  EXPECT_FALSE(pattern.first_difference(HostSpan(std::span(bytes)).subspan({}, 16_KiB)));
}

TEST(RuntimeWithANamedFile, UsesReleasedBytesAgain) {
  const ScratchDirectory directory;
  { ASSERT_TRUE(Runtime::create(named(directory))); }
  const PinnedExtent whole{.extent = {.path = 0, .length = 64_KiB}, .generation = 7};
  const auto runtime = Runtime::create(named(directory, {whole})).value();
  EXPECT_EQ(runtime->ledger().line(tiers::Tier::nvme, {}).held, 64_KiB);
  const auto add = [&](std::uint32_t unit) {
    return runtime->add({.key = {.unit = unit}, .size = 64_KiB}, true);
  };
  ASSERT_TRUE(add(1));  // beside them
  EXPECT_EQ(add(2).error().code(), ErrorCode::no_space);

  runtime->release_generation(7);

  EXPECT_TRUE(add(2));
}

TEST(RuntimeWithANamedFile, RefusesPinnedBytesThatOverlap) {
  const ScratchDirectory directory;
  const PinnedExtent one{.extent = {.path = 0, .length = 8_KiB}, .generation = 1};
  const PinnedExtent other{.extent = {.path = 0, .offset = FileOffset(4096), .length = 8_KiB},
                           .generation = 2};

  const auto runtime = Runtime::create(named(directory, {one, other}));

  ASSERT_FALSE(runtime);
  EXPECT_EQ(runtime.error().code(), ErrorCode::invalid_argument);
}

TEST(RuntimeSync, FlushesTheFilesThatHaveTensors) {
  Simulation simulation({.host_budget = 1_MiB, .bandwidths = {1, 1}});
  const auto first = add(*simulation.runtime, 16_KiB), second = add(*simulation.runtime, 16_KiB);
  ASSERT_EQ(simulation.runtime->tensors_on_path(0), std::vector{first});

  write(*simulation.runtime, first, 1);
  ASSERT_TRUE(simulation.runtime->sync());

  EXPECT_EQ(simulation.faults(0).accepted(tiers::IoOperation::flush), 1u);
  EXPECT_EQ(simulation.faults(1).accepted(tiers::IoOperation::flush), 0u) << "nothing is stored there";
  write(*simulation.runtime, second, 1);
  ASSERT_TRUE(simulation.runtime->sync());
  EXPECT_EQ(simulation.faults(1).accepted(tiers::IoOperation::flush), 1u);
}

// The kernel reports lost writes once: another flush would prove nothing.
TEST(RuntimeSync, StoresElsewhereWhatAFailedFlushMayHaveLost) {
  Simulation simulation({.host_budget = 1_MiB, .bandwidths = {1, 1}});
  Runtime& runtime = *simulation.runtime;
  std::vector<tiers::TensorId> tensors;
  for (int i = 0; i < 8; ++i) {
    tensors.push_back(add(runtime, 16_KiB));
    write(runtime, tensors.back(), 1);
  }
  ASSERT_TRUE(runtime.flush());
  ASSERT_FALSE(runtime.tensors_on_path(0).empty());
  simulation.faults(0).add(tiers::Fault::fail(tiers::IoOperation::flush, 0, EIO));

  const auto failed = runtime.sync();

  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::io);
  simulation.run();
  EXPECT_TRUE(runtime.tensors_on_path(0).empty());
  for (const auto tensor : tensors) write(runtime, tensor, 2);
  EXPECT_TRUE(runtime.sync()) << "nothing is stored in the file that refuses flushes";
}

}  // namespace
}  // namespace penstock::swap::test
