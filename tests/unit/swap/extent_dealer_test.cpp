#include <penstock/swap/extent_dealer.hpp>

#include <gtest/gtest.h>
#include <array>

namespace penstock::swap {
namespace {

constexpr Alignment block(4096);

ExtentDealer dealer(std::initializer_list<double> weights, ByteCount capacity = 1_MiB) {
  std::vector<ExtentDealer::PathRoom> paths;
  for (const double weight : weights) paths.push_back({.weight = weight, .capacity = capacity});
  return ExtentDealer(paths, block);
}

std::array<int, 3> deal(ExtentDealer& dealer, int count) {
  std::array<int, 3> dealt{};
  for (int i = 0; i < count; ++i) ++dealt[dealer.deal(4_KiB).value().path];
  return dealt;
}

TEST(ExtentDealer, GivesEachPathItsShareOfTheBytes) {
  ExtentDealer all = dealer({1, 1, 4});

  EXPECT_EQ(deal(all, 60), (std::array<int, 3>{10, 10, 40}));
}

TEST(ExtentDealer, RoundsUpToTheBlockAndNeverDealsTwice) {
  ExtentDealer one = dealer({1}, 16_KiB);
  const tiers::Extent first = one.deal(5000_B).value(), second = one.deal(1_B).value();

  EXPECT_EQ(first.length, 8_KiB);
  EXPECT_EQ(second.length, 4_KiB);
  EXPECT_GE(second.offset.value(), 8192u);
  EXPECT_EQ(one.deal(8_KiB).error().code(), ErrorCode::no_space);
  one.give_back(first);
  EXPECT_TRUE(one.deal(8_KiB));
}

TEST(ExtentDealer, DealsFromThePathThatHasRoomWhenAnotherHasNone) {
  const std::array<ExtentDealer::PathRoom, 2> paths = {{{.weight = 9, .capacity = 8_KiB}, {.capacity = 64_KiB}}};
  ExtentDealer two(paths, block);

  EXPECT_EQ(deal(two, 10), (std::array<int, 3>{2, 8, 0}));
}

TEST(ExtentDealer, LowersAWeightAtEachFaultAndEndsThePathsUseAtTheLast) {
  ExtentDealer two = dealer({1, 1});

  EXPECT_FALSE(two.note_fault(0));
  EXPECT_EQ(two.weight(0), 0.5);
  EXPECT_EQ(deal(two, 30), (std::array<int, 3>{10, 20, 0}));
  EXPECT_FALSE(two.note_fault(0));
  EXPECT_TRUE(two.note_fault(0));
  two.take_out_of_use(0);

  EXPECT_EQ(deal(two, 9), (std::array<int, 3>{0, 9, 0}));
  EXPECT_FALSE(two.has_another(1));
  EXPECT_FALSE(two.note_fault(1) || two.note_fault(1) || two.note_fault(1));  // the last one stays
}

TEST(ExtentDealer, DealsWhatIsReservedBeforeAnythingElse) {
  const std::array<ExtentDealer::PathRoom, 2> paths = {
      {{.capacity = 64_KiB, .reserved = 8_KiB}, {.capacity = 64_KiB, .reserved = 32_KiB}}};
  ExtentDealer two(paths, block);

  EXPECT_EQ(deal(two, 10), (std::array<int, 3>{2, 8, 0}));
  EXPECT_EQ(deal(two, 6), (std::array<int, 3>{6, 0, 0}));  // by weight again
}

TEST(ExtentDealer, AvoidsWhatItIsToldToAvoid) {
  ExtentDealer two = dealer({8, 1});

  EXPECT_EQ(two.deal(4_KiB, [](std::uint32_t path) { return path == 0; }).value().path, 1u);
  EXPECT_EQ(two.deal(4_KiB, [](std::uint32_t) { return true; }).error().code(), ErrorCode::no_space);
}

}  // namespace
}  // namespace penstock::swap
