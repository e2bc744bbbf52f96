#include "c_handles.hpp"
#include "kit/scratch_directory.hpp"

#include <penstock/penstock.h>

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using test::ScratchDirectory;

using test::expect;
using test::made;
using test::Owned;
using test::succeed;
using Config = Owned<penstock_config, penstock_config_free>;
using Layout = Owned<penstock_layout, penstock_layout_free>;
using Engine = Owned<penstock_engine, penstock_engine_free>;
using Stream = Owned<penstock_stream, penstock_stream_free>;
using Unit = Owned<penstock_unit, penstock_unit_end>;
using Gradients = Owned<penstock_gradients, penstock_gradients_end>;

Config config_of(const std::string& more = "", const std::string& more_of_zero = "") {
  const std::string text =
      R"({"train_batch_size": 1, "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 3)" +
      more_of_zero + "}" + more + "}";
  return made<Config>(
      [&](auto config) { return penstock_config_parse(text.c_str(), "test", nullptr, config); });
}
void add_unit(const Layout& layout, const char* name, std::uint64_t elements, std::uint32_t group = 0) {
  std::uint32_t unit = 0;
  succeed(penstock_layout_add_unit(layout.get(), name, &unit));
  const penstock_parameter_options options{
      .size = sizeof(options), .name = "weight", .shape = &elements, .dimensions = 1, .group = group};
  succeed(penstock_layout_add_parameter(layout.get(), unit, &options, nullptr));
}
Layout two_units() {
  auto layout = made<Layout>(penstock_layout_create);
  add_unit(layout, "first", 1000);
  add_unit(layout, "second", 500);
  return layout;
}
Engine engine_of(const Config& config, const Layout& layout) {
  const penstock_engine_options options{
      .size = sizeof(options), .config = config.get(), .layout = layout.get()};
  return made<Engine>([&](auto engine) { return penstock_engine_create(&options, engine); });
}
std::int32_t ones(void*, std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t count, float* values) {
  std::fill_n(values, count, 1.0f);
  return 0;
}
Stream stream_of(const Engine& engine) {
  return made<Stream>([&](auto stream) { return penstock_stream_create(engine.get(), stream); });
}
Unit lease(const Engine& engine, std::uint32_t unit, const Stream& stream) {
  return made<Unit>([&](auto to) { return penstock_unit_begin(engine.get(), unit, stream.get(), to); });
}
Gradients gradients_of(const Engine& engine, std::uint32_t unit, const Stream& stream) {
  return made<Gradients>(
      [&](auto to) { return penstock_gradients_begin(engine.get(), unit, stream.get(), to); });
}
/// One step in which each gradient is `value`.
void step(const Engine& engine, const Stream& stream, float value, penstock_step_outcome* outcome) {
  for (std::uint32_t unit = 2; unit-- > 0;) {
    const std::vector<float> values(unit == 0 ? 1000 : 500, value);
    const penstock_source source{
        .size = sizeof(source), .data = values.data(), .elements = values.size(), .dtype = PENSTOCK_FP32};
    succeed(penstock_engine_reduce(engine.get(), unit, &source, 1, stream.get()));
  }
  succeed(penstock_engine_step(engine.get(), outcome));
}

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

TEST(CEngine, TrainsAndSaysWhyAStepWasSkipped) {
  const Engine engine = engine_of(config_of(), two_units());
  const Stream stream = stream_of(engine);
  succeed(penstock_engine_initialize(engine.get(), ones, nullptr));
  penstock_step_outcome outcome{.size = sizeof(outcome)};
  step(engine, stream, 2, &outcome);
  EXPECT_EQ(outcome.updated, 1);
  EXPECT_NEAR(outcome.gradient_norm, 2 * std::sqrt(1500.0), 1e-3);
  EXPECT_STREQ(penstock_engine_skip_reason(engine.get()), "");
  {
    const Unit parameters = lease(engine, 0, stream);
    penstock_view view{.size = sizeof(view)};
    succeed(penstock_unit_parameter(parameters.get(), 0, &view));
    EXPECT_NEAR(static_cast<float*>(view.data)[7], 1 - outcome.learning_rate, 1e-4);
  }

  step(engine, stream, std::numeric_limits<float>::infinity(), &outcome);
  EXPECT_EQ(outcome.updated, 0);
  EXPECT_STRNE(penstock_engine_skip_reason(engine.get()), "");
  penstock_engine_report report{.size = sizeof(report)};
  succeed(penstock_engine_get_report(engine.get(), &report));
  penstock_lines* lines = nullptr;
  const penstock_report_options options{.size = sizeof(options), .format = PENSTOCK_REPORT_PROMETHEUS};
  succeed(penstock_engine_report_text(engine.get(), &options, &lines));
  EXPECT_GT(penstock_lines_count(lines), 10u);
  penstock_lines_free(lines);
  const penstock_report_options with_changes{.size = sizeof(with_changes), .with_changes = 1};
  succeed(penstock_engine_report_text(engine.get(), &with_changes, &lines));
  const std::string last = penstock_lines_get(lines, penstock_lines_count(lines) - 1);
  EXPECT_TRUE(last.starts_with("what would help: ") || last.starts_with("would help most: ")) << last;
  penstock_lines_free(lines);
  const penstock_monitor_event event{.size = sizeof(event), .name = "loss", .value = 1, .place = 1};
  succeed(penstock_engine_write_events(engine.get(), &event, 1));  // no monitor is enabled
  EXPECT_EQ(report.completed_steps, 1u);
  EXPECT_EQ(report.skipped_steps, 1u);
  EXPECT_EQ(report.status, PENSTOCK_STATUS_READY);
}

TEST(CEngine, GivesItsStatesToAnother) {
  struct States {
    std::vector<float> values[2][3];
  } states;
  for (auto& unit : states.values) {
    for (auto& kind : unit) kind.resize(1000);
  }
  const auto sink = [](void* user, std::uint32_t unit, std::uint32_t, penstock_state_kind kind,
                       std::uint64_t first, std::uint64_t count, const float* values) -> std::int32_t {
    std::copy_n(values, count,
                static_cast<States*>(user)->values[unit][kind].begin() + std::ptrdiff_t(first));
    return 0;
  };
  const auto source = [](void* user, std::uint32_t unit, std::uint32_t, penstock_state_kind kind,
                         std::uint64_t first, std::uint64_t count, float* values) -> std::int32_t {
    std::copy_n(static_cast<States*>(user)->values[unit][kind].begin() + std::ptrdiff_t(first), count,
                values);
    return 0;
  };
  const Engine engine = engine_of(config_of(), two_units()), other = engine_of(config_of(), two_units());
  const Stream stream = stream_of(engine);
  succeed(penstock_engine_initialize(engine.get(), ones, nullptr));
  for (int i = 0; i < 3; ++i) step(engine, stream, 0.5f, nullptr);
  succeed(penstock_engine_read_states(engine.get(), sink, &states));
  succeed(penstock_engine_restore(other.get(), 3, source, &states));
  char a[33], b[33];
  succeed(penstock_engine_digest(engine.get(), a));
  succeed(penstock_engine_digest(other.get(), b));
  EXPECT_STREQ(a, b);
  EXPECT_EQ(std::strlen(a), 32u);

  const auto failing = [](void*, std::uint32_t, std::uint32_t, penstock_state_kind, std::uint64_t,
                          std::uint64_t, const float*) -> std::int32_t { return 42; };
  expect(penstock_engine_read_states(engine.get(), failing, nullptr), PENSTOCK_FAILED_STATE, "42");
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

/// A program that a garbage collector frees in any order.
TEST(CEngine, LivesAsLongAsWhatWasMadeFromIt) {
  Config config = config_of();
  Layout layout = two_units();
  Engine engine = engine_of(config, layout);
  config.reset();
  layout.reset();
  Stream stream = stream_of(engine);
  succeed(penstock_engine_initialize(engine.get(), ones, nullptr));
  Unit unit = lease(engine, 0, stream);
  Gradients gradients = gradients_of(engine, 1, stream);
  engine.reset();
  stream.reset();
  penstock_view view{.size = sizeof(view)};
  succeed(penstock_unit_parameter(unit.get(), 0, &view));
  EXPECT_EQ(static_cast<float*>(view.data)[999], 1.0f);
  unit.reset();
  gradients.reset();
}

TEST(CEngine, KeepsActivations) {
  const Layout layout = two_units();
  succeed(penstock_layout_set_activations(layout.get(), 3, 8192, 1));
  const Engine engine = engine_of(config_of(), layout);
  const Stream stream = stream_of(engine);
  succeed(penstock_engine_initialize(engine.get(), ones, nullptr));
  succeed(penstock_engine_begin_step(engine.get(), nullptr));
  for (const bool writes : {true, false}) {
    for (std::uint32_t i = 0; i < 3; ++i) {
      penstock_activation* activation = nullptr;
      void* data = nullptr;
      std::uint64_t bytes = 0;
      succeed(penstock_activation_begin(engine.get(), i,
                                        writes ? PENSTOCK_ACTIVATION_WRITE : PENSTOCK_ACTIVATION_LAST_READ,
                                        stream.get(), &activation, &data, &bytes));
      ASSERT_EQ(bytes, 8192u);
      if (writes) {
        std::memset(data, static_cast<int>(i + 1), bytes);
      } else {
        EXPECT_EQ(static_cast<unsigned char*>(data)[8191], i + 1);
      }
      penstock_activation_end(activation);
    }
  }
  penstock_activation* activation = nullptr;
  expect(penstock_activation_begin(engine.get(), 3, 0, stream.get(), &activation, nullptr, nullptr),
         PENSTOCK_INVALID_ARGUMENT, "3");
  expect(penstock_activation_begin(engine.get(), 0, 7, stream.get(), &activation, nullptr, nullptr),
         PENSTOCK_INVALID_ARGUMENT, "use");
}

/// Two units of 1,000,000 elements, whose states, 24 MB, have a place in a swap file and room in 64 MiB of memory.
class RankOnDisk {
 public:
  RankOnDisk() {
    auto layout = made<Layout>(penstock_layout_create);
    for (const char* name : {"first", "second"}) add_unit(layout, name, elements);
    engine_ = engine_of(
        config_of(R"(, "penstock": {"path_weights": [1], "host_budget": "64MiB", "tile_elements": 131072,
                                    "tiles_in_flight": 1})",
                  R"(, "offload_optimizer": {"device": "nvme", "pin_memory": false, "nvme_path": ")" +
                      scratch_.path().string() + "\"}"),
        layout);
    stream_ = stream_of(engine_);
    succeed(penstock_engine_initialize(engine_.get(), ones, nullptr));
  }
  [[nodiscard]] penstock_engine* get() const { return engine_.get(); }
  [[nodiscard]] std::string file(const char* name) const { return (scratch_.path() / name).string(); }
  void step() {
    const std::vector<float> values(elements, 0.5f);
    const penstock_source source{
        .size = sizeof(source), .data = values.data(), .elements = elements, .dtype = PENSTOCK_FP32};
    for (std::uint32_t unit = 2; unit-- > 0;)
      succeed(penstock_engine_reduce(engine_.get(), unit, &source, 1, stream_.get()));
    succeed(penstock_engine_step(engine_.get(), nullptr));
    succeed(penstock_engine_finish_update(engine_.get()));
  }
  [[nodiscard]] std::string digest() const {
    char digest[33] = {};
    succeed(penstock_engine_digest(engine_.get(), digest));
    return digest;
  }

 private:
  static constexpr std::uint64_t elements = 1'000'000;
  ScratchDirectory scratch_;
  Engine engine_;
  Stream stream_;
};

TEST(CEngine, LimitsItsMemoryWhileItTrains) {
  RankOnDisk limited, other;
  std::uint64_t used = 0, least = 0;
  limited.step();
  succeed(penstock_engine_memory_least(limited.get(), &least));

  expect(penstock_engine_limit_memory(limited.get(), least - 4096, &used), PENSTOCK_BUDGET_TOO_SMALL,
         "Runtime::limit_memory");
  EXPECT_EQ(used, 0u);
  succeed(penstock_engine_limit_memory(limited.get(), least, nullptr));
  limited.step();  // what was not stored is
  succeed(penstock_engine_limit_memory(limited.get(), least, &used));
  EXPECT_LT(used, least + (4 << 20));
  succeed(penstock_engine_limit_memory(limited.get(), ~std::uint64_t{0}, &used));
  EXPECT_EQ(used, 64u << 20);

  for (int i = 0; i < 2; ++i) other.step();
  EXPECT_EQ(limited.digest(), other.digest());
}

TEST(CEngine, SavesTheTraceOfAStep) {
  RankOnDisk rank;
  const std::string file = rank.file("train.trace"), again = rank.file("again.trace");
  expect(penstock_engine_save_trace(rank.get(), "train", file.c_str()), PENSTOCK_FAILED_STATE, "begin_trace");
  const auto save = [&](const std::string& to) {
    succeed(penstock_engine_begin_trace(rank.get()));
    rank.step();
    succeed(penstock_engine_save_trace(rank.get(), "train", to.c_str()));
    std::ifstream stream(to);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };

  const std::string trace = save(file);

  EXPECT_TRUE(trace.starts_with("penstock-trace 1\nlabel train\n")) << trace;
  EXPECT_NE(trace.find("optimizer_tiles second optimizer tile 0\n"), std::string::npos) << trace;
  EXPECT_EQ(save(again), trace) << "each step is alike";
}

TEST(CDurable, SavesAndLoadsACheckpoint) {
  const ScratchDirectory scratch;
  const std::string durable =
      R"(, "penstock": {"durable_directory": ")" + (scratch.path() / "run").string() + R"("})";
  const std::string checkpoints = (scratch.path() / "checkpoints").string();
  char saved[33], loaded[33];
  {
    const Engine engine = engine_of(config_of(durable), two_units());
    const Stream stream = stream_of(engine);
    penstock_resumed* resumed = nullptr;
    succeed(penstock_engine_resume(engine.get(), &resumed));
    EXPECT_EQ(resumed, nullptr) << "there is no commit yet";
    succeed(penstock_engine_initialize(engine.get(), ones, nullptr));
    step(engine, stream, 1, nullptr);
    succeed(penstock_engine_begin_commit(engine.get(), "abc", 3));
    step(engine, stream, 1, nullptr);
    penstock_commit_report report{.size = sizeof(report)};
    succeed(penstock_engine_finish_commit(engine.get(), &report));
    EXPECT_EQ(report.generation, 1u);
    EXPECT_GT(report.copied, 0u);
    const penstock_save_options options{
        .size = sizeof(options), .client = "client", .client_bytes = 6, .keep = 1};
    penstock_lines* path = nullptr;
    succeed(penstock_engine_save_checkpoint(engine.get(), checkpoints.c_str(), &options, &path));
    ASSERT_EQ(penstock_lines_count(path), 1u);
    EXPECT_EQ(std::string(penstock_lines_get(path, 0)), checkpoints + "/global_step2");
    penstock_lines_free(path);
    succeed(penstock_engine_digest(engine.get(), saved));
  }
  const Engine engine = engine_of(config_of(), two_units());
  penstock_resumed* resumed = nullptr;
  succeed(penstock_engine_load_checkpoint(engine.get(), checkpoints.c_str(), &resumed));
  penstock_resumed_report report{.size = sizeof(report)};
  succeed(penstock_resumed_get_report(resumed, &report));
  EXPECT_EQ(report.step, 2u);
  ASSERT_EQ(report.client_bytes, 6u);
  EXPECT_EQ(std::memcmp(report.client, "client", 6), 0);
  penstock_lines* notes = nullptr;
  succeed(penstock_resumed_notes(resumed, &notes));
  EXPECT_EQ(penstock_lines_count(notes), 0u);
  penstock_lines_free(notes);
  penstock_resumed_free(resumed);
  succeed(penstock_engine_digest(engine.get(), loaded));
  EXPECT_STREQ(saved, loaded);
}

}  // namespace
}  // namespace penstock
