#include "unit/arguments/bad_arguments.hpp"

#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/tiers/io/sim_disk.hpp>

#include <memory>

namespace penstock::test {
namespace {

using namespace tiers;

/// An engine over a simulated disk with one file, behind a FaultEngine or not.
struct Bench {
  explicit Bench(bool faulty, const FaultPlan& plan = {}) {
    auto simulated = std::make_unique<SimEngine>(disk, clock, 1);
    if (faulty) {
      engine = std::make_unique<FaultEngine>(std::move(simulated), plan, clock);
    } else {
      engine = std::move(simulated);
    }
  }
  [[nodiscard]] IoRequest request() {
    return {.operation = IoOperation::write, .file = file.handle(), .buffer = HostSpan(block.data(), 4_KiB)};
  }
  /// The result of a request.
  [[nodiscard]] std::int64_t result_of(const IoRequest& request) {
    if (engine->submit({&request, 1}) != 1) return -EAGAIN;
    IoCompletion completion;
    for (int i = 0; i < 100; ++i) {
      clock.advance_to(clock.now() + std::chrono::hours(25));
      if (engine->reap({&completion, 1}, TimePoint::min()) == 1) return completion.result;
    }
    return -ETIME;
  }
  [[nodiscard]] std::string works() {
    return expect(result_of(request()) == 4096, "the engine does not work any more");
  }

  SimClock clock;
  SimDisk disk{{.capacity = 1_MiB}};
  File file = disk.create_scratch("d", 64_KiB, DirectIo::off).value();
  struct alignas(4096) Block : std::array<std::byte, 4096> {};
  Block block{};
  std::unique_ptr<IoEngine> engine;
};

void add_request_rows(BadArguments& bad) {
  for (const bool faulty : {false, true}) {
    const auto with = [&bad, faulty](const char* value, auto change) {
      bad(faulty ? "FaultEngine::submit" : "SimEngine::submit", "requests", value, [=] {
        Bench b(faulty);
        IoRequest request = b.request();
        change(request);
        return all({expect(b.result_of(request) < 4096, "it was accepted"), b.works()});
      });
    };
    with("an unknown operation", [](IoRequest& r) { r.operation = unknown<IoOperation>; });
    with("no file", [](IoRequest& r) { r.file = FileHandle::none; });
    with("an unknown file", [](IoRequest& r) { r.file = FileHandle(987654); });
    with("a null buffer, to write", [](IoRequest& r) { r.buffer = HostSpan(nullptr, 4_KiB); });
    with("a null buffer, to read", [](IoRequest& r) {
      r.operation = IoOperation::read;
      r.buffer = HostSpan(nullptr, 4_KiB);
    });
    with("misaligned", [](IoRequest& r) { r.offset = FileOffset(1); });
    with("beyond every file", [](IoRequest& r) { r.offset = FileOffset(most - 4095); });
    with("empty", [](IoRequest& r) { r.buffer = {}; });
    bad(faulty ? "FaultEngine::submit" : "SimEngine::submit", "requests", "none", [=] {
      Bench b(faulty);
      return all({expect(b.engine->submit({}) == 0, "accepted"), b.works()});
    });
    bad(faulty ? "FaultEngine::reap" : "SimEngine::reap", "completions", "none", [=] {
      Bench b(faulty);
      return all({expect(b.engine->reap({}, TimePoint::min()) == 0, "reaped"), b.works()});
    });
    bad(faulty ? "FaultEngine::attach" : "SimEngine::attach", "file and buffers", "none", [=] {
      Bench b(faulty);
      b.engine->attach(FileHandle::none, HostSpan(nullptr, 1_GiB));
      return b.works();
    });
    for (const TimePoint deadline : {TimePoint::min(), TimePoint(-1), TimePoint::max()}) {
      bad(faulty ? "FaultEngine::close" : "SimEngine::close", "deadline", std::to_string(deadline.count()),
          [=] {
            Bench b(faulty);
            const IoRequest request = b.request();
            (void)b.engine->submit({&request, 1});
            return expect(b.engine->close(deadline) && b.engine->submit({&request, 1}) == 0, "not closed");
          });
    }
  }
}

void add_fault_rows(BadArguments& bad) {
  bad("FaultEngine::FaultEngine", "wrapped", "null", [] {
    FaultEngine engine(nullptr, {});
    const IoRequest request;
    engine.wake();
    engine.attach(FileHandle::none, {});
    const bool refuses = engine.submit({&request, 1}) == 0 && engine.reap({}, forever) == 0 &&
                         engine.in_flight() == 0 && engine.limits().depth == 0;
    return expect(refuses && !engine.failure().empty() && engine.close(forever),
                  "not an engine that has failed");
  });
  const auto with = [&bad](const char* function, const char* value, Fault fault) {
    bad(function, function == std::string("FaultEngine::add") ? "fault" : "plan", value, [=] {
      Bench b(true, {fault});
      if (function == std::string("FaultEngine::add")) static_cast<FaultEngine&>(*b.engine).add(fault);
      (void)b.result_of(b.request());
      IoRequest read = b.request();
      read.operation = IoOperation::read;
      (void)b.result_of(read);
      return expect(b.engine->close(b.clock.now() + TimePoint(1)) || b.engine->in_flight() > 0, "not closed");
    });
  };
  for (const char* function : {"FaultEngine::FaultEngine", "FaultEngine::add"}) {
    with(function, "of an unknown operation", {.operation = unknown<IoOperation>});
    with(function, "of an unknown effect", {.effect = unknown<Fault::Effect>});
    with(function, "an occurrence and a count that wrap around", {.occurrence = most, .count = most});
    with(function, "a tear of every byte", {.effect = Fault::Effect::tear, .length = ByteCount(most)});
    with(function, "a shortening to the most", {.effect = Fault::Effect::shorten, .length = ByteCount(most)});
    with(function, "a misdirection before the file",
         {.effect = Fault::Effect::misdirect, .distance = std::numeric_limits<std::int64_t>::min()});
    with(function, "a bit beyond the buffer", {.effect = Fault::Effect::flip_bit, .bit = most});
    with(function, "a delay of the most",
         {.effect = Fault::Effect::delay, .delay = std::chrono::hours(100'000)});
    with(function, "a negative delay", {.effect = Fault::Effect::delay, .delay = TimePoint(-1)});
  }
  bad("Fault::fail", "operation", "unknown", [] {
    Bench b(true, {Fault::fail(unknown<IoOperation>, 0, 5, most)});
    return b.works();
  });
  bad("FaultEngine::accepted", "operation", "unknown",
      [] { return expect(FaultEngine(nullptr, {}).accepted(unknown<IoOperation>) == 0, "not 0"); });
}

void add_disk_rows(BadArguments& bad) {
  const auto with = [&bad](const char* argument, const std::string& value, const SimDisk::Options& options) {
    bad("SimDisk::SimDisk", argument, value, [=] {
      SimClock clock;
      SimDisk disk(options);
      SimEngine engine(disk, clock, 1);
      auto file = disk.create_scratch("d", 4_KiB, DirectIo::off);
      if (!file) return harmless();
      std::array<std::byte, 4096> block{};
      const IoRequest request{.file = file->handle(), .buffer = HostSpan(std::span(block))};
      return expect(engine.submit({&request, 1}) == 1 && engine.next_due() < forever, "no request completes");
    });
  };
  for (const std::uint64_t number : {std::uint64_t{0}, std::uint64_t{1}, most}) {
    with("options.capacity", std::to_string(number), {.capacity = ByteCount(number)});
    with("options.bytes_per_second", std::to_string(number), {.bytes_per_second = number});
    with("options.alignment", std::to_string(number), {.alignment = Alignment(number)});
  }
  for (const TimePoint latency : {TimePoint::min(), TimePoint(-1), TimePoint::max()}) {
    with("options.latency", std::to_string(latency.count()), {.latency = latency});
  }
  for (const std::uint64_t size : {std::uint64_t{1} << 46, std::uint64_t{1} << 63, most}) {
    bad("SimDisk::create_scratch", "size", std::to_string(size) + ", of a disk that has it", [=] {
      if (huge_allocations_end_the_process) return std::string();
      SimDisk disk({.capacity = ByteCount(most)});
      return refused(disk.create_scratch("d", ByteCount(size), DirectIo::off), "", ErrorCode::no_space);
    });
  }
  for (const char* name : {"", ".", "/", "//", "a/../..", "a\nb"}) {
    bad("SimDisk::make_directory", "directory", name, [=] {
      SimDisk disk({});
      disk.make_directory(name);
      disk.make_directory(name);
      return harmless();
    });
  }
  for (const std::uint64_t number : {std::uint64_t{0}, most}) {
    bad("SimDisk::power_cut", "seed", std::to_string(number), [=] {
      Bench b(false);
      b.disk.power_cut(number);
      return fails(b.file.size());
    });
    bad("SimDisk::power_cut_after", "count, seed", std::to_string(number), [=] {
      Bench b(false);
      b.disk.power_cut_after(number, number);
      return expect(b.file.sync().has_value() == (number != 0), "not as asked");
    });
    bad("SimDisk::kill_after", "count, seed", std::to_string(number), [=] {
      Bench b(false);
      b.disk.kill_after(number, number);
      return expect(b.file.sync().has_value() == (number != 0), "not as asked");
    });
    bad("SimDisk::fail_syncs", "count", std::to_string(number), [=] {
      Bench b(false);
      b.disk.fail_syncs(number, number);
      return expect(b.file.sync().has_value() == (number == 0), "not as asked");
    });
  }
  for (const int handle : {-1, 0, 987654, std::numeric_limits<int>::max()}) {
    bad("SimDisk::bytes", "file", std::to_string(handle),
        [=] { return expect(SimDisk({}).bytes(FileHandle(handle)).empty(), "not empty"); });
  }
  for (const std::uint32_t depth : {0u, ~0u}) {
    bad("SimEngine::SimEngine", "depth", std::to_string(depth), [=] {
      SimClock clock;
      SimDisk disk({});
      SimEngine engine(disk, clock, 1, depth);
      const IoRequest request;
      return expect(engine.submit({&request, 1}) == (depth == 0 ? 0u : 1u), "not as its depth says");
    });
  }
  for (const TimePoint when : {TimePoint::min(), TimePoint(-1)}) {
    bad("SimClock::advance_to", "when", std::to_string(when.count()), [=] {
      SimClock clock;
      clock.advance_to(when);
      return expect(clock.now() == TimePoint::zero(), "the clock went back");
    });
  }
  bad("to_string", "choice", "unknown",
      [] { return expect(!to_string(unknown<EngineChoice>).empty(), "no text"); });
}

}  // namespace

void add_simulation_rows(BadArguments& bad) {
  add_request_rows(bad);
  add_fault_rows(bad);
  add_disk_rows(bad);
}

}  // namespace penstock::test
