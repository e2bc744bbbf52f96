#include <penstock/tiers/device/host_device.hpp>
#include <penstock/tiers/io/sim_disk.hpp>
#if PENSTOCK_TEST_CUDA
#include "tiers/device/cuda_device.hpp"
#endif

#include "kit/pattern.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace penstock::tiers {
namespace {

using test::Pattern;

struct MadeDevice {
  std::unique_ptr<Device> device;
  std::string skip_reason;
};
struct Kind {
  const char* name;
  MadeDevice (*make)();
};
void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

#if PENSTOCK_TEST_CUDA
MadeDevice cuda() {
  auto device = create_cuda_device(0);
  if (!device) return {nullptr, device.error().message()};
  return {std::move(*device), {}};
}
constexpr Kind kinds[] = {{"Cuda", &cuda}};
#else
MadeDevice eager() {
  return {std::make_unique<HostDevice>(HostDevice::Options{.memory = 64_MiB}), {}};
}
MadeDevice deferred() {
  return {std::make_unique<HostDevice>(
              HostDevice::Options{.memory = 64_MiB, .mode = HostDevice::Mode::deferred, .seed = 3}),
          {}};
}
MadeDevice timed() {
  static const SimClock stands_still;  // a thread that waits does not wait for it
  return {std::make_unique<HostDevice>(
              HostDevice::Options{.memory = 64_MiB,
                                  .mode = HostDevice::Mode::deferred,
                                  .seed = 3,
                                  .speeds = {.copy_to_device = 1e6, .copy_to_host = 2e6, .compute = 3e6},
                                  .clock = &stands_still}),
          {}};
}
MadeDevice threaded() {
  return {
      std::make_unique<HostDevice>(HostDevice::Options{.memory = 64_MiB, .mode = HostDevice::Mode::threaded}),
      {}};
}
constexpr Kind kinds[] = {{"HostEager", &eager},
                          {"HostDeferred", &deferred},
                          {"HostDeferredTimed", &timed},
                          {"HostThreaded", &threaded}};
#endif

class DeviceConformance : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    made_ = GetParam().make();
    if (!made_.device) GTEST_SKIP() << made_.skip_reason;
  }
  Device& device() { return *made_.device; }
  std::vector<std::byte> pattern(std::size_t size, std::uint64_t tensor) {
    std::vector<std::byte> bytes(size);
    Pattern{.tensor = tensor}.fill(HostSpan(std::span(bytes)));
    return bytes;
  }

  MadeDevice made_;
};

TEST_P(DeviceConformance, CopiesThereAcrossAndBack) {
  auto stream = device().create_stream().value();
  for (const std::size_t size : {0u, 1u, 255u, 4097u, 3u << 20}) {
    if (size == 0) {
      EXPECT_TRUE(device().copy_to_device(stream->handle(), {}, {}));
      continue;
    }
    const DeviceSpan a = device().allocate(ByteCount(size)).value(),
                     b = device().allocate(ByteCount(size)).value();
    const auto out = pattern(size, 5);
    std::vector<std::byte> in(size);

    ASSERT_TRUE(device().copy_to_device(stream->handle(), ConstHostSpan(std::span(out)), a));
    ASSERT_TRUE(device().fill_zero(stream->handle(), b));
    ASSERT_TRUE(device().copy_on_device(stream->handle(), a, b));
    ASSERT_TRUE(device().copy_to_host(stream->handle(), b, HostSpan(std::span(in))));
    ASSERT_TRUE(stream->synchronize());

    EXPECT_EQ(in, out);
    device().release(a);
    device().release(b);
  }
}

TEST_P(DeviceConformance, OrdersStreamsByEvents) {
  auto first = device().create_stream().value(), second = device().create_stream().value();
  auto event = device().create_event().value();
  const DeviceSpan span = device().allocate(1_MiB).value();
  const auto old = pattern(1 << 20, 1), fresh = pattern(1 << 20, 2);
  std::vector<std::byte> in(1 << 20);
  ASSERT_TRUE(device().copy_to_device(first->handle(), ConstHostSpan(std::span(old)), span));

  ASSERT_TRUE(device().copy_to_device(first->handle(), ConstHostSpan(std::span(fresh)), span));
  ASSERT_TRUE(first->record(*event));
  ASSERT_TRUE(second->wait(*event));
  ASSERT_TRUE(device().copy_to_host(second->handle(), span, HostSpan(std::span(in))));
  ASSERT_TRUE(second->synchronize());

  EXPECT_EQ(in, fresh);
  EXPECT_TRUE(event->query().value());
  device().release(span);
}

TEST_P(DeviceConformance, TakesAnEventThatWasNeverRecordedAsPassed) {
  auto stream = device().create_stream().value();
  auto event = device().create_event().value();

  EXPECT_TRUE(event->query().value());
  EXPECT_TRUE(stream->wait(*event));
  EXPECT_TRUE(stream->synchronize());
}

TEST_P(DeviceConformance, TellsWhenStreamsPassMarks) {
  const TimePoint created = Clock::steady().now();
  const auto clock = device().create_clock().value();
  // A clock compares itself with the host's when it is created: its times are as exact as that is short.
  const TimePoint tolerance =
      std::min<TimePoint>(Clock::steady().now() - created, std::chrono::milliseconds(50)) +
      std::chrono::milliseconds(1);
  const auto one = device().create_stream().value(), other = device().create_stream().value();
  const DeviceSpan span = device().allocate(4096_B).value();
  // Marks that are released before their stream has passed them do not disturb those that have their numbers next.
  clock->release(clock->mark(one->handle()));
  const StreamClock::Mark before = clock->mark(other->handle());
  ASSERT_TRUE(device().fill_zero(other->handle(), span));
  const StreamClock::Mark after = clock->mark(other->handle());

  ASSERT_TRUE(one->synchronize());
  ASSERT_TRUE(other->synchronize());

  const auto first = clock->passed(before), last = clock->passed(after);
  ASSERT_TRUE(first && last);
  EXPECT_GE(*first, created - tolerance);
  EXPECT_LE(*first, *last);
  EXPECT_LE(*last, Clock::steady().now() + tolerance);
  EXPECT_TRUE(clock->status());
  device().release(span);
}

TEST_P(DeviceConformance, RefusesCopiesOfUnequalLength) {
  auto stream = device().create_stream().value();
  const DeviceSpan span = device().allocate(4_KiB).value();
  std::vector<std::byte> bytes(100);

  EXPECT_EQ(device().copy_to_device(stream->handle(), ConstHostSpan(std::span(bytes)), span).error().code(),
            ErrorCode::invalid_argument);
  device().release(span);
}

TEST_P(DeviceConformance, SaysHowMuchIsFreeWhenItHasTooLittle) {
  auto refused = device().allocate(ByteCount(1ull << 50));

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::budget_too_small);
  EXPECT_NE(refused.error().message().find("free"), std::string::npos);
}

TEST_P(DeviceConformance, WaitsForTheRecordThatAnEventHadWhateverStreamRecordsItLater) {
  auto first = device().create_stream().value(), second = device().create_stream().value(),
       waits = device().create_stream().value();
  const auto event = device().create_event().value();
  const DeviceSpan a = device().allocate(1_MiB).value(), b = device().allocate(1_MiB).value();
  const auto out = pattern(1 << 20, 6);
  std::vector<std::byte> in(1 << 20);
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(device().fill_zero(first->handle(), a));
    ASSERT_TRUE(device().copy_to_device(first->handle(), ConstHostSpan(std::span(out)), a));
    ASSERT_TRUE(first->record(*event));
    ASSERT_TRUE(waits->wait(*event));
    ASSERT_TRUE(second->record(*event));  // may pass before
    ASSERT_TRUE(device().copy_on_device(waits->handle(), a, b));
    ASSERT_TRUE(device().copy_to_host(waits->handle(), b, HostSpan(std::span(in))));

    ASSERT_TRUE(waits->synchronize());

    ASSERT_EQ(in, out) << round;
    std::fill(in.begin(), in.end(), std::byte{});
  }
  ASSERT_TRUE(first->synchronize());
  for (const DeviceSpan span : {a, b}) device().release(span);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceConformance, testing::ValuesIn(kinds),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace penstock::tiers
