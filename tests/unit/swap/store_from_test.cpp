// Tensors that are stored from memory of the caller.
#include "unit/swap/runtime_fixture.hpp"

#include "kit/pattern.hpp"
#include "swap/runtime_internals.hpp"

#include <gtest/gtest.h>
#include <array>

namespace penstock::swap::test {
namespace {

using penstock::test::Pattern;

class StoreFromTest : public testing::Test {
 protected:
  static constexpr ByteCount size = 16_KiB;

  static Pattern contents(std::uint64_t generation) { return {.tensor = 1, .generation = generation}; }
  HostSpan fill(std::uint64_t generation) {
    contents(generation).fill(memory());
    return memory();
  }
  HostSpan memory() { return HostSpan(std::span(bytes_)); }
  static ByteCount begin_of(const tiers::Extent& extent) { return ByteCount(extent.offset.value()); }
  bool file_holds(std::uint64_t generation) {
    const tiers::Extent extent = *runtime().describe(tensor_).extent;
    return !contents(generation).first_difference(simulation_.file().subspan(begin_of(extent), size));
  }
  Runtime& runtime() { return *simulation_.runtime; }
  RuntimeInternals internals() { return RuntimeInternals(runtime()); }

  Simulation simulation_{{.host_budget = {}}};
  tiers::TensorId tensor_ = runtime()
                                .add({.name = "committed",
                                      .key = next_key(),
                                      .size = size,
                                      .block = 4_KiB,
                                      .retain = false,
                                      .stored_from_outside = true},
                                     /*on_disk=*/true)
                                .value();

 private:
  alignas(4096) std::array<std::byte, size.value()> bytes_{};
};

TEST_F(StoreFromTest, WritesTheBytesFromWhereTheyAre) {
  internals().store_from(tensor_, fill(1));
  ASSERT_TRUE(runtime().flush());

  EXPECT_TRUE(file_holds(1));
  EXPECT_FALSE(internals().blocks(tensor_).first_mismatch(memory()));
  EXPECT_FALSE(runtime().in_memory(tensor_)) << "nothing refers to the bytes any more";
}

TEST_F(StoreFromTest, LeavesThePinnedBytesOfTheLastOne) {
  internals().store_from(tensor_, fill(1));
  ASSERT_TRUE(runtime().flush());
  ASSERT_TRUE(runtime().pin_extent(tensor_, 1));
  const tiers::Extent pinned = *runtime().describe(tensor_).extent;

  internals().store_from(tensor_, fill(2));
  EXPECT_FALSE(runtime().pin_extent(tensor_, 2)) << "not stored yet";
  ASSERT_TRUE(runtime().flush());

  EXPECT_TRUE(file_holds(2));
  EXPECT_FALSE(contents(1).first_difference(simulation_.file().subspan(begin_of(pinned), size)));
}

TEST_F(StoreFromTest, IsRepeatedFromTheSameBytesAfterItHasFailed) {
  simulation_.fail_requests(1);
  internals().store_from(tensor_, fill(1));

  EXPECT_EQ(runtime().flush().error().code(), ErrorCode::io);
  EXPECT_TRUE(runtime().flush());
  EXPECT_TRUE(file_holds(1));
}

TEST_F(StoreFromTest, EndsWhereItIsDiscardedAfterItHasFailed) {
  simulation_.fail_requests(1);
  internals().store_from(tensor_, fill(1));
  ASSERT_FALSE(runtime().flush());

  ASSERT_TRUE(runtime().discard(tensor_));
  runtime().wait_for_stores(0);
  EXPECT_FALSE(runtime().in_memory(tensor_)) << "the bytes may change now";

  internals().store_from(tensor_, fill(2));
  ASSERT_TRUE(runtime().flush());
  EXPECT_TRUE(file_holds(2));
}

TEST_F(StoreFromTest, EndsInFlightWhereItIsDiscarded) {
  internals().store_from(tensor_, fill(1));
  (void)runtime().poll();  // starts it

  ASSERT_TRUE(runtime().discard(tensor_));
  EXPECT_TRUE(runtime().in_memory(tensor_));
  runtime().wait_for_stores(0);

  EXPECT_FALSE(runtime().in_memory(tensor_));
  EXPECT_FALSE(runtime().pin_extent(tensor_, 1));
}

}  // namespace
}  // namespace penstock::swap::test
