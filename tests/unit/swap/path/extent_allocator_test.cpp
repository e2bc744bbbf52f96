#include "swap/path/extent_allocator.hpp"

#include <gtest/gtest.h>
#include <array>

namespace penstock::swap {
namespace {

constexpr Alignment block(4096);

ExtentAllocator extents(std::initializer_list<double> weights, ByteCount capacity = 1_MiB) {
  std::vector<ExtentAllocator::PathRoom> paths;
  for (const double weight : weights) paths.push_back({.weight = weight, .capacity = capacity});
  return ExtentAllocator(paths, block);
}

std::array<int, 3> allocate(ExtentAllocator& extents, int count) {
  std::array<int, 3> allocated{};
  for (int i = 0; i < count; ++i) ++allocated[extents.allocate(4_KiB).value().path];
  return allocated;
}

TEST(ExtentAllocator, GivesEachPathItsShareOfTheBytes) {
  ExtentAllocator all = extents({1, 1, 4});

  EXPECT_EQ(allocate(all, 60), (std::array<int, 3>{10, 10, 40}));
}

TEST(ExtentAllocator, RoundsUpToTheBlockAndAllocatesNoRangeTwice) {
  ExtentAllocator one = extents({1}, 16_KiB);
  const tiers::Extent first = one.allocate(5000_B).value(), second = one.allocate(1_B).value();

  EXPECT_EQ(first.length, 8_KiB);
  EXPECT_EQ(second.length, 4_KiB);
  EXPECT_GE(second.offset.value(), 8192u);
  EXPECT_EQ(one.allocate(8_KiB).error().code(), ErrorCode::no_space);
  one.release(first);
  EXPECT_TRUE(one.allocate(8_KiB));
}

TEST(ExtentAllocator, AllocatesFromAPathWithRoomIfAnotherIsFull) {
  const std::array<ExtentAllocator::PathRoom, 2> paths = {
      {{.weight = 9, .capacity = 8_KiB}, {.capacity = 64_KiB}}};
  ExtentAllocator two(paths, block);

  EXPECT_EQ(allocate(two, 10), (std::array<int, 3>{2, 8, 0}));
}

TEST(ExtentAllocator, LowersAWeightAtEachFaultAndEndsThePathsUseAtTheLast) {
  ExtentAllocator two = extents({1, 1});

  EXPECT_FALSE(two.note_fault(0));
  EXPECT_EQ(two.weight(0), 0.5);
  EXPECT_EQ(allocate(two, 30), (std::array<int, 3>{10, 20, 0}));
  EXPECT_FALSE(two.note_fault(0));
  EXPECT_TRUE(two.note_fault(0));
  two.retire(0);

  EXPECT_EQ(allocate(two, 9), (std::array<int, 3>{0, 9, 0}));
  EXPECT_FALSE(two.has_another(1));
  EXPECT_FALSE(two.note_fault(1) || two.note_fault(1) || two.note_fault(1));  // the last one stays
}

TEST(ExtentAllocator, AllocatesReservedSpaceFirst) {
  const std::array<ExtentAllocator::PathRoom, 2> paths = {
      {{.capacity = 64_KiB, .reserved = 8_KiB}, {.capacity = 64_KiB, .reserved = 32_KiB}}};
  ExtentAllocator two(paths, block);

  EXPECT_EQ(allocate(two, 10), (std::array<int, 3>{2, 8, 0}));
  EXPECT_EQ(allocate(two, 6), (std::array<int, 3>{6, 0, 0}));  // by weight again
}

TEST(ExtentAllocator, AvoidsThePathsThatTheCallerExcludes) {
  ExtentAllocator two = extents({8, 1});

  EXPECT_EQ(two.allocate(4_KiB, [](std::uint32_t path) { return path == 0; }).value().path, 1u);
  EXPECT_EQ(two.allocate(4_KiB, [](std::uint32_t) { return true; }).error().code(), ErrorCode::no_space);
}

TEST(ExtentAllocator, KeepsTheExtentsOfAnEarlierProcess) {
  ExtentAllocator one = extents({1}, 16_KiB);
  const tiers::Extent earlier{.path = 0, .offset = FileOffset(4096), .length = 8_KiB};

  EXPECT_TRUE(one.pin_earlier(earlier, 1, tiers::Purpose::optimizer_tile));
  EXPECT_TRUE(one.pin_earlier(earlier, 2, tiers::Purpose::optimizer_tile));

  EXPECT_FALSE(one.allocate(8_KiB));
  EXPECT_TRUE(one.release_generation(1).empty());
  EXPECT_FALSE(one.allocate(8_KiB));
  const auto freed = one.release_generation(2);
  ASSERT_EQ(freed.size(), 1u);
  EXPECT_EQ(freed[0].first, earlier);
  EXPECT_TRUE(one.allocate(16_KiB));
}

TEST(ExtentAllocator, RefusesEarlierExtentsThatAreInUse) {
  ExtentAllocator one = extents({1}, 16_KiB);
  const tiers::Extent used = one.allocate(4_KiB).value();

  EXPECT_FALSE(one.pin_earlier(used, 1, {}));
  EXPECT_FALSE(one.pin_earlier({.path = 0, .offset = FileOffset(100), .length = 4_KiB}, 1, {}));
  EXPECT_FALSE(one.pin_earlier({.path = 1, .offset = FileOffset(4096), .length = 4_KiB}, 1, {}));
  EXPECT_FALSE(one.pin_earlier({.path = 0, .offset = FileOffset(16384), .length = 4_KiB}, 1, {}));
  ASSERT_TRUE(one.pin_earlier({.path = 0, .offset = FileOffset(8192), .length = 4_KiB}, 1, {}));
  EXPECT_FALSE(one.pin_earlier({.path = 0, .offset = FileOffset(8192), .length = 8_KiB}, 1, {}));
}

TEST(ExtentAllocator, FreesAPinnedExtentOnceItsTensorAndEveryGenerationReleasedIt) {
  const std::array<ExtentAllocator::PathRoom, 1> path = {{{.capacity = 8_KiB, .reserved = 8_KiB}}};
  ExtentAllocator one(path, block);
  const tiers::Extent pinned = one.allocate(4_KiB).value(), current = one.allocate(4_KiB).value();
  one.pin(pinned, 1, tiers::Purpose::optimizer_tile);
  one.pin(pinned, 2, tiers::Purpose::optimizer_tile);
  one.pin(current, 2, tiers::Purpose::optimizer_tile);

  EXPECT_FALSE(one.release(pinned));
  EXPECT_EQ(one.allocate(4_KiB).error().code(), ErrorCode::no_space);
  EXPECT_TRUE(one.release_generation(1).empty());
  EXPECT_TRUE(one.pinned(pinned));
  const auto freed = one.release_generation(2);

  ASSERT_EQ(freed.size(), 1u);  // the other one holds its tensor still
  EXPECT_EQ(freed.front().first, pinned);
  EXPECT_FALSE(one.pinned(current));
  EXPECT_EQ(one.allocate(4_KiB).value(), pinned);
}

}  // namespace
}  // namespace penstock::swap
