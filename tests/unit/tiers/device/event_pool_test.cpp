#include "tiers/device/event_pool.hpp"

#include "kit/counting_device.hpp"

#include <penstock/tiers/device/host_device.hpp>

#include <gtest/gtest.h>
#include <memory>
#include <string>

namespace penstock::tiers {
namespace {

TEST(EventPool, UsesAnEventAgainWhoseFenceIsGoneWithoutChangingWhatTheFenceSaid) {
  HostDevice device({.memory = 1_MiB, .mode = HostDevice::Mode::deferred});
  const auto stream = device.create_stream().value(), other = device.create_stream().value(),
             waits = device.create_stream().value();
  EventPool pool(device);
  std::string order;
  const auto enqueue = [&](Stream& on, char name) {
    on.handle().host_queue()->enqueue([&order, name] { order += name; });
  };
  const Event* event = nullptr;
  {
    enqueue(*stream, 'a');
    const Fence first = pool.record(*stream).value(), second = pool.record(*stream).value();
    EXPECT_NE(first, second);
    event = first.get();
    ASSERT_TRUE(waits->wait(*first));
    enqueue(*waits, 'b');
  }
  const Fence again = pool.record(*other).value(), more = pool.record(*other).value();
  EXPECT_TRUE(again.get() == event || more.get() == event);

  ASSERT_TRUE(waits->synchronize());

  EXPECT_EQ(order, "ab");
}

TEST(EventPool, CreatesNoEventForFencesThatItHasReserved) {
  penstock::test::CountingDevice device(std::make_unique<HostDevice>(HostDevice::Options{.memory = 1_MiB}));
  const auto stream = device.create_stream().value();
  EventPool pool(device);
  ASSERT_TRUE(pool.reserve(3));
  const auto created = device.calls().counts().events;
  for (int turn = 0; turn < 5; ++turn) {
    const Fence first = pool.record(*stream).value(), second = pool.record(*stream).value(),
                third = pool.record(*stream).value();
    EXPECT_EQ(device.calls().counts().events, created);
  }
}

TEST(EventPool, MayBeDestroyedBeforeItsFences) {
  HostDevice device({.memory = 1_MiB});
  const auto stream = device.create_stream().value();
  Fence fence;
  {
    EventPool pool(device);
    fence = pool.record(*stream).value();
  }
  EXPECT_TRUE(fence->query().value());
}

}  // namespace
}  // namespace penstock::tiers
