#include "swap/path/extent_allocator.hpp"

#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

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

TEST(ExtentAllocator, AllocatesTheReservedBytesOfAFileFirst) {
  const std::array<ExtentAllocator::PathRoom, 1> path = {{{.capacity = 24_KiB, .reserved = 16_KiB}}};
  ExtentAllocator one(path, block);
  ASSERT_TRUE(one.pin_earlier({.path = 0, .offset = FileOffset(16384), .length = 4_KiB}, 1, {}));

  EXPECT_EQ(one.allocate(4_KiB)->offset, FileOffset(0));  // not the gap of this length at the end
  EXPECT_EQ(one.allocate(12_KiB)->offset, FileOffset(4096));
  EXPECT_EQ(one.allocate(4_KiB)->offset, FileOffset(20480));
  EXPECT_FALSE(one.allocate(4_KiB));
}

TEST(ExtentAllocator, JoinsExtentsOfALengthThatNoTensorHas) {
  const std::array<ExtentAllocator::PathRoom, 1> path = {{{.capacity = 64_KiB, .reserved = 16_KiB}}};
  ExtentAllocator one(path, block);
  for (const std::uint64_t offset : {0u, 8192u})
    ASSERT_TRUE(one.pin_earlier({.path = 0, .offset = FileOffset(offset), .length = 8_KiB}, 1, {}));
  EXPECT_EQ(one.allocate(4_KiB)->offset,
            FileOffset(16384));  // beyond, beside the commit of an earlier process

  EXPECT_EQ(one.release_generation(1).size(), 2u);

  EXPECT_EQ(one.allocate(4_KiB)->offset, FileOffset(0));
}

TEST(ExtentAllocator, JoinsFreeExtentsForALongerOne) {
  const std::array<ExtentAllocator::PathRoom, 1> path = {{{.capacity = 16_KiB, .reserved = 16_KiB}}};
  ExtentAllocator one(path, block);
  std::vector<tiers::Extent> all;
  for (int i = 0; i < 4; ++i) all.push_back(one.allocate(4_KiB).value());
  for (const int i : {2, 0, 1}) EXPECT_TRUE(one.release(all[static_cast<std::size_t>(i)]));

  EXPECT_EQ(one.allocate(12_KiB).value(), (tiers::Extent{.path = 0, .offset = {}, .length = 12_KiB}));
  EXPECT_EQ(one.allocate(1_B).error().code(), ErrorCode::no_space);
  EXPECT_EQ(one.allocate(ByteCount(~std::uint64_t{0})).error().code(), ErrorCode::no_space);
}

/// Paths with room for two versions of each tensor, and what a run does with them: it writes tensors in any order, and
/// keeps those of its last commit.
class TwoVersions {
 public:
  explicit TwoVersions(std::uint64_t seed, std::uint32_t paths = 1) : random_(seed), paths_(paths) {
    choose_lengths();
  }
  void choose_lengths() {
    lengths_.clear();
    total_ = longest_ = {};
    for (std::uint64_t i = 2 + random_.below(12); i > 0; --i)
      lengths_.push_back(4_KiB * (1 + random_.below(9)));
    for (const ByteCount length : lengths_) {
      total_ += length * 2;
      longest_ = std::max(longest_, length);
    }
  }
  [[nodiscard]] ByteCount total() const { return total_; }

  /// A process, after another one whose commit it keeps, if there is one.
  void begin() {
    const std::vector<tiers::Extent> earlier = std::exchange(extents_, {});
    std::vector<ExtentAllocator::PathRoom> rooms(paths_);
    for (std::uint32_t path = 0; path < paths_; ++path) {
      const ByteCount share = paths_ == 1 ? total_ : round_up(total_ / paths_, block) + longest_;
      ByteCount end;
      for (const tiers::Extent& extent : earlier)
        if (extent.path == path) end = std::max(end, end_of(extent));
      rooms[path] = {.capacity = end.is_zero() ? share : share + end + longest_, .reserved = share};
    }
    all_.emplace(rooms, block);
    generation_ = 1;
    for (const tiers::Extent& extent : earlier) ASSERT_TRUE(all_->pin_earlier(extent, generation_, {}));
    for (const ByteCount length : lengths_) {
      const auto extent = all_->allocate(length);
      ASSERT_TRUE(extent) << extent.error().message();
      extents_.push_back(*extent);
    }
  }
  /// Each tensor, or each one with a probability of a half, then commits.
  void write(bool every_one) {
    std::vector<std::size_t> order(extents_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
    for (const std::size_t i : order) {
      if (!every_one && random_.below(2) == 0) continue;
      if (!all_->pinned(extents_[i])) continue;  // written in place
      const auto place = all_->allocate(lengths_[i]);
      ASSERT_TRUE(place) << place.error().message();
      EXPECT_FALSE(all_->release(extents_[i]));
      extents_[i] = *place;
    }
    for (const tiers::Extent& extent : extents_) all_->pin(extent, generation_ + 1, {});
    all_->release_generation(generation_++);
    expect_apart();
  }
  [[nodiscard]] ByteCount end() const {
    ByteCount end;
    for (const tiers::Extent& extent : extents_) end = std::max(end, end_of(extent));
    return end;
  }

 private:
  static ByteCount end_of(const tiers::Extent& extent) {
    return ByteCount(extent.offset.value()) + extent.length;
  }
  void expect_apart() const {
    std::vector<tiers::Extent> sorted = extents_;
    std::ranges::sort(sorted, {}, [](const tiers::Extent& one) { return std::pair(one.path, one.offset); });
    for (std::size_t i = 1; i < sorted.size(); ++i) {
      if (sorted[i - 1].path != sorted[i].path) continue;
      ASSERT_LE(end_of(sorted[i - 1]), ByteCount(sorted[i].offset.value()));
    }
  }

  test::SeededRandom random_;
  std::uint32_t paths_;
  std::vector<ByteCount> lengths_;
  ByteCount total_, longest_;
  std::optional<ExtentAllocator> all_;
  std::vector<tiers::Extent> extents_;  // of the tensors
  std::uint64_t generation_ = 0;
};

// The files may not grow.
TEST(ExtentAllocator, HasRoomForTwoVersionsOfTensorsOfAnyLengths) {
  for (std::uint64_t seed = 1; seed <= 900; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    TwoVersions run(seed, 1 + static_cast<std::uint32_t>(seed % 3));
    ASSERT_NO_FATAL_FAILURE(run.begin());
    for (int commit = 0; commit < 20; ++commit) ASSERT_NO_FATAL_FAILURE(run.write(seed % 2 == 0));
  }
}

// What a process has committed is either all of the first places or all of the second ones.
TEST(ExtentAllocator, GivesAnotherProcessTheRoomBesideACommit) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    TwoVersions run(seed);
    for (std::uint64_t process = 0; process < 5; ++process) {
      ASSERT_NO_FATAL_FAILURE(run.begin());
      for (std::uint64_t commit = 0; commit < 1 + (seed + process) % 3; ++commit)
        ASSERT_NO_FATAL_FAILURE(run.write(/*every_one=*/true));
      EXPECT_LE(run.end(), run.total());
    }
  }
}

// Parts of both places are free then, and what does not fit there is beyond.
TEST(ExtentAllocator, HasRoomBesideACommitOfSomeTensorsOrOfOtherLengths) {
  for (std::uint64_t seed = 1; seed <= 900; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    TwoVersions run(seed, 1 + static_cast<std::uint32_t>(seed % 3));
    for (int process = 0; process < 6; ++process) {
      if (seed % 2 == 0) run.choose_lengths();
      ASSERT_NO_FATAL_FAILURE(run.begin());
      for (int commit = 0; commit < 6; ++commit)
        ASSERT_NO_FATAL_FAILURE(run.write(/*every_one=*/seed % 4 == 0));
    }
  }
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
