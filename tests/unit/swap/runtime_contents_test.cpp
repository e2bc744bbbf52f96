#include "kit/pattern.hpp"
#include "swap/runtime_internals.hpp"
#include "unit/swap/runtime_fixture.hpp"

#include <gtest/gtest.h>

namespace penstock::swap {
namespace {

using test::add;
using test::holds;
using test::Simulation;
using test::write;
using tiers::TensorId;

TEST(RuntimeContents, AreGoneAfterDiscard) {
  Simulation simulation({.host_budget = 64_KiB});
  Runtime& runtime = *simulation.runtime;
  const TensorId tensor = add(runtime, 4_KiB);
  write(runtime, tensor, 1);
  ASSERT_TRUE(runtime.flush());

  runtime.discard(tensor).value();

  EXPECT_FALSE(runtime.in_memory(tensor));
  EXPECT_EQ(runtime.acquire(tensor, Access::read).error().code(), ErrorCode::invalid_argument);
  write(runtime, tensor, 2);
  EXPECT_TRUE(holds(runtime, tensor, 2));
}

TEST(RuntimeContents, OnDiskOnlyAreGoneAfterDiscard) {
  Simulation simulation({.host_budget = 64_KiB});
  Runtime& runtime = *simulation.runtime;
  const TensorId tensor = add(runtime, 4_KiB), large = add(runtime, 64_KiB);
  write(runtime, tensor, 1);
  write(runtime, large, 2);  // evicts the other
  ASSERT_FALSE(runtime.in_memory(tensor));

  runtime.discard(tensor).value();

  EXPECT_EQ(runtime.acquire(tensor, Access::read).error().code(), ErrorCode::invalid_argument);
  write(runtime, tensor, 3);
  EXPECT_TRUE(holds(runtime, tensor, 3));
  EXPECT_TRUE(holds(runtime, large, 2));
}

TEST(RuntimeContents, StayInAPinnedExtentUntilItsGenerationIsReleased) {
  constexpr ByteCount size = 4_KiB;
  Simulation simulation({.host_budget = 64_KiB, .capacity = size * 2});
  Runtime& runtime = *simulation.runtime;
  const TensorId tensor = add(runtime, size);
  const auto add_another = [&] {
    return runtime.add({.name = "another", .key = test::next_key(), .size = size}, true);
  };
  write(runtime, tensor, 1);
  EXPECT_EQ(runtime.pin_extent(tensor, 1).error().code(), ErrorCode::invalid_argument);  // not stored yet
  ASSERT_TRUE(runtime.flush());

  ASSERT_TRUE(runtime.pin_extent(tensor, 1));
  write(runtime, tensor, 2);
  ASSERT_TRUE(runtime.flush());  // to the other extent

  EXPECT_EQ(add_another().error().code(), ErrorCode::no_space);
  runtime.release_generation(1);
  EXPECT_TRUE(add_another());
  EXPECT_TRUE(holds(runtime, tensor, 2));
}

/// The evacuation of a path may have got to any point.
TEST(RuntimeContents, AreInTheExtentThatWasPinnedWhereverTheyMove) {
  bool has_moved_before = false, moves_later = false;
  for (int polls = 0; !has_moved_before; ++polls) {
    Simulation simulation({.host_budget = 64_KiB, .bandwidths = {1, 1}});
    Runtime& runtime = *simulation.runtime;
    const RuntimeInternals engine(runtime);
    const TensorId tensor = add(runtime, 16_KiB);
    write(runtime, tensor, 1);
    ASSERT_TRUE(runtime.flush());
    runtime.remove(add(runtime, 64_KiB, /*on_disk=*/false)).value();  // evicts it
    const std::uint32_t first = runtime.describe(tensor).extent->path;
    for (int fault = 0; fault < 3; ++fault) (void)engine.corrupted(tensor, 0);
    for (int i = 0; i < polls; ++i) {
      if (!runtime.poll()) simulation.idle();
    }

    const auto pinned = engine.pin_extent(tensor, engine_generations);

    ASSERT_TRUE(pinned) << pinned.error().message();
    simulation.run();
    const tiers::Extent& extent = *pinned->description.extent;
    ASSERT_NE(runtime.describe(tensor).extent->path, first);
    has_moved_before = extent.path != first;
    moves_later |= extent.path == first;
    write(runtime, tensor, 2);
    ASSERT_TRUE(runtime.flush());
    const penstock::test::Pattern pattern{.tensor = static_cast<std::uint64_t>(tensor), .generation = 1};
    const HostSpan bytes =
        simulation.file(extent.path).subspan(ByteCount(extent.offset.value()), extent.length);
    EXPECT_FALSE(pattern.first_difference(bytes)) << polls;
    EXPECT_EQ(pinned->checksums.size(), 2u);
  }
  EXPECT_TRUE(moves_later);
}

TEST(RuntimeContents, StayInAnExtentThatAnEngineHasPinnedUntilItReleasesIt) {
  constexpr ByteCount size = 4_KiB;
  constexpr std::uint64_t generation = engine_generations | 1;
  Simulation simulation({.host_budget = 64_KiB, .capacity = size * 2});
  Runtime& runtime = *simulation.runtime;
  const RuntimeInternals engine(runtime);
  const TensorId tensor = add(runtime, size);
  const auto add_another = [&] {
    return runtime.add({.name = "another", .key = test::next_key(), .size = size}, true);
  };
  write(runtime, tensor, 1);
  ASSERT_TRUE(runtime.flush());
  ASSERT_TRUE(engine.pin_extent(tensor, generation));
  EXPECT_EQ(runtime.pin_extent(tensor, generation).error().code(), ErrorCode::invalid_argument);
  write(runtime, tensor, 2);
  ASSERT_TRUE(runtime.flush());

  runtime.release_generation(generation);

  EXPECT_EQ(add_another().error().code(), ErrorCode::no_space);
  engine.release_generation(generation);
  EXPECT_TRUE(add_another());
}

}  // namespace
}  // namespace penstock::swap
