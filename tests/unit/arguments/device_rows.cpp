#include "unit/arguments/bad_arguments.hpp"

#include <penstock/tiers/device/host_device.hpp>
#include <penstock/tiers/io/sim_disk.hpp>
#include <penstock/tiers/store/ledger.hpp>
#include <penstock/zero/stream_observer.hpp>

#include <cmath>
#include <memory>
#include <utility>

namespace penstock::test {
namespace {

using namespace tiers;

/// An event of some other device.
class ForeignEvent final : public Event {
 public:
  [[nodiscard]] Result<bool> query() const override { return true; }
};

struct Bench {
  explicit Bench(HostDevice::Mode mode = HostDevice::Mode::eager, HostDevice::Speeds speeds = {})
      : device({.memory = 1_MiB, .mode = mode, .speeds = speeds}) {}
  HostDevice device;
  std::unique_ptr<Stream> stream = device.create_stream().value();
  DeviceSpan span = device.allocate(4096_B).value();
  std::array<std::byte, 4096> host{};

  /// That the device still works.
  [[nodiscard]] std::string works() {
    const HostSpan bytes(std::span{host});
    const bool copied = device.copy_to_device(stream->handle(), bytes, span) && stream->synchronize();
    return expect(copied, "the device does not work any more");
  }
};

void add_copy_rows(BadArguments& bad) {
  const auto with = [&bad](const char* function, const char* argument, const char* value, auto call) {
    bad(function, argument, value, [call] {
      Bench b;
      return all({refused(call(b), ""), b.works()});
    });
  };
  const HostSpan null_host(nullptr, 4096_B);
  const DeviceSpan null_device(DeviceAddress{}, 4096_B);
  const auto host = [](Bench& b) { return HostSpan(std::span(b.host)); };
  with("HostDevice::copy_to_device", "stream", "a default handle",
       [=](Bench& b) { return b.device.copy_to_device({}, host(b), b.span); });
  with("HostDevice::copy_to_device", "from", "null",
       [=](Bench& b) { return b.device.copy_to_device(b.stream->handle(), null_host, b.span); });
  with("HostDevice::copy_to_device", "from", "shorter", [=](Bench& b) {
    return b.device.copy_to_device(b.stream->handle(), host(b).subspan(0_B, 1_B), b.span);
  });
  with("HostDevice::copy_to_device", "to", "null",
       [=](Bench& b) { return b.device.copy_to_device(b.stream->handle(), host(b), null_device); });
  with("HostDevice::copy_to_device", "to", "a default one",
       [=](Bench& b) { return b.device.copy_to_device(b.stream->handle(), host(b), {}); });
  with("HostDevice::copy_to_host", "stream", "a default handle",
       [=](Bench& b) { return b.device.copy_to_host({}, b.span, host(b)); });
  with("HostDevice::copy_to_host", "from", "null",
       [=](Bench& b) { return b.device.copy_to_host(b.stream->handle(), null_device, host(b)); });
  with("HostDevice::copy_to_host", "to", "null",
       [=](Bench& b) { return b.device.copy_to_host(b.stream->handle(), b.span, null_host); });
  with("HostDevice::copy_to_host", "to", "longer", [=](Bench& b) {
    return b.device.copy_to_host(b.stream->handle(), b.span.subspan(0_B, 1_B), host(b));
  });
  with("HostDevice::copy_on_device", "stream", "a default handle",
       [=](Bench& b) { return b.device.copy_on_device({}, b.span, b.span); });
  with("HostDevice::copy_on_device", "from", "null",
       [=](Bench& b) { return b.device.copy_on_device(b.stream->handle(), null_device, b.span); });
  with("HostDevice::copy_on_device", "to", "null",
       [=](Bench& b) { return b.device.copy_on_device(b.stream->handle(), b.span, null_device); });
  with("HostDevice::copy_on_device", "to", "shorter", [=](Bench& b) {
    return b.device.copy_on_device(b.stream->handle(), b.span, b.span.subspan(0_B, 4095_B));
  });
  with("HostDevice::fill_zero", "stream", "a default handle",
       [=](Bench& b) { return b.device.fill_zero({}, b.span); });
  with("HostDevice::fill_zero", "span", "null",
       [=](Bench& b) { return b.device.fill_zero(b.stream->handle(), null_device); });
}

void add_clock_rows(BadArguments& bad) {
  const auto with = [&bad](const char* function, const char* argument, const char* value, auto call) {
    bad(function, argument, value, [call] {
      Bench b;
      const auto clock = b.device.create_clock().value();
      call(*clock, b);
      return all({refused(clock->status(), ""), b.works()});
    });
  };
  with("StreamClock::mark", "stream", "a default handle", [](StreamClock& clock, Bench&) { clock.mark({}); });
  with("StreamClock::passed", "mark", "of none", [](StreamClock& clock, Bench&) { (void)clock.passed(0); });
  with("StreamClock::passed", "mark", "released", [](StreamClock& clock, Bench& b) {
    const StreamClock::Mark mark = clock.mark(b.stream->handle());
    clock.release(mark);
    (void)clock.passed(mark);
  });
  with("StreamClock::release", "mark", "of none", [](StreamClock& clock, Bench&) { clock.release(7); });
  with("StreamClock::release", "mark", "released", [](StreamClock& clock, Bench& b) {
    const StreamClock::Mark mark = clock.mark(b.stream->handle());
    clock.release(mark);
    clock.release(mark);
  });
}

class IgnoringObserver final : public zero::StreamObserver {
 public:
  void begin(StreamHandle, zero::StreamOperation) override {}
  void end(StreamHandle, zero::StreamOperation, ByteCount) override {}
};

void add_observe_rows(BadArguments& bad) {
  const auto observer = std::make_shared<IgnoringObserver>();
  bad("observe", "device", "null",
      [=] { return refused(zero::observe(std::shared_ptr<Device>(), observer), "device"); });
  bad("observe", "compute", "null",
      [=] { return refused(zero::observe(std::shared_ptr<Compute>(), observer), "compute"); });
  bad("observe", "adam", "null",
      [=] { return refused(zero::observe(std::shared_ptr<cpu_adam::DeviceAdam>(), observer), "adam"); });
  bad("observe", "observer", "null", [] {
    return refused(
        zero::observe(std::shared_ptr<Device>(std::make_shared<HostDevice>(HostDevice::Options{})), {}),
        "observer");
  });
}

void add_memory_rows(BadArguments& bad) {
  for (const std::uint64_t size : absurd_counts) {
    bad("HostDevice::allocate", "size", std::to_string(size), [=] {
      Bench b;
      return all({refused(b.device.allocate(ByteCount(size)), "", ErrorCode::budget_too_small), b.works()});
    });
    bad("HostDevice::HostDevice", "options.memory", std::to_string(size), [=] {
      HostDevice device({.memory = ByteCount(size)});
      return expect(device.allocate(4096_B).has_value(), "no memory");
    });
  }
  bad("HostDevice::allocate", "size", "the most, of a device that has it",
      [] { return fails(HostDevice({.memory = ByteCount(most)}).allocate(ByteCount(most))); });
  bad("HostDevice::allocate", "size", "0", [] {
    Bench b;
    b.device.release(b.device.allocate({}).value());
    return b.works();
  });
  for (const double speed : {-1.0, std::nan(""), HUGE_VAL, 1e-300}) {
    bad("HostDevice::HostDevice", "options.speeds", std::to_string(speed), [=] {
      const SimClock clock;
      HostDevice device({.memory = 1_MiB,
                         .mode = HostDevice::Mode::deferred,
                         .speeds = {.copy_to_device = speed},
                         .clock = &clock});
      const auto stream = device.create_stream().value();
      std::array<std::byte, 64> bytes{};
      const DeviceSpan span = device.allocate(64_B).value();
      const bool copied =
          device.copy_to_device(stream->handle(), HostSpan(std::span(bytes)), span) && stream->synchronize();
      return expect(copied, "the copy failed");
    });
  }
  bad("HostDevice::HostDevice", "options.mode", "unknown", [] {
    Bench b(unknown<HostDevice::Mode>);
    return b.works();
  });
  for (const std::uintptr_t address : {std::uintptr_t{0}, std::uintptr_t{4096}, std::uintptr_t{most}}) {
    bad("HostDevice::release", "span", "never allocated, at " + std::to_string(address), [=] {
      Bench b;
      b.device.release(DeviceSpan(DeviceAddress(address), 4096_B));
      return b.works();
    });
  }
  bad("HostDevice::release", "span", "released before", [] {
    Bench b;
    const DeviceSpan other = b.device.allocate(4096_B).value();
    b.device.release(other);
    b.device.release(other);
    return b.works();
  });
  bad("HostDevice::bytes", "span", "a default one",
      [] { return expect(HostDevice::bytes({}).data() == nullptr, "not null"); });
  bad("HostDevice::pin", "memory", "null", [] {
    Bench b;
    return all({expect(b.device.pin(HostSpan(nullptr, 1_GiB)).has_value(), "refused"), b.works()});
  });
  bad("HostDevice::unpin", "memory", "never pinned", [] {
    Bench b;
    b.device.unpin(HostSpan(nullptr, 1_GiB));
    return b.works();
  });
}

void add_stream_rows(BadArguments& bad) {
  const std::pair<HostDevice::Mode, const char*> modes[] = {{HostDevice::Mode::eager, " (eager)"},
                                                            {HostDevice::Mode::deferred, " (deferred)"},
                                                            {HostDevice::Mode::threaded, " (threaded)"}};
  for (const auto& [mode_of, name] : modes) {
    const HostDevice::Mode mode = mode_of;
    const std::string of = name;
    bad("Stream::record", "event", "of another kind of device" + of, [=] {
      Bench b(mode);
      ForeignEvent event;
      return all({refused(b.stream->record(event), "event"), b.works()});
    });
    bad("Stream::wait", "event", "of another kind of device" + of, [=] {
      Bench b(mode);
      return all({refused(b.stream->wait(ForeignEvent()), "event"), b.works()});
    });
    bad("Stream::wait", "event", "never recorded" + of, [=] {
      Bench b(mode);
      const auto event = b.device.create_event().value();
      return all({expect(b.stream->wait(*event).has_value(), "refused"), b.works()});
    });
    bad("HostQueue::enqueue", "operation", "empty" + of, [=] {
      Bench b(mode);
      b.stream->handle().host_queue()->enqueue({});
      return b.works();
    });
    bad("HostQueue::enqueue", "cost", "a resource without a name" + of, [=] {
      Bench b(mode, {.copy_to_device = 1e12, .copy_to_host = 1e12, .compute = 1e12});
      b.stream->handle().host_queue()->enqueue([] {},
                                               {.resource = OperationCost::Resource(9), .bytes = 1_KiB});
      return b.works();
    });
    bad("HostDevice::owns_stream", "stream", "of another device" + of, [=] {
      Bench b(mode), other(mode);
      return all({expect(b.device.owns_stream(*b.stream), "its own is"),
                  expect(!b.device.owns_stream(*other.stream), "it is not")});
    });
    for (const TimePoint duration : {TimePoint(-1), TimePoint::min()}) {
      bad("HostQueue::enqueue", "cost", "a duration of " + std::to_string(duration.count()) + of, [=] {
        Bench b(mode);
        b.stream->handle().host_queue()->enqueue([] {}, {.duration = duration});
        return b.works();
      });
    }
    bad("HostDevice::HostDevice", "the device", "destroyed before its streams and events" + of, [=] {
      auto b = std::make_unique<HostDevice>(HostDevice::Options{.memory = 1_MiB, .mode = mode});
      const auto stream = b->create_stream().value();
      const auto event = b->create_event().value();
      bool ran = false;
      stream->handle().host_queue()->enqueue([&ran] { ran = true; });
      b.reset();
      const bool recorded = stream->record(*event) && stream->synchronize() && event->query().value();
      return expect(ran && recorded, "an operation was lost");
    });
  }
  bad("StreamHandle::from_native", "native", "null",
      [] { return expect(StreamHandle::from_native(nullptr).host_queue() == nullptr, "not null"); });
}

void add_peer_rows(BadArguments& bad) {
  bad("Device::access_peer", "other", "the device itself", [] {
    Bench b;
    return all({expect(b.device.access_peer(b.device).has_value(), "refused"), b.works()});
  });
  bad("Device::access_peer", "other", "a device that was destroyed since", [] {
    Bench b;
    {
      const HostDevice other({.memory = 1_MiB});
      if (!b.device.access_peer(other)) return std::string("refused");
    }
    return b.works();
  });
}

void add_ledger_rows(BadArguments& bad) {
  const auto with = [&bad](const char* function, const char* argument, Tier tier, Purpose purpose,
                           auto call) {
    bad(function, argument, "unknown", [=] {
      Ledger ledger;
      call(ledger, tier, purpose);
      ledger.hold(Tier::host, Purpose::scratch, 1_B);
      return expect(ledger.line(Tier::host, Purpose::scratch).held == 1_B && ledger.peak(Tier::host) == 1_B,
                    "the ledger counts wrong");
    });
  };
  const auto both = [&with](const char* function, auto call) {
    with(function, "tier", unknown<Tier>, Purpose::scratch, call);
    with(function, "purpose", Tier::host, unknown<Purpose>, call);
  };
  both("Ledger::predict", [](Ledger& l, Tier t, Purpose p) { l.predict(t, p, 1_B); });
  both("Ledger::hold", [](Ledger& l, Tier t, Purpose p) { l.hold(t, p, 1_B); });
  both("Ledger::give_back", [](Ledger& l, Tier t, Purpose p) { l.give_back(t, p, 1_B); });
  both("Ledger::line", [](Ledger& l, Tier t, Purpose p) { (void)l.line(t, p); });
  with("Ledger::peak", "tier", unknown<Tier>, {}, [](Ledger& l, Tier t, Purpose) { (void)l.peak(t); });
  const auto of_purpose = [&with](const char* function, auto call) {
    with(function, "purpose", {}, unknown<Purpose>, call);
  };
  of_purpose("Ledger::predict_traffic", [](Ledger& l, Tier, Purpose p) { l.predict_traffic(p, 1_B, 1_B); });
  of_purpose("Ledger::read", [](Ledger& l, Tier, Purpose p) { l.read(p, 1_B); });
  of_purpose("Ledger::wrote", [](Ledger& l, Tier, Purpose p) { l.wrote(p, 1_B); });
  of_purpose("Ledger::traffic", [](Ledger& l, Tier, Purpose p) { (void)l.traffic(p); });
  for (const std::uint64_t bytes : {std::uint64_t{2}, most}) {
    bad("Ledger::give_back", "bytes", std::to_string(bytes) + " of 1", [=] {
      Ledger ledger;
      ledger.hold(Tier::host, Purpose::scratch, 1_B);
      ledger.give_back(Tier::host, Purpose::scratch, ByteCount(bytes));
      return expect(ledger.line(Tier::host, Purpose::scratch).held.is_zero(), "not 0");
    });
  }
}

}  // namespace

void add_device_rows(BadArguments& bad) {
  add_copy_rows(bad);
  add_clock_rows(bad);
  add_observe_rows(bad);
  add_memory_rows(bad);
  add_stream_rows(bad);
  add_peer_rows(bad);
  add_ledger_rows(bad);
}

}  // namespace penstock::test
