#include "zero/layout/reduction_queue.hpp"

#include <gtest/gtest.h>
#include <vector>

namespace penstock::zero {
namespace {

using Flats = std::vector<std::uint32_t>;

constexpr ReductionQueue::Size size(std::uint64_t elements) {
  return {.elements = ElementCount(elements), .bytes = ByteCount(2 * elements)};
}
constexpr ReductionQueue::Size unlimited = size(std::uint64_t{1} << 60);

/// The closed buckets, which are then being reduced.
std::vector<Flats> take_closed(ReductionQueue& queue) {
  std::vector<Flats> buckets;
  for (auto flats = queue.closed(); !flats.empty(); flats = queue.closed()) {
    buckets.emplace_back(flats.begin(), flats.end());
    queue.start();
  }
  return buckets;
}

TEST(ReductionQueue, ClosesABucketThatAFlatWouldMakeTooLarge) {
  ReductionQueue queue(size(100));
  for (const std::uint32_t flat : {0u, 1u, 2u}) queue.add(flat, size(50));

  EXPECT_EQ(take_closed(queue), (std::vector<Flats>{{0, 1}}));
  queue.add(3, size(1000));  // a bucket of its own
  queue.add(4, size(1));
  EXPECT_EQ(take_closed(queue), (std::vector<Flats>{{2}, {3}}));
}

TEST(ReductionQueue, ClosesABucketThatHasNoMemoryForAFlat) {
  ReductionQueue queue({.elements = ElementCount(1000), .bytes = 100_B});
  queue.add(0, size(30));
  queue.add(1, size(21));

  EXPECT_EQ(take_closed(queue), (std::vector<Flats>{{0}}));
}

TEST(ReductionQueue, ClosesABucketBeforeWhatHasNoRoomInItComes) {
  ReductionQueue queue(size(100));
  queue.add(0, size(50));
  queue.expect(size(50));
  EXPECT_TRUE(queue.closed().empty());

  queue.expect(size(51));

  EXPECT_EQ(take_closed(queue), (std::vector<Flats>{{0}}));
}

TEST(ReductionQueue, ClosesABucketThatIsLargeEnough) {
  ReductionQueue queue(unlimited);
  queue.add(0, size(ReductionQueue::elements_enough.value() - 1));
  EXPECT_TRUE(queue.closed().empty());
  queue.add(1, size(1));
  EXPECT_EQ(take_closed(queue), (std::vector<Flats>{{0, 1}}));

  Flats many;
  for (std::uint32_t flat = 0; flat < ReductionQueue::flats_max; ++flat) {
    EXPECT_TRUE(queue.closed().empty());
    queue.add(flat, size(1));
    many.push_back(flat);
  }
  EXPECT_EQ(take_closed(queue), (std::vector<Flats>{many}));
}

TEST(ReductionQueue, GivesFlatsBackInTheOrderInWhichTheyCame) {
  ReductionQueue queue(unlimited);
  for (const std::uint32_t flat : {7u, 5u}) queue.add(flat, size(1));
  EXPECT_FALSE(queue.is_reducing());
  queue.close_bucket();
  EXPECT_FALSE(queue.is_reducing());
  (void)take_closed(queue);
  EXPECT_TRUE(queue.is_reducing());
  EXPECT_FALSE(queue.has_younger()) << "two flats of one bucket";
  queue.add(3, size(1));
  EXPECT_TRUE(queue.has_younger());

  EXPECT_EQ(queue.oldest(), 7u);
  queue.remove_oldest();
  EXPECT_FALSE(queue.holds(7));
  EXPECT_EQ(queue.oldest(), 5u);
  queue.remove_oldest();

  EXPECT_TRUE(queue.holds(3));
  EXPECT_FALSE(queue.is_reducing()) << "the open bucket is left";
  queue.close_bucket();
  EXPECT_EQ(take_closed(queue), (std::vector<Flats>{{3}}));
}

}  // namespace
}  // namespace penstock::zero
