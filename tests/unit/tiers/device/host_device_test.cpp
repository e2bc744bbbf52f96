#include <penstock/tiers/device/host_device.hpp>

#include <gtest/gtest.h>
#include <set>

namespace penstock::tiers {
namespace {

TEST(HostDevice, AllocatesNoMoreThanItsMemory) {
  HostDevice device({.memory = 8_MiB});

  auto span = device.allocate(6_MiB).value();
  auto more = device.allocate(3_MiB);

  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code(), ErrorCode::budget_too_small);
  device.release(span);
  EXPECT_EQ(device.free_memory(), 8_MiB);
}

TEST(HostDevice, RunsAnEagerStreamAtOnce) {
  HostDevice device({.memory = 4_MiB});
  auto stream = device.create_stream().value();
  int ran = 0;

  stream->handle().host_queue()->enqueue([&] { ++ran; });

  EXPECT_EQ(ran, 1);
}

TEST(HostDevice, DefersUntilAThreadWaitsAndKeepsTheOrderOfEvents) {
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    HostDevice device({.memory = 4_MiB, .mode = HostDevice::Mode::deferred, .seed = seed});
    auto a = device.create_stream().value(), b = device.create_stream().value();
    auto event = device.create_event().value();
    std::string order;
    a->handle().host_queue()->enqueue([&] { order += '1'; });
    ASSERT_TRUE(a->record(*event));
    a->handle().host_queue()->enqueue([&] { order += '2'; });
    b->handle().host_queue()->enqueue([&] { order += 'x'; });
    ASSERT_TRUE(b->wait(*event));
    b->handle().host_queue()->enqueue([&] { order += 'y'; });
    EXPECT_EQ(order, "");
    EXPECT_FALSE(event->query().value());

    ASSERT_TRUE(b->synchronize());
    ASSERT_TRUE(a->synchronize());

    EXPECT_LT(order.find('1'), order.find('2'));
    EXPECT_LT(order.find('x'), order.find('y'));
    EXPECT_LT(order.find('1'), order.find('y')) << "seed " << seed;
    orders.insert(order);
  }
  EXPECT_GE(orders.size(), 4u);  // the seed does choose
}

TEST(HostDevice, CopiesBothWays) {
  HostDevice device({.memory = 4_MiB});
  auto stream = device.create_stream().value();
  auto span = device.allocate(16_B).value();
  std::array<float, 4> in = {1, 2, 3, 4}, out{};

  ASSERT_TRUE(device.copy_to_device(stream->handle(), ConstHostSpan(std::span(in)), span));
  ASSERT_TRUE(device.copy_to_host(stream->handle(), span, HostSpan(std::span(out))));
  EXPECT_FALSE(device.copy_to_host(stream->handle(), span, HostSpan(std::span(out)).subspan(0_B, 4_B)));

  EXPECT_EQ(in, out);
  device.release(span);
}

}  // namespace
}  // namespace penstock::tiers
