#include "unit/arguments/bad_arguments.hpp"

#include "kit/scratch_directory.hpp"

#include <penstock/swap/disk_benchmark.hpp>
#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/tiers/io/sim_disk.hpp>

#include <memory>
#include <utility>

namespace penstock::test {
namespace {

using namespace swap;
using tiers::TensorId;

/// A runtime with a tensor on disk, which has contents, and the id of one that was removed.
struct Bench {
  Bench() {
    runtime =
        Runtime::create({.host_budget = 64_KiB, .paths = {{.directory = scratch.path(), .capacity = 1_MiB}}})
            .value();
    tensor = runtime->add({.name = "tensor", .key = {.unit = 1}, .size = 4_KiB}, true).value();
    runtime->acquire(tensor, Access::overwrite).value().end();
    removed = runtime->add({.name = "removed", .key = {.unit = 2}, .size = 4_KiB}, true).value();
    runtime->remove(removed).value();
    recycled = runtime->add({.name = "recycled", .key = {.unit = 3}, .size = 4_KiB}, true).value();
  }
  [[nodiscard]] std::string works() const {
    return expect(
        runtime->acquire(tensor, Access::read).has_value() && runtime->describe(recycled).name == "recycled",
        "the runtime does not work any more");
  }
  ScratchDirectory scratch;
  std::unique_ptr<Runtime> runtime;
  TensorId tensor{}, removed{}, recycled{};
};

void add_tensor_rows(BadArguments& bad) {
  constexpr std::uint64_t removed = 1;
  for (const std::uint64_t id :
       {std::uint64_t{0}, removed, std::uint64_t{77}, std::uint64_t{1} << 40, most}) {
    const auto with = [&bad, id](const char* function, auto call) {
      bad(function, "tensor", id == removed ? "removed, its place taken by another" : std::to_string(id),
          [=] {
            const Bench b;
            return all({call(*b.runtime, id == removed ? b.removed : TensorId(id)), b.works()});
          });
    };
    constexpr const char* none = "no such tensor";
    with("Runtime::remove", [](Runtime& r, TensorId t) { return refused(r.remove(t), none); });
    with("Runtime::discard", [](Runtime& r, TensorId t) { return refused(r.discard(t), none); });
    with("Runtime::prefetch", [](Runtime& r, TensorId t) { return refused(r.prefetch(t), none); });
    with("Runtime::pin_extent", [](Runtime& r, TensorId t) { return refused(r.pin_extent(t, 1), none); });
    with("Runtime::acquire",
         [](Runtime& r, TensorId t) { return refused(r.acquire(t, Access::read), none); });
    with("Runtime::request",
         [](Runtime& r, TensorId t) { return refused(r.request(t, Access::read).poll().value(), none); });
    with("Runtime::announce", [](Runtime& r, TensorId t) {
      auto pending = r.announce(t, Access::read);
      pending.ask();
      return refused(pending.poll().value(), none);
    });
    with("Runtime::describe",
         [](Runtime& r, TensorId t) { return expect(r.describe(t).name.empty(), "a tensor"); });
    with("Runtime::name", [](Runtime& r, TensorId t) { return expect(r.name(t).empty(), "a name"); });
    with("Runtime::in_memory", [](Runtime& r, TensorId t) { return expect(!r.in_memory(t), "in memory"); });
  }
}

void add_memory_rows(BadArguments& bad) {
  bad("Runtime::limit_memory", "most", "0", [] {
    const Bench b;
    return all({refused(b.runtime->limit_memory(0_B), "tensor", ErrorCode::budget_too_small), b.works()});
  });
  bad("Runtime::limit_memory", "most", "the most", [] {
    const Bench b;
    return all({expect(b.runtime->limit_memory(ByteCount(most)).value() == 64_KiB, "not all"), b.works()});
  });
  bad("Runtime::stall_time", "cause", "unknown", [] {
    const Bench b;
    return expect(b.runtime->stall_time(unknown<StallCause>) == TimePoint(), "a time");
  });
}

void add_description_rows(BadArguments& bad) {
  const auto with = [&bad](const std::string& argument, const std::string& value, auto change) {
    for (const bool on_disk : {false, true}) {
      bad("Runtime::add", argument, value + (on_disk ? " (on disk)" : ""), [=] {
        const Bench b;
        tiers::TensorDescription description{.name = "new", .key = {.unit = 9}, .size = 4_KiB};
        change(description);
        return all({fails(b.runtime->add(description, on_disk)), b.works()});
      });
    }
  };
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{1} << 17, std::uint64_t{1} << 63, most}) {
    with("size", std::to_string(size), [=](tiers::TensorDescription& d) { d.size = ByteCount(size); });
  }
  with("block", "0", [](tiers::TensorDescription& d) { d.block = {}; });
  with("extent", "set", [](tiers::TensorDescription& d) { d.extent = tiers::Extent{.length = 4_KiB}; });
  with("key", "one of another tensor", [](tiers::TensorDescription& d) { d.key = {.unit = 1}; });
  bad("Runtime::add", "block", "the most", [] {
    const Bench b;
    return expect(
        b.runtime->add({.name = "n", .key = {.unit = 9}, .size = 1_KiB, .block = ByteCount(most)}, true)
            .has_value(),
        "refused");
  });
  bad("Runtime::add", "purpose and role", "unknown", [] {
    const Bench b;
    const auto key = tiers::TensorKey{.unit = 9, .role = unknown<tiers::Purpose>};
    const auto added =
        b.runtime->add({.name = "n", .key = key, .purpose = unknown<tiers::Purpose>, .size = 1_KiB}, true);
    return all({expect(added && b.runtime->remove(*added), "not added and removed"), b.works()});
  });
  for (const std::string& name : {std::string(), std::string("a\0b\n", 4), std::string(100'000, 'x')}) {
    bad("Runtime::add", "name", "of " + std::to_string(name.size()) + " bytes", [=] {
      const Bench b;
      const auto added = b.runtime->add({.name = name, .key = {.unit = 9}, .size = 1_KiB}, false);
      return expect(added && b.runtime->name(*added) == name, "not kept");
    });
  }
  bad("to_string", "key", "an unknown role", [] {
    return expect(!to_string(tiers::TensorKey{.role = unknown<tiers::Purpose>}).empty(), "no text");
  });
}

void add_call_rows(BadArguments& bad) {
  bad("Runtime::acquire", "access", "a read of what was never written", [] {
    const Bench b;
    return all({refused(b.runtime->acquire(b.recycled, Access::read), ""), b.works()});
  });
  bad("Runtime::acquire", "access", "excluded by a lease of this thread", [] {
    const Bench b;
    auto lease = b.runtime->acquire(b.tensor, Access::modify).value();
    const std::string complaint = refused(b.runtime->acquire(b.tensor, Access::read), "lease");
    lease.end();
    return all({complaint, b.works()});
  });
  bad("Runtime::pin_extent", "tensor", "never stored, with the advice to add it with write_behind", [] {
    const Bench b;
    return all({refused(b.runtime->pin_extent(b.tensor, 1), "write_behind"), b.works()});
  });
  bad("Runtime::pin_extent", "generation", "2^63, an engine's", [] {
    const Bench b;
    return all({refused(b.runtime->pin_extent(b.tensor, std::uint64_t{1} << 63), "generation"), b.works()});
  });
  bad("Runtime::release_generation", "generation", "unknown", [] {
    const Bench b;
    b.runtime->release_generation(most);
    return b.works();
  });
  for (const std::size_t count : {std::size_t{0}, ~std::size_t{0}}) {
    bad("Runtime::wait_for_stores", "count", std::to_string(count), [=] {
      const Bench b;
      b.runtime->wait_for_stores(count);
      return b.works();
    });
  }
  for (const std::uint32_t path : {1u, ~0u}) {
    bad("Runtime::tensors_on_path", "path", std::to_string(path), [=] {
      const Bench b;
      return expect(b.runtime->tensors_on_path(path).empty(), "tensors");
    });
  }
  bad("Lease::end", "the lease", "a default one, moved from, and ended twice", [] {
    const Bench b;
    Lease none;
    none.end();
    Lease lease = b.runtime->acquire(b.tensor, Access::modify).value();
    Lease kept = std::move(lease);
    lease.end();
    kept.end();
    kept.end();
    return all({expect(none.bytes().empty() && !none.held(), "a lease"), b.works()});
  });
  bad("PendingLease::poll", "the request", "a default one and moved from", [] {
    const Bench b;
    PendingLease none, pending = b.runtime->request(b.tensor, Access::read);
    const PendingLease kept = std::move(pending);
    for (PendingLease* wrong : {&none, &pending}) {
      wrong->ask();
      if (wrong->poll() || wrong->pending()) return std::string("a lease");
      wrong->cancel();
    }
    return harmless();
  });
  bad("to_string", "eviction", "unknown",
      [] { return expect(!to_string(unknown<Eviction>).empty(), "no text"); });
}

/// A path that works, changed.
using ChangePath = std::function<void(PathOptions&)>;

void add_path_rows(BadArguments& bad) {
  const auto with = [&bad](const std::string& argument, const std::string& value, const ChangePath& change) {
    const auto wrong_path = [change](const ScratchDirectory& scratch) {
      PathOptions path{.directory = scratch.path(), .capacity = 1_MiB};
      change(path);
      return path;
    };
    bad("probe_path", "options." + argument, value, [=] {
      const ScratchDirectory scratch;
      return all(
          {fails(probe_path(wrong_path(scratch))), expect(scratch.entry_count() == 0, "a file was left")});
    });
    bad("Runtime::create", "options.paths." + argument, value, [=] {
      const ScratchDirectory scratch;
      return fails(Runtime::create({.host_budget = 64_KiB, .paths = {wrong_path(scratch)}}));
    });
    if (argument == "capacity" || argument == "reserved") return;  // swap_need replaces them
    bad("Runtime::create", "options.paths." + argument, value + ", beside another path and with a swap_need",
        [=] {
          const ScratchDirectory scratch;
          return fails(Runtime::create({.host_budget = 64_KiB,
                                        .paths = {wrong_path(scratch), wrong_path(scratch)},
                                        .swap_need = {.total = 1_MiB, .tensor_max = 64_KiB}}));
        });
  };
  for (const char* directory : {"", "/penstock-none", "/dev/null", "/proc", "a\nb"}) {
    with("directory", directory, [=](PathOptions& p) { p.directory = directory; });
  }
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1} << 60, std::uint64_t{1} << 63, most}) {
    with("capacity", std::to_string(bytes), [=](PathOptions& p) { p.capacity = ByteCount(bytes); });
  }
  with("reserved", "more than the capacity", [](PathOptions& p) { p.reserved = 2_MiB; });
  for (const double weight : {-1.0, static_cast<double>(nan), static_cast<double>(infinity)}) {
    with("weight", std::to_string(weight), [=](PathOptions& p) { p.weight = weight; });
  }
  for (const std::uint64_t bytes : {0u, 1u, 4095u}) {
    with("request_max", std::to_string(bytes), [=](PathOptions& p) {
      p.request_max = ByteCount(bytes);
      p.direct_io = tiers::DirectIo::preferred;
      p.file_system = [] {
        static tiers::SimDisk disk({});
        return &disk;
      }();
    });
  }
  for (const TimePoint deadline : {TimePoint::min(), TimePoint(-1), TimePoint(0)}) {
    with("deadline", std::to_string(deadline.count()), [=](PathOptions& p) { p.deadline = deadline; });
  }
  with("clock", "null", [](PathOptions& p) { p.clock = nullptr; });
  with("file_system", "null", [](PathOptions& p) { p.file_system = nullptr; });
  with("direct_io", "unknown", [](PathOptions& p) { p.direct_io = unknown<tiers::DirectIo>; });
  with("engine", "unknown", [](PathOptions& p) { p.engine = unknown<tiers::EngineChoice>; });
  with("make_engine", "one that makes none", [](PathOptions& p) {
    p.make_engine = [](const auto&) { return std::unique_ptr<tiers::IoEngine>(); };
  });
  with("decorate", "one that returns none",
       [](PathOptions& p) { p.decorate = [](auto) { return std::unique_ptr<tiers::IoEngine>(); }; });
  with("decorate", "one that wraps none", [](PathOptions& p) {
    p.decorate = [](auto) { return std::make_unique<tiers::FaultEngine>(nullptr, tiers::FaultPlan()); };
  });
  with("make_engine", "one whose engine accepts no request", [](PathOptions& p) {
    p.make_engine = [](const auto&) -> Result<std::unique_ptr<tiers::IoEngine>> {
      static tiers::SimDisk disk({});
      static tiers::SimClock clock;
      return std::make_unique<tiers::SimEngine>(disk, clock, 1, 0);
    };
  });
}

void add_create_rows(BadArguments& bad) {
  for (const std::uint64_t budget : {std::uint64_t{1} << 50, std::uint64_t{1} << 63, most}) {
    bad("Runtime::create", "options.host_budget", std::to_string(budget), [=] {
      return refused(Runtime::create({.host_budget = ByteCount(budget)}), "", ErrorCode::no_space);
    });
  }
  bad("Runtime::create", "options.host_budget", "0", [] {
    const auto runtime = Runtime::create({}).value();
    return refused(runtime->add({.name = "t", .size = 1_B}, false), "t", ErrorCode::budget_too_small);
  });
  bad("Runtime::create", "options.pinning", "unknown", [] {
    return refused(Runtime::create({.host_budget = 64_KiB, .pinning = unknown<tiers::Pinning>}), "pinning");
  });
  bad("Runtime::create", "options.eviction", "unknown", [] {
    return refused(Runtime::create({.host_budget = 64_KiB, .eviction = unknown<Eviction>}), "eviction");
  });
  for (const std::uint64_t bytes : absurd_counts) {
    for (const bool of_tensor : {false, true}) {
      for (const std::size_t paths : {1u, 2u}) {
        bad("Runtime::create", of_tensor ? "options.swap_need.tensor_max" : "options.swap_need.total",
            std::to_string(bytes) + " on " + std::to_string(paths) + " paths", [=] {
              const ScratchDirectory scratch;
              SwapNeed need{.total = 1_MiB, .tensor_max = 64_KiB};
              (of_tensor ? need.tensor_max : need.total) = ByteCount(bytes);
              RuntimeOptions options{.host_budget = 64_KiB, .swap_need = need};
              for (std::size_t i = 0; i < paths; ++i) options.paths.push_back({.directory = scratch.path()});
              // A single path is sized by the total alone.
              auto runtime = Runtime::create(options);
              return expect(!runtime || (of_tensor && paths == 1), "it was accepted");
            });
      }
    }
  }
  bad("Runtime::create", "options.lookahead", "the most", [] {
    const ScratchDirectory scratch;
    const auto runtime = Runtime::create({.host_budget = 64_KiB,
                                          .paths = {{.directory = scratch.path(), .capacity = 1_MiB}},
                                          .lookahead = ByteCount(most)})
                             .value();
    const auto tensor = runtime->add({.name = "t", .size = 4_KiB}, true).value();
    for (int round = 0; round < 3; ++round) {
      runtime->acquire(tensor, Access::overwrite).value().end();
      runtime->end_round();
    }
    return harmless();
  });
}

void add_benchmark_rows(BadArguments& bad) {
  const auto with = [&bad](const char* argument, const std::string& value, auto change) {
    bad("DiskBenchmark::create", argument, value, [=] {
      const ScratchDirectory scratch;
      DiskBenchmark::Options options{.paths = {{.directory = scratch.path(),
                                                .capacity = 1_MiB,
                                                .request_max = 64_KiB,
                                                .in_flight_max = 64_KiB}}};
      change(options);
      return all({fails(DiskBenchmark::create(std::move(options))),
                  expect(scratch.entry_count() == 0, "a file was left")});
    });
  };
  using Options = DiskBenchmark::Options;
  with("options.paths", "none", [](Options& o) { o.paths.clear(); });
  with("options.paths.directory", "empty", [](Options& o) { o.paths[0].directory.clear(); });
  with("options.paths.clock", "null", [](Options& o) { o.paths[0].clock = nullptr; });
  with("options.paths.file_system", "null", [](Options& o) { o.paths[0].file_system = nullptr; });
  with("options.paths.request_max", "0", [](Options& o) { o.paths[0].request_max = {}; });
  with("options.paths.in_flight_max", "the most",
       [](Options& o) { o.paths[0].in_flight_max = ByteCount(most); });
  with("options.paths.capacity", "0", [](Options& o) { o.paths[0].capacity = {}; });
  with("options.paths.capacity", "the most", [](Options& o) { o.paths[0].capacity = ByteCount(most); });
  for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{1000}, std::uint64_t{1} << 40, most}) {
    with("options.transfer", std::to_string(bytes), [=](Options& o) { o.transfer = ByteCount(bytes); });
  }
  with("options.spare", "the most", [](Options& o) { o.spare = ~0u; });
  const auto run = [&bad](const char* argument, const std::string& value, BenchmarkPattern pattern,
                          TimePoint duration, bool accepted) {
    bad("DiskBenchmark::run", argument, value, [=] {
      const ScratchDirectory scratch;
      const auto benchmark = DiskBenchmark::create({.paths = {{.directory = scratch.path(),
                                                               .capacity = 1_MiB,
                                                               .request_max = 64_KiB,
                                                               .in_flight_max = 64_KiB}}})
                                 .value();
      return expect(benchmark->run(pattern, duration).has_value() == accepted, "not as documented");
    });
  };
  run("pattern", "unknown", unknown<BenchmarkPattern>, TimePoint(1), false);
  for (const TimePoint duration : {TimePoint::min(), TimePoint(-1), TimePoint(0)}) {
    run("duration", std::to_string(duration.count()), BenchmarkPattern::mixed, duration, true);
  }
  bad("to_string", "pattern", "unknown",
      [] { return expect(!to_string(unknown<BenchmarkPattern>).empty(), "no text"); });
}

}  // namespace

void add_runtime_rows(BadArguments& bad) {
  add_tensor_rows(bad);
  add_memory_rows(bad);
  add_description_rows(bad);
  add_call_rows(bad);
  add_path_rows(bad);
  add_create_rows(bad);
  add_benchmark_rows(bad);
}

}  // namespace penstock::test
