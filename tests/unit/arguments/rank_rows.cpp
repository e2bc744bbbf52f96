#include "unit/arguments/bad_arguments.hpp"

#include <penstock/zero/comm/in_process_group.hpp>
#include <penstock/zero/rank.hpp>

#include <algorithm>
#include <memory>
#include <utility>

namespace penstock::test {
namespace {

using namespace zero;

Rank::Options usable_options() {
  Rank::Options options;
  for (const char* name : {"a", "b"}) {
    options.model.units.push_back({.name = name, .parameters = {{"w", ElementCount(1024), 0}}});
  }
  options.model.checkpoints = {.count = 2, .size = 5000_B};
  return options;
}

/// A rank that is initialized, with a stream.
struct Bench {
  Bench() {
    engine
        .initialize([](ParameterId, std::uint64_t, std::span<float> values) {
          std::fill(values.begin(), values.end(), 1.0f);
        })
        .value();
    digest = engine.digest().value();
  }
  /// That nothing has changed and that a step still works.
  [[nodiscard]] std::string works() {
    if (engine.status() != Engine::Status::ready || engine.digest().value() != digest)
      return "the engine has changed";
    if (!engine.begin_step({.micro_batches = 1})) return "no step begins";
    for (std::uint32_t unit = 2; unit-- > 0;) {
      auto gradients = engine.gradients(unit, *stream);
      if (!gradients) return "no gradients: " + gradients.error().message();
      for (const GradientSlot& slot : gradients->slots()) {
        if (!rank->device().fill_zero(stream->handle(), slot.tensor.bytes)) return "no copy";
      }
      if (!engine.reduce(std::move(*gradients), *stream)) return "no reduction";
    }
    return expect(engine.step().has_value(), "no step");
  }

  std::unique_ptr<Rank> rank = Rank::create(usable_options()).value();
  Engine& engine = rank->engine();
  std::unique_ptr<tiers::Stream> stream = rank->device().create_stream().value();
  std::string digest;
};

void add_engine_rows(BadArguments& bad) {
  const auto with = [&bad](const char* function, const char* argument, const std::string& value, auto call) {
    bad(function, argument, value, [call] {
      Bench b;
      return all({refused(call(b.engine, *b.stream), ""), b.works()});
    });
  };
  using Stream = tiers::Stream;
  for (const std::uint32_t unit : {2u, ~0u}) {
    const std::string value = std::to_string(unit);
    with("Engine::acquire", "unit", value, [=](Engine& e, Stream& s) { return e.acquire(unit, s); });
    with("Engine::gradients", "unit", value, [=](Engine& e, Stream& s) { return e.gradients(unit, s); });
    with("Engine::reduce", "unit", value, [=](Engine& e, Stream& s) { return e.reduce(unit, {}, s); });
    with("Engine::begin_step", "units_without_gradient", value,
         [=](Engine& e, Stream&) { return e.begin_step({.units_without_gradient = {unit}}); });
  }
  with("Engine::begin_step", "units_without_gradient", "one twice", [](Engine& e, Stream&) {
    return e.begin_step({.units_without_gradient = {0, 0}});
  });
  for (const std::uint32_t checkpoint : {2u, ~0u}) {
    with("Engine::checkpoint", "checkpoint", std::to_string(checkpoint),
         [=](Engine& e, Stream& s) { return e.checkpoint(checkpoint, CheckpointUse::write, s); });
  }
  with("Engine::checkpoint", "use", "unknown",
       [](Engine& e, Stream& s) { return e.checkpoint(0, unknown<CheckpointUse>, s); });
  with("Engine::checkpoint", "use", "read before it was written",
       [](Engine& e, Stream& s) { return e.checkpoint(0, CheckpointUse::read, s); });
  with("Engine::begin_step", "micro_batches", "0",
       [](Engine& e, Stream&) { return e.begin_step({.micro_batches = 0}); });
  for (const float rate : {nan, infinity, -infinity, -1.0f}) {
    with("Engine::begin_step", "learning_rate", std::to_string(rate),
         [=](Engine& e, Stream&) { return e.begin_step({.learning_rate = rate}); });
  }
  with("Engine::restore_loss_scaler", "state.scale", "-1",
       [](Engine& e, Stream&) { return e.restore_loss_scaler({.scale = -1}); });
  with("Engine::set_groups", "groups", "none", [](Engine& e, Stream&) { return e.set_groups({}); });
  with("Engine::reduce", "gradients", "a default one", [](Engine& e, Stream& s) { return e.reduce({}, s); });
  with("Engine::initialize", "fill", "empty", [](Engine& e, Stream&) { return e.initialize({}); });
  with("Engine::read_states", "sink", "empty", [](Engine& e, Stream&) { return e.read_states({}); });
  with("Engine::restore", "source", "empty", [](Engine& e, Stream&) { return e.restore(1, {}); });
  for (const std::uint64_t step : {(std::uint64_t{1} << 62) + 1, std::uint64_t{1} << 63, most}) {
    with("Engine::restore", "step", std::to_string(step),
         [=](Engine& e, Stream&) { return e.restore(step, [](auto, auto, auto, auto) { return ok(); }); });
  }
  static std::array<float, 2048> values{};
  const auto source = [](std::size_t bytes, DType dtype, std::size_t offset = 0) {
    return GradientSource(HostTensor{
        ConstHostSpan(reinterpret_cast<const std::byte*>(values.data()) + offset, ByteCount(bytes)), dtype});
  };
  const std::vector<std::pair<const char*, std::vector<GradientSource>>> wrong = {
      {"none", {}},
      {"too many", {source(4096, DType::fp32), source(4096, DType::fp32)}},
      {"default ones", {GradientSource()}},
      {"null", {HostTensor{ConstHostSpan(nullptr, 4096_B), DType::fp32}}},
      {"null, on the device", {DeviceTensor{DeviceSpan(DeviceAddress{}, 4096_B), DType::fp32}}},
      {"shorter", {source(4092, DType::fp32)}},
      {"longer", {source(4100, DType::fp32)}},
      {"misaligned", {source(4096, DType::fp32, 1)}},
      {"of an unknown dtype", {source(4096, unknown<DType>)}},
      {"of another dtype's length", {source(4096, DType::bf16)}}};
  for (const auto& [value, gradients] : wrong) {
    with("Engine::reduce", "gradients", value,
         [gradients = gradients](Engine& e, Stream& s) { return e.reduce(0, gradients, s); });
  }
  for (const tiers::Tier tier : {tiers::Tier::device, unknown<tiers::Tier>}) {
    with("Engine::park", "to", std::to_string(static_cast<unsigned>(tier)),
         [=](Engine& e, Stream&) { return e.park(tier); });
  }
  for (const auto kinds : {ParkKinds::none, static_cast<ParkKinds>(8), static_cast<ParkKinds>(15)}) {
    with("Engine::park", "kinds", std::to_string(static_cast<unsigned>(kinds)),
         [=](Engine& e, Stream&) { return e.park(tiers::Tier::host, kinds); });
  }
  const std::vector<std::pair<std::string, std::vector<std::filesystem::path>>> directories = {
      {"none", {}},
      {"an empty one", {""}},
      {"one that does not exist", {"/no/such/directory"}},
      {"a file", {"/proc/version"}},
      {"of odd bytes", {std::string("a\0\n", 3) + std::string(100'000, 'x')}},
      {"many", std::vector<std::filesystem::path>(1000, "/no/such/directory")}};
  for (const auto& [value, paths] : directories) {
    bad("Engine::park", "directories", value, [paths = paths] {
      Bench b;
      return all({fails(b.engine.park(tiers::Tier::nvme, ParkKinds::all, paths)), b.works()});
    });
  }
  with("Engine::park", "directories", "one for host memory",
       [](Engine& e, Stream&) { return e.park(tiers::Tier::host, ParkKinds::all, {"/tmp"}); });
  bad("Engine::commit", "client", "null, of a run that is not durable", [] {
    Bench b;
    return all({refused(b.engine.commit({}), "durable_directory", ErrorCode::failed_state), b.works()});
  });
  bad("Engine::begin_commit", "client", "null, of a run that is not durable", [] {
    Bench b;
    return all({refused(b.engine.begin_commit({}), "durable_directory", ErrorCode::failed_state), b.works()});
  });
  bad("Engine::save_checkpoint", "directory", "of a run that is not durable", [] {
    Bench b;
    return all(
        {refused(b.engine.save_checkpoint("/tmp"), "durable_directory", ErrorCode::failed_state), b.works()});
  });
  for (const char* from : {"", "/no/such/directory", "/dev/null", "/proc"}) {
    bad("Engine::load_checkpoint", "directory", from, [from] {
      Bench b;
      return all({fails(b.engine.load_checkpoint(from)), b.works()});
    });
  }
  bad("Engine::abandon_step", "cause", "of odd bytes", [] {
    Bench b;
    const bool abandoned =
        b.engine.abandon_step(*b.stream, std::string("a\0\n", 3) + std::string(100'000, 'x')).has_value();
    return all({expect(abandoned, "refused"), b.works()});
  });
  bad("UnitLease::end", "the lease", "a default one, moved from, and ended twice", [] {
    Bench b;
    UnitLease none, lease = b.engine.acquire(0, *b.stream).value();
    UnitLease kept = std::move(lease);
    for (UnitLease* each : {&none, &lease, &kept, &kept}) each->end();
    return b.works();
  });
}

void add_engine_create_rows(BadArguments& bad) {
  const auto with = [&bad](const char* argument, const char* value, auto change) {
    bad("Engine::create", argument, value, [change] {
      Rank::Options options = usable_options();
      options.hooks.engine_options = change;
      return fails(Rank::create(std::move(options)));
    });
  };
  using Options = Engine::Options;
  with("runtime", "null", [](Options& o) { o.runtime = nullptr; });
  with("device", "null", [](Options& o) { o.device = nullptr; });
  with("adam", "null, with tiles that the device updates", [](Options& o) {
    o.plan.update.device_slots = 1;
    o.adam = nullptr;
  });
  with("compute", "null", [](Options& o) { o.compute = nullptr; });
  with("communicator", "null", [](Options& o) { o.communicator = nullptr; });
  with("workers", "null", [](Options& o) { o.workers = nullptr; });
  with("config", "wrong", [](Options& o) { o.config.optimizer.learning_rate = nan; });
  with("config", "of another plan", [](Options& o) { o.config.penstock.tiles_in_flight = 7; });
  with("model", "none", [](Options& o) { o.model = {}; });
  with("plan", "a default one", [](Options& o) { o.plan = {}; });
  with("device_deadline", "0", [](Options& o) { o.device_deadline = {}; });
  with("device_deadline", "negative", [](Options& o) { o.device_deadline = TimePoint(-1); });
  with("plan.host_budget", "larger than the runtime",
       [](Options& o) { o.plan.host_budget = ByteCount(most); });
}

void add_create_rows(BadArguments& bad) {
  const auto with = [&bad](const char* argument, const std::string& value, auto change) {
    bad("Rank::create", argument, value, [change] {
      Rank::Options options = usable_options();
      change(options);
      return fails(Rank::create(std::move(options)));
    });
  };
  using Options = Rank::Options;
  with("device_deadline", "0", [](Options& o) { o.device_deadline = {}; });
  with("config", "wrong", [](Options& o) { o.config.gradient_clipping = nan; });
  with("model", "a default one", [](Options& o) { o.model = {}; });
  const std::vector<RankIdentity> identities = {
      {.ranks = 0},       {.rank = 1},  {.rank = ~0u, .ranks = ~0u},   {.local_rank = 1},
      {.local_ranks = 0}, {.ranks = 2}, {.ranks = 1, .local_ranks = 2}};
  for (std::size_t i = 0; i < identities.size(); ++i) {
    with("identity", "wrong, number " + std::to_string(i), [=](Options& o) { o.identity = identities[i]; });
  }
  with("make_accelerator", "one that makes none",
       [](Options& o) { o.make_accelerator = [](ByteCount) { return Accelerator(); }; });
  with("make_accelerator", "one without memory",
       [](Options& o) { o.make_accelerator = [](ByteCount) { return make_host_accelerator(0_B); }; });
  with("group.join", "one that returns none", [](Options& o) {
    o.group.join = [](auto&, auto&, auto&) { return std::unique_ptr<Communicator>(); };
  });
  with("group", "a null one", [](Options& o) { o.group = in_process_membership(nullptr, 0); });
  with("group", "one of two ranks",
       [](Options& o) { o.group = in_process_membership(InProcessGroup::create(2).value(), 0); });
  with("hooks.runtime_options", "a budget of 0",
       [](Options& o) { o.hooks.runtime_options = [](swap::RuntimeOptions& r) { r.host_budget = {}; }; });
  bad("Rank::create", "workers", "moved from", [] {
    auto workers = parallel::Workers::create({.threads = 2}).value();
    const parallel::Workers kept = std::move(workers);
    Rank::Options options = usable_options();
    options.workers = &workers;
    return expect(Rank::create(std::move(options)).has_value(), "refused");
  });
  for (const char* name : {"", "a\nb", "\x1b[2J"}) {
    bad("Rank::write_events", "name", name, [=] {
      Bench b;
      const MonitorEvent event{.name = name, .value = nan};
      return all({refused(b.rank->write_events({&event, 1}), "name"), b.works()});
    });
  }
  bad("Rank::report", "with_changes", "before a step", [] {
    Bench b;
    return all({expect(b.rank->report(true).changes.empty(), "changes"), b.works()});
  });
  for (const auto& [rank, ranks] : {std::pair{0u, 0u}, {1u, 1u}, {~0u, ~0u}}) {
    bad("RankIdentity::validate", "rank", std::to_string(rank) + " of " + std::to_string(ranks),
        [rank = rank, ranks = ranks] {
          return refused(RankIdentity::local(rank, ranks).validate(), "rank");
        });
  }
  bad("RankIdentity::local", "ranks", "0", [] { return fails(RankIdentity::local(0, 0).validate()); });
  for (const std::uint64_t memory : {std::uint64_t{0}, most}) {
    bad("make_host_accelerator", "memory", std::to_string(memory), [=] {
      if (huge_allocations_end_the_process) return std::string();
      return fails(
          make_host_accelerator(ByteCount(memory)).device->allocate(ByteCount(std::uint64_t{1} << 60)));
    });
  }
  for (const int ordinal : {-1, 4096, std::numeric_limits<int>::max()}) {
    bad("make_cuda_accelerator", "ordinal", std::to_string(ordinal),
        [=] { return refused(make_cuda_accelerator(ordinal), "", ErrorCode::unsupported); });
    bad("wrap_cuda_stream", "ordinal", std::to_string(ordinal),
        [=] { return refused(wrap_cuda_stream(ordinal, nullptr), "", ErrorCode::unsupported); });
  }
}

}  // namespace

void add_rank_rows(BadArguments& bad) {
  add_engine_rows(bad);
  add_engine_create_rows(bad);
  add_create_rows(bad);
}

}  // namespace penstock::test
