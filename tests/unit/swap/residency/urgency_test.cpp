#include "swap/residency/host_residency.hpp"

#include "unit/swap/residency/residency_fixture.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <vector>

// Which loads and stores go before others, in 64 KiB of memory: those for which a request waits.

namespace penstock::swap {
namespace {

using test::ResidencyFixture;
using tiers::TensorId;

class UrgencyTest : public testing::Test, protected ResidencyFixture {
 protected:
  UrgencyTest() : ResidencyFixture({}) {}

  bool is_urgent(TensorId tensor) {
    const auto found = std::find_if(effects.begin(), effects.end(),
                                    [tensor](const Effect& effect) { return effect.tensor == tensor; });
    EXPECT_NE(found, effects.end()) << "nothing of it is in flight";
    return found != effects.end() && found->urgent;
  }
};

TEST_F(UrgencyTest, IsThatOfALoadThatARequestHasBegun) {
  const TensorId tensor = stored(16_KiB, /*retain=*/false);
  request(tensor, Access::read);
  EXPECT_TRUE(is_urgent(tensor));
}

TEST_F(UrgencyTest, IsNotThatOfWhatIsReadAheadUntilARequestWaitsForIt) {
  const TensorId now = stored(16_KiB, /*retain=*/false), first = stored(16_KiB), second = stored(16_KiB);
  rehearse({now, first, second});
  lease(now, Access::read, Use::recorded);
  residency.advance();
  EXPECT_FALSE(is_urgent(first) || is_urgent(second));

  request(second, Access::read);
  residency.advance();

  EXPECT_FALSE(is_urgent(first));
  EXPECT_TRUE(is_urgent(second));
  EXPECT_EQ(hastened, 1u) << "once for each request";
}

TEST_F(UrgencyTest, IsNotThatOfAStoreBehindUntilARequestWaitsForIt) {
  const TensorId tensor = add(16_KiB, {.write_behind = true}).value();
  const RequestId overwrite = request(tensor, Access::overwrite);
  ASSERT_TRUE(residency.take(overwrite).value());
  residency.release(tensor, Access::overwrite);
  residency.advance();
  EXPECT_FALSE(is_urgent(tensor));

  request(tensor, Access::read);  // it may be read while it is stored
  EXPECT_FALSE(is_urgent(tensor));
  residency.release(tensor, Access::read);
  request(tensor, Access::modify);

  EXPECT_TRUE(is_urgent(tensor));
}

// On another path, which the request waits for as it has for the first one.
TEST(UrgencyOfStores, IsThatOfOneThatIsRepeatedElsewhere) {
  ResidencyFixture of_two(
      {.paths = {{.capacity = 8_MiB, .reserved = 8_MiB}, {.capacity = 8_MiB, .reserved = 8_MiB}}});
  const TensorId tensor = of_two.add(16_KiB, {.write_behind = true}).value();
  of_two.acquire(tensor, Access::overwrite);
  of_two.request(tensor, Access::modify);
  const auto first = of_two.take_effect();
  ASSERT_TRUE(first.urgent);

  of_two.finish(first, Error(ErrorCode::io, "test"));

  const auto second = of_two.take_effect();
  EXPECT_NE(second.place.path, first.place.path);
  EXPECT_TRUE(second.urgent);
}

TEST_F(UrgencyTest, IsThatOfStoresThatMakeRoomForARequest) {
  const TensorId victim = dirty(64_KiB);
  request(add(32_KiB).value(), Access::overwrite);
  EXPECT_TRUE(is_urgent(victim));
}

TEST_F(UrgencyTest, IsThatOfAllStoresWhereARequestLacksRoomUntilTheyEnd) {
  const TensorId one = add(32_KiB, {.write_behind = true}).value(),
                 other = add(32_KiB, {.write_behind = true}).value();
  for (const TensorId tensor : {one, other}) {
    ASSERT_TRUE(residency.take(request(tensor, Access::overwrite)).value());
    residency.release(tensor, Access::overwrite);
  }
  residency.advance();
  EXPECT_FALSE(is_urgent(one) || is_urgent(other));

  request(add(16_KiB).value(), Access::overwrite);
  residency.advance();

  EXPECT_TRUE(is_urgent(one) && is_urgent(other));
  EXPECT_EQ(hastened, 2u) << "once for each store";
}

}  // namespace
}  // namespace penstock::swap
