#include "zero/engine/update_order.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <vector>

namespace penstock::zero {
namespace {

using Flats = std::vector<std::size_t>;

class UpdateOrderTest : public testing::Test {
 protected:
  void begin(std::size_t flats, const std::set<std::size_t>& without_gradient = {}) {
    std::vector<bool> has_gradient(flats, true);
    for (const std::size_t flat : without_gradient) has_gradient[flat] = false;
    order_.begin(has_gradient);
  }
  void add(const Flats& flats) {
    for (const std::size_t flat : flats) order_.add(flat);
  }
  void add_reduced(const Flats& flats) {
    reduced_.insert(flats.begin(), flats.end());
    add(flats);
  }
  /// Updates what can be updated, as the sweep does.
  Flats update() {
    Flats updated;
    while (order_.ahead(0)) {
      order_.keep_first();
      updated.push_back(*order_.ahead(0));
      order_.take_first();
      order_.end(updated.back());
    }
    return updated;
  }
  Flats to_read() {
    Flats flats;
    while (const auto flat = order_.to_read(flats.size())) flats.push_back(*flat);
    return flats;
  }

  std::set<std::size_t> reduced_;
  std::size_t asked_ = 0;
  UpdateOrder order_{[this](std::size_t flat) {
    ++asked_;
    return reduced_.count(flat) > 0;
  }};
};

TEST_F(UpdateOrderTest, IsThatOfTheNextForward) {
  begin(4);
  EXPECT_TRUE(order_.complete());
  add_reduced({3, 1, 0, 2});
  EXPECT_FALSE(order_.complete());
  EXPECT_EQ(order_.ahead(2), 2u);
  EXPECT_EQ(order_.ahead(4), std::nullopt);
  EXPECT_EQ(update(), (Flats{0, 1, 2, 3}));
  EXPECT_TRUE(order_.complete());
}

TEST_F(UpdateOrderTest, HasFlatsWhoseGradientIsReduced) {
  begin(4);
  add({3, 2});
  EXPECT_EQ(update(), Flats{});
  reduced_.insert(3);
  EXPECT_EQ(update(), Flats{3});
  EXPECT_FALSE(order_.complete());
  reduced_.insert({0, 2});  // 0 was not added
  EXPECT_EQ(update(), Flats{2});
  EXPECT_TRUE(order_.complete());
}

TEST_F(UpdateOrderTest, ReducesNoFlatWithoutAGradient) {
  begin(3, /*without_gradient=*/{1});
  add({0, 1});
  EXPECT_EQ(update(), Flats{1});
  EXPECT_TRUE(order_.has_gradient(0));
  EXPECT_FALSE(order_.has_gradient(1));
}

/// In a backward each gradient is of a flat that is needed sooner.
TEST_F(UpdateOrderTest, ChangesUntilTheFirstOneIsKept) {
  begin(8);
  add_reduced({7, 5});
  EXPECT_EQ(order_.ahead(0), 5u);
  EXPECT_EQ(order_.ahead(1), 7u);
  EXPECT_EQ(order_.ahead(2), std::nullopt);
  add_reduced({6, 2});
  EXPECT_EQ(order_.ahead(0), 2u);
  EXPECT_EQ(order_.ahead(2), 6u);
  order_.keep_first();
  add_reduced({3, 1});
  order_.keep_first();  // it does already
  EXPECT_EQ(order_.ahead(0), 2u);
  EXPECT_EQ(order_.ahead(1), 1u);
  EXPECT_EQ(update(), (Flats{2, 1, 3, 5, 6, 7}));
}

TEST_F(UpdateOrderTest, HasNoFlatThatWaitsForItsReduction) {
  begin(3);
  add_reduced({2});
  add({0});
  EXPECT_EQ(order_.ahead(0), 2u);
  EXPECT_EQ(order_.ahead(1), std::nullopt);
  reduced_.insert(0);
  EXPECT_EQ(update(), (Flats{0, 2}));
}

/// In a backward the flats come in reverse order.
TEST_F(UpdateOrderTest, ReadsAheadForGradientsThatComeNext) {
  begin(12, /*without_gradient=*/{7});
  EXPECT_EQ(to_read(), (Flats{11, 10, 9, 8, 6, 5, 4, 3}));
  add_reduced({11, 10});
  add({9});  // its reduction is in flight
  EXPECT_EQ(to_read(), (Flats{10, 11, 9, 8, 6, 5, 4, 3, 2, 1}));
  EXPECT_EQ(update(), (Flats{10, 11}));
  add_reduced({9, 8, 7, 6, 5, 4, 3});
  EXPECT_EQ(order_.ahead(0), 3u);
  EXPECT_EQ(to_read(), (Flats{3, 4, 5, 6, 7, 8, 9, 2, 1, 0}));
}

TEST_F(UpdateOrderTest, GoesOnAfterAnErrorWithWhatWasStopped) {
  begin(6);
  add_reduced({5, 4, 3, 2});
  for (const std::size_t flat : {2u, 3u, 4u}) {
    EXPECT_EQ(order_.ahead(0), flat);
    order_.keep_first();
    order_.take_first();
  }
  order_.end(3);  // 2 and 4 were open
  order_.restart([](std::size_t flat) { return flat == 4; });
  EXPECT_EQ(order_.ahead(0), 4u);
  EXPECT_EQ(order_.ahead(1), 2u);
  EXPECT_EQ(order_.ahead(2), 5u);
  EXPECT_EQ(order_.ahead(3), std::nullopt);
  EXPECT_EQ(update(), (Flats{4, 2, 5}));
  EXPECT_TRUE(order_.complete());
}

TEST_F(UpdateOrderTest, ForgetsTheLastStep) {
  begin(3);
  add_reduced({2, 1});
  EXPECT_EQ(order_.ahead(0), 1u);
  begin(3);
  EXPECT_TRUE(order_.complete());
  EXPECT_EQ(order_.ahead(0), std::nullopt);
  EXPECT_EQ(to_read(), (Flats{2, 1, 0}));
}

/// A decision does not take longer where there are more flats: each is asked for once, beside those in flight.
TEST_F(UpdateOrderTest, AsksAboutFewFlats) {
  constexpr std::size_t count = 100'000;
  begin(count);
  for (std::size_t flat = count; flat-- > 0;) {
    add({flat});  // its reduction is in flight until the next one is added
    EXPECT_EQ(update(), flat + 1 < count ? Flats{flat + 1} : Flats{});
    reduced_.insert(flat);
    ASSERT_TRUE(order_.to_read(4) || flat < 8);
  }
  EXPECT_EQ(update(), Flats{0});
  EXPECT_LE(asked_, 10 * count);
}

}  // namespace
}  // namespace penstock::zero
