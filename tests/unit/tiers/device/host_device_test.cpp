#include <penstock/tiers/device/host_device.hpp>
#include <penstock/tiers/io/sim_disk.hpp>
#include <penstock/tiers/memory/memory_limits.hpp>

#include <gtest/gtest.h>
#include <array>
#include <chrono>
#include <fstream>
#include <latch>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace penstock::tiers {
namespace {

/// Bytes of this process that have pages.
ByteCount resident() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t all = 0, pages = 0;
  statm >> all >> pages;
  return 4_KiB * pages;
}

TEST(HostDevice, AllocatesNoMoreThanItsMemory) {
  HostDevice device({.memory = 8_MiB});

  auto span = device.allocate(6_MiB).value();
  auto more = device.allocate(3_MiB);

  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code(), ErrorCode::budget_too_small);
  device.release(span);
  EXPECT_EQ(device.free_memory(), 8_MiB);
}

TEST(HostDevice, RefusesMoreThanTheMachineHasAvailable) {
  const ByteCount available = memory_limit().available;
  HostDevice device({.memory = available * 2});
  const auto span = device.allocate(available * 2);
  ASSERT_FALSE(span);
  EXPECT_EQ(span.error().code(), ErrorCode::no_space);
  EXPECT_NE(span.error().message().find("penstock.device_budget"), std::string::npos)
      << span.error().message();
  EXPECT_EQ(device.free_memory(), available * 2);
}

TEST(HostDevice, PopulatesALargeAllocation) {
  constexpr ByteCount size = 64_MiB;
  HostDevice device({.memory = size});
  const ByteCount before = resident();
  const auto span = device.allocate(size).value();
  EXPECT_GE(resident(), before + size - 1_MiB);
  device.release(span);
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

TEST(HostDevice, DoesNotTakeAReleasedMarkForTheNextOneOfItsNumber) {
  HostDevice device({.memory = 1_MiB, .mode = HostDevice::Mode::threaded});
  const auto clock = device.create_clock().value();
  const auto one = device.create_stream().value(), other = device.create_stream().value();
  std::latch first(1), second(1);
  one->handle().host_queue()->enqueue([&] { first.wait(); });
  other->handle().host_queue()->enqueue([&] { second.wait(); });
  clock->release(clock->mark(one->handle()));
  const StreamClock::Mark mark = clock->mark(other->handle());

  first.count_down();
  ASSERT_TRUE(one->synchronize());

  EXPECT_FALSE(clock->passed(mark)) << "the other stream is before it";
  second.count_down();
  ASSERT_TRUE(other->synchronize());
  EXPECT_TRUE(clock->passed(mark));
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

/// A deferred device on which a copy of 1 MiB takes 1 s to the device and 2 s to the host, and on which time passes
/// only when nothing else can happen.
class HostDeviceTime : public testing::Test {
 protected:
  static constexpr double mib = 1 << 20;

  TimePoint now() const { return clock_.now(); }
  std::unique_ptr<Stream> stream() { return device_.create_stream().value(); }
  Result<void> copy_in(Stream& stream) {
    return device_.copy_to_device(stream.handle(), HostSpan(std::span(host_)), memory_);
  }
  Result<void> copy_out(Stream& stream) {
    return device_.copy_to_host(stream.handle(), memory_, HostSpan(std::span(host_)));
  }
  /// Returns when everything has run.
  TimePoint run() {
    while (true) {
      while (device_.run_one()) {
      }
      if (device_.next_due() == forever) return now();
      clock_.advance_to(device_.next_due());
    }
  }

  SimClock clock_;
  HostDevice device_{{.memory = 1_MiB,
                      .mode = HostDevice::Mode::deferred,
                      .speeds = {.copy_to_device = mib, .copy_to_host = mib / 2, .compute = mib * 8},
                      .clock = &clock_}};
  const DeviceSpan memory_ = device_.allocate(1_MiB).value();
  std::vector<std::byte> host_ = std::vector<std::byte>(1 << 20);
};

TEST_F(HostDeviceTime, PassesBeforeAnOperationTakesEffect) {
  const auto stream = this->stream();
  const auto event = device_.create_event().value();
  host_[7] = std::byte{9};
  ASSERT_TRUE(copy_in(*stream));
  ASSERT_TRUE(stream->record(*event));

  EXPECT_FALSE(device_.run_one());
  EXPECT_EQ(device_.next_due(), std::chrono::seconds(1));
  EXPECT_NE(HostDevice::bytes(memory_).data()[7], std::byte{9});
  EXPECT_FALSE(event->query().value());

  clock_.advance_to(std::chrono::seconds(1));
  while (device_.run_one()) {
  }
  EXPECT_EQ(HostDevice::bytes(memory_).data()[7], std::byte{9});
  EXPECT_TRUE(event->query().value());
  EXPECT_EQ(device_.next_due(), forever);
}

TEST_F(HostDeviceTime, IsThatOfOneOperationWhereStreamsUseDifferentResources) {
  const auto a = stream(), b = stream(), c = stream();
  ASSERT_TRUE(copy_in(*a));
  ASSERT_TRUE(copy_out(*b));
  c->handle().host_queue()->enqueue([] {}, {.duration = std::chrono::milliseconds(1500)});

  EXPECT_EQ(run(), std::chrono::seconds(2));
}

TEST_F(HostDeviceTime, AddsUpWhereStreamsUseOneResource) {
  const auto a = stream(), b = stream();
  ASSERT_TRUE(copy_in(*a));
  ASSERT_TRUE(copy_in(*b));

  EXPECT_EQ(run(), std::chrono::seconds(2));
}

TEST_F(HostDeviceTime, AddsUpWhereAnEventOrdersStreams) {
  const auto a = stream(), b = stream();
  const auto event = device_.create_event().value();
  ASSERT_TRUE(copy_in(*a));
  ASSERT_TRUE(a->record(*event));
  ASSERT_TRUE(b->wait(*event));
  ASSERT_TRUE(copy_out(*b));

  EXPECT_EQ(run(), std::chrono::seconds(3));
}

TEST_F(HostDeviceTime, CountsTheBytesOfFillsAndOfCopiesOnTheDevice) {
  const auto stream = this->stream();
  const DeviceSpan from = memory_.subspan(0_KiB, 512_KiB), to = memory_.subspan(512_KiB, 512_KiB);
  ASSERT_TRUE(device_.fill_zero(stream->handle(), memory_));        // 1/8 s
  ASSERT_TRUE(device_.copy_on_device(stream->handle(), from, to));  // reads and writes: 1/8 s

  EXPECT_EQ(run(), std::chrono::milliseconds(250));
}

TEST_F(HostDeviceTime, DoesNotBlockAThreadThatWaits) {
  const auto stream = this->stream();
  const auto event = device_.create_event().value();
  ASSERT_TRUE(copy_in(*stream));
  ASSERT_TRUE(stream->record(*event));

  EXPECT_TRUE(stream->synchronize());
  EXPECT_TRUE(event->query().value());
  EXPECT_EQ(now(), TimePoint::zero());
}

TEST(HostDevice, RefusesAnEagerStreamThatIsToWaitForAThread) {
  HostDevice eager({.memory = 1_MiB}), threaded({.memory = 1_MiB, .mode = HostDevice::Mode::threaded});
  const auto waiting = eager.create_stream().value(), late = threaded.create_stream().value();
  const auto event = threaded.create_event().value();
  std::latch proceed(1);
  late->handle().host_queue()->enqueue([&] { proceed.wait(); });
  late->record(*event).value();

  const auto refused = waiting->wait(*event);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  proceed.count_down();
  late->synchronize().value();
  EXPECT_TRUE(waiting->wait(*event));
}

TEST(HostDeviceThreads, TakeNoTimeAnyMoreOnceTheDeviceEnds) {
  auto device = std::make_unique<HostDevice>(HostDevice::Options{
      .memory = 1_MiB, .mode = HostDevice::Mode::threaded, .speeds = {.compute = 1e-300}});
  const auto stream = device->create_stream().value();
  int ran = 0;
  for (int i = 0; i < 3; ++i) stream->handle().host_queue()->enqueue([&] { ++ran; }, {.bytes = 1_MiB});
  device.reset();  // each would take a year
  EXPECT_EQ(ran, 3);
}

TEST(HostDeviceThreads, RunEachStreamByItself) {
  HostDevice device({.memory = 1_MiB, .mode = HostDevice::Mode::threaded});
  const auto a = device.create_stream().value(), b = device.create_stream().value();
  std::latch both(2);
  for (Stream* const stream : {a.get(), b.get()}) {
    stream->handle().host_queue()->enqueue([&both] { both.arrive_and_wait(); });
  }

  EXPECT_TRUE(a->synchronize());
  EXPECT_TRUE(b->synchronize());
}

TEST(HostDeviceThreads, KeepTheOrderOfEvents) {
  HostDevice device({.memory = 1_MiB, .mode = HostDevice::Mode::threaded});
  const auto a = device.create_stream().value(), b = device.create_stream().value();
  const auto event = device.create_event().value();
  int value = 0;
  for (int i = 1; i <= 100; ++i) {
    Stream& writer = i % 2 == 0 ? *a : *b;
    ASSERT_TRUE(writer.wait(*event));
    writer.handle().host_queue()->enqueue([&value, i] { value = value == i - 1 ? i : -1000; });
    ASSERT_TRUE(writer.record(*event));
  }

  EXPECT_TRUE(a->synchronize());  // which has run the last one
  EXPECT_EQ(value, 100);
}

TEST(HostDeviceThreads, RunEverythingBeforeTheirStreamIsDestroyed) {
  HostDevice device({.memory = 1_MiB, .mode = HostDevice::Mode::threaded, .speeds = {.compute = 1e9}});
  int ran = 0;
  {
    const auto stream = device.create_stream().value();
    for (int i = 0; i < 20; ++i) stream->handle().host_queue()->enqueue([&ran] { ++ran; }, {.bytes = 1_KiB});
  }
  EXPECT_EQ(ran, 20);
}

}  // namespace
}  // namespace penstock::tiers
