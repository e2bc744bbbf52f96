#include "c_engine.hpp"
#include "kit/scratch_directory.hpp"

#include <penstock/penstock.h>

#include <gtest/gtest.h>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
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
using test::ScratchDirectory;
using test::step;
using test::Stream;
using test::stream_of;
using test::succeed;
using test::two_units;
using test::Unit;

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
