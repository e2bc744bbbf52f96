#include "c/engine.hpp"
#include "c/runtime.hpp"

#include <penstock/c/trace.h>
#include <penstock/swap/access_trace.hpp>

using namespace penstock;

penstock_error* penstock_runtime_begin_trace(penstock_runtime* runtime) {
  return c::call(__func__, {{"runtime", runtime}}, [&]() -> Result<void> {
    runtime->recording.begin(*runtime->runtime);
    return ok();
  });
}

penstock_error* penstock_runtime_save_trace(penstock_runtime* runtime, const char* label, const char* file) {
  return c::call(__func__, {{"runtime", runtime}, {"file", file}},
                 [&] { return runtime->recording.save(*runtime->runtime, label, file); });
}

penstock_error* penstock_runtime_predict_trace(penstock_runtime* runtime, const char* file) {
  return c::call(__func__, {{"runtime", runtime}, {"file", file}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto trace, swap::load_trace(file));
    return runtime->runtime->predict(trace);
  });
}

penstock_error* penstock_engine_begin_trace(penstock_engine* engine) {
  return c::call(__func__, {{"engine", engine}}, [&]() -> Result<void> {
    engine->job->recording.begin(engine->job->rank->runtime());
    return ok();
  });
}

penstock_error* penstock_engine_save_trace(penstock_engine* engine, const char* label, const char* file) {
  return c::call(__func__, {{"engine", engine}, {"file", file}},
                 [&] { return engine->job->recording.save(engine->job->rank->runtime(), label, file); });
}
