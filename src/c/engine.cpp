#include "c/engine.hpp"

#include "c/config.hpp"
#include "c/layout.hpp"
#include "c/process_group.hpp"
#include "c/report.hpp"

#include <penstock/tiers/device/device.hpp>

// An engine: its creation, its streams, its values and its reports. Its steps are in engine_steps.cpp.

namespace {

using namespace penstock;

Result<std::function<Result<zero::Accelerator>(ByteCount)>> accelerator_of(
    const char* function, const penstock_engine_options& from) {
  PENSTOCK_TRY_ASSIGN(
      const auto device,
      c::enumerator<penstock_device>(function, "options.device", from.device, PENSTOCK_DEVICE_CUDA + 1));
  std::function<Result<zero::Accelerator>(ByteCount)> make;
  if (device == PENSTOCK_DEVICE_CUDA)
    make = [ordinal = from.device_ordinal](ByteCount) { return zero::make_cuda_accelerator(ordinal); };
  return make;
}

c::MakeReport report_of(const penstock_engine& engine) {
  return [&engine](std::uint32_t, bool with_changes) { return engine.job->rank->report(with_changes); };
}

Result<zero::Rank::Options> read(const char* function, const penstock_engine_options& from) {
  PENSTOCK_TRY(
      c::check_not_null(function, {{"options.config", from.config}, {"options.layout", from.layout}}));
  PENSTOCK_TRY(from.layout->model.validate());
  zero::Rank::Options options{.config = from.config->file.config, .model = from.layout->model};
  PENSTOCK_TRY_ASSIGN(options.make_accelerator, accelerator_of(function, from));
  if (from.group != nullptr) {
    options.identity = from.group->group->identity();
    if (options.identity.ranks > 1) options.group = zero::process_membership(from.group->group);
  }
  return options;
}

/// Errors: failed_state, for a number that a function of the caller has returned.
Result<void> outcome_of(const char* function, const char* callback, std::int32_t number) {
  if (number == 0) return ok();
  return Error(ErrorCode::failed_state, function)
      .object(callback)
      .reason("the function of the caller has returned an error")
      .got(std::to_string(number));
}

}  // namespace

penstock_error* penstock_engine_create(const penstock_engine_options* options, penstock_engine** engine) {
  const char* const function = __func__;
  return c::call(function, {{"options", options}, {"engine", engine}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto from, c::read_struct(function, "options", options));
    PENSTOCK_TRY_ASSIGN(auto rank_options, read(function, from));
    auto job = std::make_shared<c::Job>();
    if (from.group != nullptr) job->group = from.group->group;
    PENSTOCK_TRY_ASSIGN(job->rank, zero::Rank::create(std::move(rank_options)));
    c::give(engine, penstock_engine{std::move(job), ""});
    return ok();
  });
}

void penstock_engine_free(penstock_engine* engine) {
  c::end(engine);
}

penstock_error* penstock_stream_create(penstock_engine* engine, penstock_stream** stream) {
  return c::call(__func__, {{"engine", engine}, {"stream", stream}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(auto made, engine->job->rank->device().create_stream());
    c::give(stream, penstock_stream{engine->job, std::move(made)});
    return ok();
  });
}

penstock_error* penstock_stream_wrap_cuda(penstock_engine* engine, void* cuda_stream,
                                          penstock_stream** stream) {
  const char* const function = __func__;
  return c::call(function, {{"engine", engine}, {"stream", stream}}, [&]() -> Result<void> {
    const auto ordinal = engine->job->rank->device().cuda_ordinal();
    if (!ordinal) {
      return Error::invalid_argument(function)
          .object("engine")
          .reason("it is on no CUDA device")
          .advice("create it with PENSTOCK_DEVICE_CUDA");
    }
    PENSTOCK_TRY_ASSIGN(auto made, zero::wrap_cuda_stream(*ordinal, cuda_stream));
    c::give(stream, penstock_stream{engine->job, std::move(made)});
    return ok();
  });
}

penstock_error* penstock_stream_synchronize(penstock_stream* stream) {
  return c::call(__func__, {{"stream", stream}}, [&] { return stream->stream->synchronize(); });
}

void penstock_stream_free(penstock_stream* stream) {
  c::end(stream);
}

penstock_error* penstock_engine_initialize(penstock_engine* engine, penstock_fill fill, void* user) {
  const char* const function = __func__;
  return c::call(function, {{"engine", engine}, {"fill", reinterpret_cast<const void*>(fill)}}, [&] {
    // Unlike Engine::initialize(), it takes an error of the function. Moments stay 0.
    return engine->engine().restore(
        0,
        [&](zero::ParameterId parameter, cpu_adam::StateKind kind, std::uint64_t first,
            std::span<float> values) -> Result<void> {
          if (kind != cpu_adam::StateKind::master) return ok();
          return outcome_of(function, "fill",
                            fill(user, parameter.unit, parameter.index, first, values.size(), values.data()));
        });
  });
}

penstock_error* penstock_engine_restore(penstock_engine* engine, std::uint64_t step,
                                        penstock_state_source source, void* user) {
  const char* const function = __func__;
  return c::call(function, {{"engine", engine}, {"source", reinterpret_cast<const void*>(source)}}, [&] {
    return engine->engine().restore(step, [&](zero::ParameterId parameter, cpu_adam::StateKind kind,
                                              std::uint64_t first, std::span<float> values) {
      return outcome_of(function, "source",
                        source(user, parameter.unit, parameter.index, static_cast<penstock_state_kind>(kind),
                               first, values.size(), values.data()));
    });
  });
}

penstock_error* penstock_engine_read_states(penstock_engine* engine, penstock_state_sink sink, void* user) {
  const char* const function = __func__;
  return c::call(function, {{"engine", engine}, {"sink", reinterpret_cast<const void*>(sink)}}, [&] {
    return engine->engine().read_states([&](zero::ParameterId parameter, cpu_adam::StateKind kind,
                                            std::uint64_t first, std::span<const float> values) {
      return outcome_of(function, "sink",
                        sink(user, parameter.unit, parameter.index, static_cast<penstock_state_kind>(kind),
                             first, values.size(), values.data()));
    });
  });
}

penstock_error* penstock_engine_digest(penstock_engine* engine, char digest[33]) {
  return c::call(__func__, {{"engine", engine}, {"digest", digest}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const std::string text, engine->engine().digest());
    std::memcpy(digest, text.c_str(), std::min<std::size_t>(text.size() + 1, 33));
    return ok();
  });
}

penstock_error* penstock_engine_set_group(penstock_engine* engine, std::uint32_t group,
                                          const penstock_group_options* options) {
  const char* const function = __func__;
  return c::call(function, {{"engine", engine}, {"options", options}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(auto settings, c::read_group(function, options));
    auto groups = engine->engine().groups();
    if (group >= groups.size()) {
      return Error::invalid_argument(function)
          .object("group")
          .wanted("less than " + std::to_string(groups.size()))
          .got(group);
    }
    groups[group] = std::move(settings);
    return engine->engine().set_groups(std::move(groups));
  });
}

penstock_error* penstock_engine_get_report(const penstock_engine* engine, penstock_engine_report* report) {
  const char* const function = __func__;
  return c::call(function, {{"engine", engine}, {"report", report}}, [&]() -> Result<void> {
    PENSTOCK_TRY(c::check_written_struct(function, "report", report));
    const zero::Engine& of = engine->engine();
    const zero::MemoryPlan& plan = engine->job->rank->plan();
    c::write_struct(report, {.status = static_cast<penstock_status>(of.status()),
                             .completed_steps = of.completed_steps(),
                             .skipped_steps = of.skipped_steps(),
                             .loss_scale = of.loss_scaler().scale(),
                             .device_bytes = plan.device_budget.value(),
                             .host_bytes = plan.host_budget.value(),
                             .nvme_bytes = plan.swap_bytes.value()});
    return ok();
  });
}

penstock_error* penstock_engine_report_text(const penstock_engine* engine,
                                            const penstock_report_options* options, penstock_lines** lines) {
  const char* const function = __func__;
  return c::call(function, {{"engine", engine}, {"options", options}, {"lines", lines}},
                 [&]() -> Result<void> {
                   PENSTOCK_TRY_ASSIGN(auto report, c::report_lines(function, report_of(*engine), options));
                   c::give(lines, std::move(report));
                   return ok();
                 });
}

penstock_error* penstock_engine_save_report(const penstock_engine* engine,
                                            const penstock_report_options* options, const char* file) {
  const char* const function = __func__;
  return c::call(function, {{"engine", engine}, {"options", options}, {"file", file}},
                 [&] { return c::save_report(function, report_of(*engine), options, file); });
}

penstock_error* penstock_engine_write_events(penstock_engine* engine, const penstock_monitor_event* events,
                                             std::size_t count) {
  const char* const function = __func__;
  return c::call(function, {{"engine", engine}}, [&]() -> Result<void> {
    std::vector<zero::MonitorEvent> read;
    const auto add = [&](const penstock_monitor_event* one) -> Result<void> {
      PENSTOCK_TRY_ASSIGN(const auto event, c::read_struct(function, "events", one));
      PENSTOCK_TRY(c::check_not_null(function, {{"events.name", event.name}}));
      read.push_back({event.name, event.value, event.place});
      return ok();
    };
    PENSTOCK_TRY(c::for_each_struct(function, "events", events, count, add));
    return engine->job->rank->write_events(read);
  });
}

penstock_error* penstock_engine_take_messages(penstock_engine* engine, penstock_lines** lines) {
  return c::call(__func__, {{"engine", engine}, {"lines", lines}}, [&]() -> Result<void> {
    c::give(lines, penstock_lines{engine->job->rank->runtime().take_messages()});
    return ok();
  });
}

penstock_error* penstock_engine_notes(const penstock_engine* engine, penstock_lines** lines) {
  return c::call(__func__, {{"engine", engine}, {"lines", lines}}, [&]() -> Result<void> {
    c::give(lines, penstock_lines{engine->job->rank->notes()});
    return ok();
  });
}
