#include "c/engine.hpp"
#include "c/runtime.hpp"

#include <penstock/c/trace.h>
#include <penstock/swap/access_trace.hpp>

namespace {

using namespace penstock;

Result<void> save(swap::Runtime& runtime, const char* label, const char* file) {
  PENSTOCK_TRY_ASSIGN(const auto trace, runtime.end_trace(label == nullptr ? "" : label));
  return swap::save_trace(trace, file);
}

}  // namespace

penstock_error* penstock_runtime_begin_trace(penstock_runtime* runtime) {
  return c::call(__func__, {{"runtime", runtime}}, [&]() -> Result<void> {
    runtime->runtime->begin_trace();
    return ok();
  });
}

penstock_error* penstock_runtime_save_trace(penstock_runtime* runtime, const char* label, const char* file) {
  return c::call(__func__, {{"runtime", runtime}, {"file", file}},
                 [&] { return save(*runtime->runtime, label, file); });
}

penstock_error* penstock_runtime_predict_trace(penstock_runtime* runtime, const char* file) {
  return c::call(__func__, {{"runtime", runtime}, {"file", file}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto trace, swap::load_trace(file));
    return runtime->runtime->predict(trace);
  });
}

penstock_error* penstock_engine_begin_trace(penstock_engine* engine) {
  return c::call(__func__, {{"engine", engine}}, [&]() -> Result<void> {
    engine->job->rank->runtime().begin_trace();
    return ok();
  });
}

penstock_error* penstock_engine_save_trace(penstock_engine* engine, const char* label, const char* file) {
  return c::call(__func__, {{"engine", engine}, {"file", file}},
                 [&] { return save(engine->job->rank->runtime(), label, file); });
}
