#include "c_engine.hpp"

#include <penstock/penstock.h>

#include <gtest/gtest.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using test::add_unit;
using test::Config;
using test::config_of;
using test::Engine;
using test::engine_of;
using test::expect;
using test::Gradients;
using test::gradients_of;
using test::Layout;
using test::lease;
using test::made;
using test::ones;
using test::step;
using test::Stream;
using test::stream_of;
using test::succeed;
using test::two_units;

TEST(CConfig, SaysWhatIsWrong) {
  penstock_config* config = nullptr;
  expect(penstock_config_parse("{\"train_batch_sizes\": 1}", "mine.json", nullptr, &config),
         PENSTOCK_INVALID_CONFIG, "train_batch_sizes");
  expect(penstock_config_read("/penstock-none.json", nullptr, &config), PENSTOCK_NOT_FOUND,
         "/penstock-none.json");
  EXPECT_EQ(config, nullptr);
  EXPECT_STREQ(penstock_config_json(nullptr), "");
  const Config noted = config_of(R"(, "steps_per_print": 5)");
  penstock_lines* lines = nullptr;
  succeed(penstock_config_notes(noted.get(), &lines));
  ASSERT_GE(penstock_lines_count(lines), 1u);
  EXPECT_NE(std::string(penstock_lines_get(lines, 0)).find("steps_per_print"), std::string::npos);
  EXPECT_EQ(penstock_lines_get(lines, penstock_lines_count(lines)), nullptr);
  penstock_lines_free(lines);
}

TEST(CLayout, RefusesWhatItDoesNotHave) {
  const Layout layout = two_units();
  const std::uint64_t shape[] = {1ull << 40, 1ull << 40};
  penstock_parameter_options options{
      .size = sizeof(options), .name = "bias", .shape = shape, .dimensions = 2};
  expect(penstock_layout_add_parameter(layout.get(), 2, &options, nullptr), PENSTOCK_INVALID_ARGUMENT,
         "unit");
  expect(penstock_layout_add_parameter(layout.get(), 0, &options, nullptr), PENSTOCK_INVALID_ARGUMENT,
         "options.shape of bias");
  options.dimensions = 0;
  expect(penstock_layout_add_parameter(layout.get(), 0, &options, nullptr), PENSTOCK_INVALID_ARGUMENT,
         "options.dimensions of bias");
  expect(penstock_layout_share(layout.get(), 0, 5, 0), PENSTOCK_INVALID_ARGUMENT, "owner");
  expect(penstock_layout_share(layout.get(), 0, 1, 1), PENSTOCK_INVALID_ARGUMENT, "parameter");
  std::uint32_t group = 0;
  penstock_group_options wrong{.size = sizeof(wrong), .given = 16};
  expect(penstock_layout_add_group(layout.get(), &wrong, &group), PENSTOCK_INVALID_ARGUMENT, "options.given");
  wrong = {.size = sizeof(wrong), .given = PENSTOCK_GROUP_BETAS, .beta1 = 2};
  expect(penstock_layout_add_group(layout.get(), &wrong, &group), PENSTOCK_INVALID_ARGUMENT, "beta");
  const penstock_group_options good{.size = sizeof(good), .given = PENSTOCK_GROUP_WEIGHT_DECAY};
  succeed(penstock_layout_add_group(layout.get(), &good, &group));
  EXPECT_EQ(group, 1u);
  engine_of(config_of(), layout);  // what was refused has left nothing
}

TEST(CEngine, IsRefusedForALayoutThatIsNone) {
  const Config config = config_of();
  const auto empty = made<Layout>(penstock_layout_create), foreign = two_units();
  add_unit(foreign, "third", 10, /*group=*/7);
  for (const Layout* layout : {&empty, &foreign}) {
    const penstock_engine_options options{
        .size = sizeof(options), .config = config.get(), .layout = layout->get()};
    penstock_engine* engine = nullptr;
    expect(penstock_engine_create(&options, &engine), PENSTOCK_INVALID_ARGUMENT, "");
    EXPECT_EQ(engine, nullptr);
  }
}

TEST(CEngine, RefusesNull) {
  const Config config = config_of();
  const Layout layout = two_units();
  const Engine engine = engine_of(config, layout);
  const Stream stream = stream_of(engine);
  penstock_engine_options without_config{.size = sizeof(without_config), .layout = layout.get()};
  penstock_engine_options without_layout{.size = sizeof(without_layout), .config = config.get()};
  penstock_config* no_config = nullptr;
  penstock_engine* no_engine = nullptr;
  penstock_stream* no_stream = nullptr;
  penstock_unit* no_unit = nullptr;
  penstock_gradients* no_gradients = nullptr;
  penstock_activation* no_activation = nullptr;
  penstock_resumed* no_resumed = nullptr;
  penstock_lines* lines = nullptr;
  penstock_view view{.size = sizeof(view)};
  std::uint32_t number = 0;
  char digest[33];
  const std::vector<std::pair<const char*, std::function<penstock_error*()>>> calls = {
      {"file", [&] { return penstock_config_read(nullptr, nullptr, &no_config); }},
      {"config", [&] { return penstock_config_read("a", nullptr, nullptr); }},
      {"text", [&] { return penstock_config_parse(nullptr, "a", nullptr, &no_config); }},
      {"name", [&] { return penstock_config_parse("{}", nullptr, nullptr, &no_config); }},
      {"config", [&] { return penstock_config_notes(nullptr, &lines); }},
      {"layout", [&] { return penstock_layout_create(nullptr); }},
      {"layout", [&] { return penstock_layout_add_group(nullptr, nullptr, &number); }},
      {"options", [&] { return penstock_layout_add_group(layout.get(), nullptr, &number); }},
      {"layout", [&] { return penstock_layout_add_unit(nullptr, "a", nullptr); }},
      {"name", [&] { return penstock_layout_add_unit(layout.get(), nullptr, nullptr); }},
      {"options", [&] { return penstock_layout_add_parameter(layout.get(), 0, nullptr, nullptr); }},
      {"layout", [&] { return penstock_layout_share(nullptr, 0, 0, 0); }},
      {"layout", [&] { return penstock_layout_set_activations(nullptr, 0, 0, 0); }},
      {"group", [&] { return penstock_process_group_join(nullptr, nullptr); }},
      {"identity", [&] { return penstock_process_group_identity(nullptr, nullptr); }},
      {"group", [&] { return penstock_process_group_gather(nullptr, "a", digest, 1, digest); }},
      {"group", [&] { return penstock_process_group_take_messages(nullptr, &lines); }},
      {"options", [&] { return penstock_engine_create(nullptr, &no_engine); }},
      {"options.config", [&] { return penstock_engine_create(&without_config, &no_engine); }},
      {"options.layout", [&] { return penstock_engine_create(&without_layout, &no_engine); }},
      {"engine", [&] { return penstock_stream_create(nullptr, &no_stream); }},
      {"stream", [&] { return penstock_stream_create(engine.get(), nullptr); }},
      {"CUDA", [&] { return penstock_stream_wrap_cuda(engine.get(), nullptr, &no_stream); }},
      {"stream", [&] { return penstock_stream_synchronize(nullptr); }},
      {"engine", [&] { return penstock_engine_initialize(nullptr, ones, nullptr); }},
      {"fill", [&] { return penstock_engine_initialize(engine.get(), nullptr, nullptr); }},
      {"source", [&] { return penstock_engine_restore(engine.get(), 0, nullptr, nullptr); }},
      {"sink", [&] { return penstock_engine_read_states(engine.get(), nullptr, nullptr); }},
      {"digest", [&] { return penstock_engine_digest(engine.get(), nullptr); }},
      {"engine", [&] { return penstock_engine_digest(nullptr, digest); }},
      {"engine", [&] { return penstock_engine_begin_step(nullptr, nullptr); }},
      {"stream", [&] { return penstock_unit_begin(engine.get(), 0, nullptr, &no_unit); }},
      {"lease", [&] { return penstock_unit_begin(engine.get(), 0, stream.get(), nullptr); }},
      {"lease", [&] { return penstock_unit_parameter(nullptr, 0, &view); }},
      {"stream", [&] { return penstock_gradients_begin(engine.get(), 0, nullptr, &no_gradients); }},
      {"gradients", [&] { return penstock_gradients_slot(nullptr, 0, &view); }},
      {"gradients", [&] { return penstock_gradients_reduce(nullptr, stream.get()); }},
      {"sources", [&] { return penstock_engine_reduce(engine.get(), 0, nullptr, 1, stream.get()); }},
      {"engine", [&] { return penstock_engine_step(nullptr, nullptr); }},
      {"engine", [&] { return penstock_engine_finish_update(nullptr); }},
      {"stream", [&] { return penstock_engine_abandon_step(engine.get(), nullptr, nullptr); }},
      {"options", [&] { return penstock_engine_set_group(engine.get(), 0, nullptr); }},
      {"activation",
       [&] {
         return penstock_activation_begin(engine.get(), 0, 0, stream.get(), nullptr, nullptr, nullptr);
       }},
      {"engine",
       [&] {
         return penstock_activation_begin(nullptr, 0, 0, stream.get(), &no_activation, nullptr, nullptr);
       }},
      {"report", [&] { return penstock_engine_get_report(engine.get(), nullptr); }},
      {"engine", [&] { return penstock_engine_report_text(nullptr, nullptr, nullptr); }},
      {"options", [&] { return penstock_engine_report_text(engine.get(), nullptr, nullptr); }},
      {"engine", [&] { return penstock_engine_save_report(nullptr, nullptr, nullptr); }},
      {"options", [&] { return penstock_engine_save_report(engine.get(), nullptr, "report"); }},
      {"engine", [&] { return penstock_engine_write_events(nullptr, nullptr, 0); }},
      {"events", [&] { return penstock_engine_write_events(engine.get(), nullptr, 1); }},
      {"name",
       [&] {
         const penstock_monitor_event event{.size = sizeof(event)};
         return penstock_engine_write_events(engine.get(), &event, 1);
       }},
      {"lines", [&] { return penstock_engine_notes(engine.get(), nullptr); }},
      {"lines", [&] { return penstock_engine_take_messages(engine.get(), nullptr); }},
      {"engine", [&] { return penstock_engine_commit(nullptr, nullptr, 0, nullptr); }},
      {"client", [&] { return penstock_engine_commit(engine.get(), nullptr, 8, nullptr); }},
      {"client", [&] { return penstock_engine_begin_commit(engine.get(), nullptr, 8); }},
      {"engine", [&] { return penstock_engine_finish_commit(nullptr, nullptr); }},
      {"resumed", [&] { return penstock_engine_resume(engine.get(), nullptr); }},
      {"resumed", [&] { return penstock_resumed_get_report(nullptr, nullptr); }},
      {"resumed", [&] { return penstock_resumed_notes(nullptr, &lines); }},
      {"directory", [&] { return penstock_engine_save_checkpoint(engine.get(), nullptr, nullptr, nullptr); }},
      {"directory", [&] { return penstock_engine_load_checkpoint(engine.get(), nullptr, &no_resumed); }},
      {"engine",
       [&] { return penstock_engine_park(nullptr, PENSTOCK_TIER_HOST, 7, nullptr, 0, nullptr, nullptr); }},
      {"directories",
       [&] {
         return penstock_engine_park(engine.get(), PENSTOCK_TIER_NVME, 7, nullptr, 1, nullptr, nullptr);
       }},
      {"engine", [&] { return penstock_engine_unpark(nullptr, nullptr, nullptr); }},
      {"engine", [&] { return penstock_engine_limit_memory(nullptr, 0, nullptr); }},
      {"engine", [&] { return penstock_engine_memory_least(nullptr, nullptr); }},
      {"bytes", [&] { return penstock_engine_memory_least(engine.get(), nullptr); }},
      {"engine", [&] { return penstock_engine_begin_trace(nullptr); }},
      {"engine", [&] { return penstock_engine_save_trace(nullptr, nullptr, "a"); }},
      {"file", [&] { return penstock_engine_save_trace(engine.get(), nullptr, nullptr); }},
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE("call " + std::to_string(i));
    expect(calls[i].second(), PENSTOCK_INVALID_ARGUMENT, calls[i].first);
  }
  penstock_config_free(nullptr);
  penstock_layout_free(nullptr);
  penstock_process_group_free(nullptr);
  penstock_engine_free(nullptr);
  penstock_stream_free(nullptr);
  penstock_unit_end(nullptr);
  penstock_gradients_end(nullptr);
  penstock_activation_end(nullptr);
  penstock_resumed_free(nullptr);
  EXPECT_EQ(penstock_unit_count(nullptr), 0u);
  EXPECT_EQ(penstock_gradients_count(nullptr), 0u);
  EXPECT_EQ(penstock_engine_parked(nullptr), 0u);
  EXPECT_STREQ(penstock_engine_skip_reason(nullptr), "");
  penstock_rank_identity alone{.size = sizeof(alone)};
  succeed(penstock_process_group_identity(nullptr, &alone));
  EXPECT_EQ(alone.ranks, 1u);
}

TEST(CEngine, RefusesCallsOutOfTheirOrder) {
  const Engine engine = engine_of(config_of(), two_units());
  const Stream stream = stream_of(engine);
  penstock_unit* unit = nullptr;
  penstock_resumed* resumed = nullptr;
  expect(penstock_unit_begin(engine.get(), 0, stream.get(), &unit), PENSTOCK_FAILED_STATE, "");
  expect(penstock_engine_step(engine.get(), nullptr), PENSTOCK_FAILED_STATE, "");
  succeed(penstock_engine_initialize(engine.get(), ones, nullptr));
  expect(penstock_unit_begin(engine.get(), 9, stream.get(), &unit), PENSTOCK_INVALID_ARGUMENT, "9");
  expect(penstock_engine_step(engine.get(), nullptr), PENSTOCK_INVALID_ARGUMENT, "");
  expect(penstock_engine_commit(engine.get(), nullptr, 0, nullptr), PENSTOCK_FAILED_STATE, "durable");
  expect(penstock_engine_resume(engine.get(), &resumed), PENSTOCK_FAILED_STATE, "durable");
  expect(penstock_engine_unpark(engine.get(), nullptr, nullptr), PENSTOCK_FAILED_STATE, "");
  expect(penstock_engine_park(engine.get(), 9, 7, nullptr, 0, nullptr, nullptr), PENSTOCK_INVALID_ARGUMENT,
         "to");
  expect(penstock_engine_park(engine.get(), PENSTOCK_TIER_NVME, 8, nullptr, 0, nullptr, nullptr),
         PENSTOCK_INVALID_ARGUMENT, "kinds");
  const penstock_group_options options{.size = sizeof(options)};
  expect(penstock_engine_set_group(engine.get(), 3, &options), PENSTOCK_INVALID_ARGUMENT, "group");
  {
    const Gradients gradients = gradients_of(engine, 1, stream);
    penstock_view view{.size = sizeof(view)};
    expect(penstock_gradients_slot(gradients.get(), 1, &view), PENSTOCK_INVALID_ARGUMENT, "index");
    succeed(penstock_gradients_slot(gradients.get(), 0, &view));
    std::fill_n(static_cast<float*>(view.data), view.elements, 0.5f);
    succeed(penstock_gradients_reduce(gradients.get(), stream.get()));
    expect(penstock_gradients_reduce(gradients.get(), stream.get()), PENSTOCK_INVALID_ARGUMENT,
           "earlier call");
  }
  const float value = 1;
  penstock_source source{.size = sizeof(source), .data = &value, .elements = 1, .dtype = PENSTOCK_FP32};
  expect(penstock_engine_reduce(engine.get(), 0, &source, 1, stream.get()), PENSTOCK_INVALID_ARGUMENT, "");
  source.dtype = 9;
  expect(penstock_engine_reduce(engine.get(), 0, &source, 1, stream.get()), PENSTOCK_INVALID_ARGUMENT,
         "sources.dtype");
  succeed(penstock_engine_abandon_step(engine.get(), stream.get(), "the test"));
  penstock_step_outcome outcome{.size = sizeof(outcome)};
  step(engine, stream, 1, &outcome);
  EXPECT_EQ(outcome.step, 1u);
}

TEST(CEngine, IsNotInitializedByAFunctionThatFails) {
  const Engine engine = engine_of(config_of(), two_units());
  const Stream stream = stream_of(engine);
  const auto failing = [](void*, std::uint32_t unit, std::uint32_t, std::uint64_t, std::uint64_t,
                          float*) -> std::int32_t { return unit == 1 ? 7 : 0; };

  expect(penstock_engine_initialize(engine.get(), failing, nullptr), PENSTOCK_FAILED_STATE, "fill");

  penstock_unit* unit = nullptr;
  expect(penstock_unit_begin(engine.get(), 0, stream.get(), &unit), PENSTOCK_FAILED_STATE, "values");
  succeed(penstock_engine_initialize(engine.get(), ones, nullptr));
  step(engine, stream, 1, nullptr);
}

}  // namespace
}  // namespace penstock
