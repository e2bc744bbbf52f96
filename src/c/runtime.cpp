#include "c/runtime.hpp"
#include "c/report.hpp"

#include <array>
#include <cstddef>
#include <memory>
#include <optional>

template <>
inline constexpr std::size_t penstock::c::first_size<penstock_runtime_options> =
    offsetof(penstock_runtime_options, reuse_distance_max);
template <>
inline constexpr std::size_t penstock::c::first_size<penstock_path> = offsetof(penstock_path, limit);
template <>
inline constexpr std::size_t penstock::c::first_size<penstock_tensor_options> =
    offsetof(penstock_tensor_options, home_in_memory);

struct penstock_lease {
  std::shared_ptr<penstock::swap::Runtime> runtime;
  penstock::swap::Lease lease;
  penstock::c::HandleProcess process = {};
};
struct penstock_request {
  std::shared_ptr<penstock::swap::Runtime> runtime;
  penstock::swap::PendingLease pending;
  penstock::c::HandleProcess process = {};
};

namespace {

using namespace penstock;

static_assert(PENSTOCK_OVERWRITE == static_cast<int>(swap::Access::overwrite));
static_assert(PENSTOCK_PIN_REQUIRED == static_cast<int>(tiers::Pinning::required));
static_assert(PENSTOCK_IO_THREADS == static_cast<int>(tiers::EngineChoice::threads));

Result<swap::PathOptions> read(const char* function, const penstock_path* given) {
  PENSTOCK_TRY_ASSIGN(const auto from, c::read_struct(function, "options.paths", given));
  PENSTOCK_TRY(c::check_not_null(function, {{"options.paths.directory", from.directory}}));
  swap::PathOptions path{.directory = from.directory, .capacity = ByteCount(from.capacity)};
  if (from.weight != 0) path.weight = from.weight;
  if (from.request_max != 0) path.request_max = ByteCount(from.request_max);
  if (from.in_flight_max != 0) path.in_flight_max = ByteCount(from.in_flight_max);
  PENSTOCK_TRY_ASSIGN(path.deadline, c::duration(function, "options.paths.deadline_seconds",
                                                 from.deadline_seconds, path.deadline));
  PENSTOCK_TRY(c::check_limit(function, "options.paths.limit", from.limit));
  path.rate_limit = from.limit;
  path.endurance = ByteCount(from.endurance);
  PENSTOCK_TRY_ASSIGN(path.engine, c::enumerator<tiers::EngineChoice>(function, "options.paths.engine",
                                                                      from.engine, PENSTOCK_IO_THREADS + 1));
  return path;
}

Result<swap::RuntimeOptions> read(const char* function, const penstock_runtime_options* given) {
  PENSTOCK_TRY_ASSIGN(const auto from, c::read_struct(function, "options", given));
  swap::RuntimeOptions options{.host_budget = ByteCount(from.host_budget)};
  if (from.lookahead != 0) options.lookahead = ByteCount(from.lookahead);
  PENSTOCK_TRY_ASSIGN(
      options.pinning,
      c::enumerator<tiers::Pinning>(function, "options.pinning", from.pinning, PENSTOCK_PIN_REQUIRED + 1));
  PENSTOCK_TRY_ASSIGN(const auto eviction,
                      c::enumerator<penstock_eviction>(function, "options.eviction", from.eviction,
                                                       PENSTOCK_EVICT_REUSE_DISTANCE + 1));
  constexpr std::array evictions{swap::Eviction::planned, swap::Eviction::lru,
                                 swap::Eviction::reuse_distance};
  options.eviction = evictions[static_cast<std::size_t>(eviction)];
  options.reuse_distance_max = ByteCount(from.reuse_distance_max);
  if (from.timeline_file != nullptr) options.timeline_file = from.timeline_file;
  constexpr std::size_t paths_max = 1024;
  if (from.path_count > paths_max) {
    return Error::invalid_argument(function)
        .object("options.path_count")
        .wanted("at most " + std::to_string(paths_max))
        .got(from.path_count);
  }
  PENSTOCK_TRY(c::for_each_struct(function, "options.paths", from.paths, from.path_count,
                                  [&](const penstock_path* one) -> Result<void> {
                                    PENSTOCK_TRY_ASSIGN(auto path, read(function, one));
                                    options.paths.push_back(std::move(path));
                                    return ok();
                                  }));
  return options;
}

Result<tiers::TensorDescription> description_of(const char* function, const penstock_tensor_options& from) {
  PENSTOCK_TRY(c::check_not_null(function, {{"options.name", from.name}}));
  if (from.in_memory != 0 && from.home_in_memory != 0) {
    return Error::invalid_argument(function)
        .object(from.name)
        .reason("options.in_memory and options.home_in_memory exclude each other")
        .advice("set in_memory for a tensor without a place on disk, home_in_memory for one with a place");
  }
  return tiers::TensorDescription{.name = from.name,
                                  .size = ByteCount(from.bytes),
                                  .write_behind = from.write_behind != 0,
                                  .home_in_memory = from.home_in_memory != 0};
}

Result<swap::Access> access_of(const char* function, penstock_access access) {
  return c::enumerator<swap::Access>(function, "access", access, PENSTOCK_OVERWRITE + 1);
}

void give(const std::shared_ptr<swap::Runtime>& runtime, swap::Lease lease, penstock_lease** to, void** data,
          std::uint64_t* bytes) {
  const HostSpan span = lease.bytes();
  c::give(to, penstock_lease{runtime, std::move(lease)});
  if (data != nullptr) *data = span.data();
  if (bytes != nullptr) *bytes = span.size().value();
}

c::MakeReport report_of(const penstock_runtime& runtime) {
  return [&runtime](std::uint32_t rank, bool) { return zero::report_of(*runtime.runtime, {.rank = rank}); };
}

}  // namespace

penstock_error* penstock_runtime_create(const penstock_runtime_options* options, penstock_runtime** runtime) {
  const char* const function = __func__;
  return c::call(function, {{"options", options}, {"runtime", runtime}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(auto read_options, read(function, options));
    auto made = std::make_unique<penstock_runtime>();
    PENSTOCK_TRY_ASSIGN(made->runtime, swap::Runtime::create(std::move(read_options)));
    *runtime = made.release();
    return ok();
  });
}

void penstock_runtime_free(penstock_runtime* runtime) {
  c::end(runtime);
}

penstock_error* penstock_runtime_add(penstock_runtime* runtime, const penstock_tensor_options* options,
                                     penstock_tensor* tensor) {
  const char* const function = __func__;
  return c::call(
      function, {{"runtime", runtime}, {"options", options}, {"tensor", tensor}}, [&]() -> Result<void> {
        PENSTOCK_TRY_ASSIGN(const auto from, c::read_struct(function, "options", options));
        PENSTOCK_TRY_ASSIGN(auto description, description_of(function, from));
        description.key = {.first = runtime->added.fetch_add(1)};
        PENSTOCK_TRY_ASSIGN(const auto added,
                            runtime->runtime->add(std::move(description), /*on_disk=*/from.in_memory == 0));
        *tensor = static_cast<penstock_tensor>(added);
        return ok();
      });
}

penstock_error* penstock_runtime_remove(penstock_runtime* runtime, penstock_tensor tensor) {
  return c::call(__func__, {{"runtime", runtime}},
                 [&] { return runtime->runtime->remove(tiers::TensorId(tensor)); });
}

penstock_error* penstock_runtime_discard(penstock_runtime* runtime, penstock_tensor tensor) {
  return c::call(__func__, {{"runtime", runtime}},
                 [&] { return runtime->runtime->discard(tiers::TensorId(tensor)); });
}

penstock_error* penstock_lease_begin(penstock_runtime* runtime, penstock_tensor tensor,
                                     penstock_access access, penstock_lease** lease, void** data,
                                     std::uint64_t* bytes) {
  const char* const function = __func__;
  return c::call(function, {{"runtime", runtime}, {"lease", lease}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto of_access, access_of(function, access));
    PENSTOCK_TRY_ASSIGN(auto granted, runtime->runtime->acquire(tiers::TensorId(tensor), of_access));
    give(runtime->runtime, std::move(granted), lease, data, bytes);
    return ok();
  });
}

void penstock_lease_end(penstock_lease* lease) {
  c::end(lease);
}

penstock_error* penstock_request_begin(penstock_runtime* runtime, penstock_tensor tensor,
                                       penstock_access access, penstock_request** request) {
  const char* const function = __func__;
  return c::call(function, {{"runtime", runtime}, {"request", request}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto of_access, access_of(function, access));
    auto pending = runtime->runtime->request(tiers::TensorId(tensor), of_access);
    c::give(request, penstock_request{runtime->runtime, std::move(pending)});
    return ok();
  });
}

penstock_error* penstock_request_poll(penstock_request* request, penstock_lease** lease, void** data,
                                      std::uint64_t* bytes) {
  const char* const function = __func__;
  return c::call(function, {{"request", request}, {"lease", lease}}, [&]() -> Result<void> {
    if (!request->pending.pending()) {
      return Error(ErrorCode::failed_state, function)
          .object("request")
          .reason("it has ended: an earlier call returned its lease or its error")
          .advice("call penstock_request_end()");
    }
    auto polled = request->pending.poll();
    if (polled && !*polled) return polled->error();
    if (polled) {
      give(request->runtime, **std::move(polled), lease, data, bytes);
    } else {
      *lease = nullptr;
    }
    return ok();
  });
}

void penstock_request_end(penstock_request* request) {
  c::end(request);
}

penstock_error* penstock_runtime_prefetch(penstock_runtime* runtime, penstock_tensor tensor) {
  return c::call(__func__, {{"runtime", runtime}},
                 [&] { return runtime->runtime->prefetch(tiers::TensorId(tensor)); });
}

penstock_error* penstock_runtime_end_round(penstock_runtime* runtime) {
  return c::call(__func__, {{"runtime", runtime}}, [&]() -> Result<void> {
    runtime->runtime->end_round();
    return ok();
  });
}

penstock_error* penstock_runtime_flush(penstock_runtime* runtime) {
  return c::call(__func__, {{"runtime", runtime}}, [&] { return runtime->runtime->flush(); });
}

penstock_error* penstock_runtime_sync(penstock_runtime* runtime) {
  return c::call(__func__, {{"runtime", runtime}}, [&] { return runtime->runtime->sync(); });
}

penstock_error* penstock_runtime_park(penstock_runtime* runtime, std::uint64_t* given_back) {
  return c::call(__func__, {{"runtime", runtime}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const ByteCount bytes, runtime->runtime->park());
    if (given_back != nullptr) *given_back = bytes.value();
    return ok();
  });
}

penstock_error* penstock_runtime_unpark(penstock_runtime* runtime) {
  return c::call(__func__, {{"runtime", runtime}}, [&] { return runtime->runtime->unpark(); });
}

penstock_error* penstock_runtime_limit_memory(penstock_runtime* runtime, std::uint64_t most,
                                              std::uint64_t* used) {
  return c::call(__func__, {{"runtime", runtime}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const ByteCount bytes, runtime->runtime->limit_memory(ByteCount(most)));
    if (used != nullptr) *used = bytes.value();
    return ok();
  });
}

penstock_error* penstock_runtime_memory_least(const penstock_runtime* runtime, std::uint64_t* bytes) {
  return c::call(__func__, {{"runtime", runtime}, {"bytes", bytes}}, [&]() -> Result<void> {
    *bytes = runtime->runtime->memory_least().value();
    return ok();
  });
}

penstock_error* penstock_runtime_host_memory(const penstock_runtime* runtime, void** data,
                                             std::uint64_t* bytes) {
  return c::call(__func__, {{"runtime", runtime}, {"data", data}, {"bytes", bytes}}, [&]() -> Result<void> {
    const HostSpan memory = runtime->runtime->host_memory();
    *data = memory.data();
    *bytes = memory.size().value();
    return ok();
  });
}

penstock_error* penstock_runtime_get_report(const penstock_runtime* runtime,
                                            penstock_runtime_report* report) {
  const char* const function = __func__;
  return c::call(function, {{"runtime", runtime}, {"report", report}}, [&]() -> Result<void> {
    PENSTOCK_TRY(c::check_written_struct(function, "report", report));
    tiers::FileCounters counters;
    for (const swap::PathReport& path : runtime->runtime->paths()) counters += path.counters;
    c::write_struct(report, {.host_free = runtime->runtime->host_free().value(),
                             .bytes_read = counters.bytes_read.value(),
                             .bytes_written = counters.bytes_written.value(),
                             .retries = counters.retries,
                             .stall_seconds = c::seconds_of(runtime->runtime->stall_time())});
    return ok();
  });
}

penstock_error* penstock_runtime_report_text(const penstock_runtime* runtime,
                                             const penstock_report_options* options, penstock_lines** lines) {
  const char* const function = __func__;
  return c::call(function, {{"runtime", runtime}, {"options", options}, {"lines", lines}},
                 [&]() -> Result<void> {
                   PENSTOCK_TRY_ASSIGN(auto report, c::report_lines(function, report_of(*runtime), options));
                   c::give(lines, std::move(report));
                   return ok();
                 });
}

penstock_error* penstock_runtime_save_report(const penstock_runtime* runtime,
                                             const penstock_report_options* options, const char* file) {
  const char* const function = __func__;
  return c::call(function, {{"runtime", runtime}, {"options", options}, {"file", file}},
                 [&] { return c::save_report(function, report_of(*runtime), options, file); });
}

penstock_error* penstock_runtime_notes(const penstock_runtime* runtime, penstock_lines** lines) {
  return c::call(__func__, {{"runtime", runtime}, {"lines", lines}}, [&]() -> Result<void> {
    c::give(lines, penstock_lines{runtime->runtime->notes()});
    return ok();
  });
}

penstock_error* penstock_runtime_take_messages(penstock_runtime* runtime, penstock_lines** lines) {
  return c::call(__func__, {{"runtime", runtime}, {"lines", lines}}, [&]() -> Result<void> {
    c::give(lines, penstock_lines{runtime->runtime->take_messages()});
    return ok();
  });
}
