#include "c/engine.hpp"

#include <penstock/c/durable.h>

#include <span>

struct penstock_resumed {
  penstock::zero::Resumed resumed;
};

namespace {

using namespace penstock;

/// Errors: invalid_argument.
Result<std::span<const std::byte>> client_of(const char* function, const void* client, std::uint64_t bytes) {
  if (client == nullptr && bytes > 0)
    return Error::invalid_argument(function).object("client").reason("it is NULL").wanted(ByteCount(bytes));
  return std::span(static_cast<const std::byte*>(client), bytes);
}

Result<void> check(const char* function, const penstock_commit_report* report) {
  return report == nullptr ? ok() : c::check_written_struct(function, "report", report);
}
void write(const zero::CommitReport& from, penstock_commit_report* to) {
  if (to == nullptr) return;
  c::write_struct(to, {.generation = from.generation,
                       .copied = from.copied.value(),
                       .kept = from.kept.value(),
                       .manifest = from.manifest.value(),
                       .duration_seconds = c::seconds_of(from.duration),
                       .stall_seconds = c::seconds_of(from.stall)});
}

}  // namespace

penstock_error* penstock_engine_commit(penstock_engine* engine, const void* client, std::uint64_t bytes,
                                       penstock_commit_report* report) {
  const char* const function = __func__;
  return c::call(function, {{"engine", engine}}, [&]() -> Result<void> {
    PENSTOCK_TRY(check(function, report));
    PENSTOCK_TRY_ASSIGN(const auto given, client_of(function, client, bytes));
    PENSTOCK_TRY_ASSIGN(const auto committed, engine->engine().commit(given));
    write(committed, report);
    return ok();
  });
}

penstock_error* penstock_engine_begin_commit(penstock_engine* engine, const void* client,
                                             std::uint64_t bytes) {
  const char* const function = __func__;
  return c::call(function, {{"engine", engine}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto given, client_of(function, client, bytes));
    return engine->engine().begin_commit(given);
  });
}

penstock_error* penstock_engine_finish_commit(penstock_engine* engine, penstock_commit_report* report) {
  const char* const function = __func__;
  return c::call(function, {{"engine", engine}}, [&]() -> Result<void> {
    PENSTOCK_TRY(check(function, report));
    PENSTOCK_TRY_ASSIGN(const auto committed, engine->engine().finish_commit());
    write(committed, report);
    return ok();
  });
}

penstock_error* penstock_engine_resume(penstock_engine* engine, penstock_resumed** resumed) {
  return c::call(__func__, {{"engine", engine}, {"resumed", resumed}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(auto found, engine->engine().resume());
    if (found) {
      c::give(resumed, penstock_resumed{*std::move(found)});
    } else {
      *resumed = nullptr;
    }
    return ok();
  });
}

penstock_error* penstock_resumed_get_report(const penstock_resumed* resumed,
                                            penstock_resumed_report* report) {
  const char* const function = __func__;
  return c::call(function, {{"resumed", resumed}, {"report", report}}, [&]() -> Result<void> {
    PENSTOCK_TRY(c::check_written_struct(function, "report", report));
    const zero::Resumed& from = resumed->resumed;
    c::write_struct(report, {.generation = from.generation,
                             .step = from.step,
                             .ranks = from.ranks,
                             .client = from.client.data(),
                             .client_bytes = from.client.size()});
    return ok();
  });
}

penstock_error* penstock_resumed_notes(const penstock_resumed* resumed, penstock_lines** lines) {
  return c::call(__func__, {{"resumed", resumed}, {"lines", lines}}, [&]() -> Result<void> {
    c::give(lines, penstock_lines{resumed->resumed.notes});
    return ok();
  });
}

void penstock_resumed_free(penstock_resumed* resumed) {
  delete resumed;
}

penstock_error* penstock_engine_save_checkpoint(penstock_engine* engine, const char* directory,
                                                const penstock_save_options* options, penstock_lines** path) {
  const char* const function = __func__;
  return c::call(function, {{"engine", engine}, {"directory", directory}}, [&]() -> Result<void> {
    zero::SaveOptions save;
    if (options != nullptr) {
      PENSTOCK_TRY_ASSIGN(const auto from, c::read_struct(function, "options", options));
      PENSTOCK_TRY_ASSIGN(save.client, client_of(function, from.client, from.client_bytes));
      save.keep = from.keep;
    }
    PENSTOCK_TRY_ASSIGN(const auto saved, engine->engine().save_checkpoint(directory, save));
    if (path != nullptr) c::give(path, penstock_lines{{saved.path.string()}});
    return ok();
  });
}

penstock_error* penstock_engine_load_checkpoint(penstock_engine* engine, const char* directory,
                                                penstock_resumed** resumed) {
  return c::call(__func__, {{"engine", engine}, {"directory", directory}, {"resumed", resumed}},
                 [&]() -> Result<void> {
                   PENSTOCK_TRY_ASSIGN(auto loaded, engine->engine().load_checkpoint(directory));
                   c::give(resumed, penstock_resumed{std::move(loaded)});
                   return ok();
                 });
}
