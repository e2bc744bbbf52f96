#pragma once

#include "c_handles.hpp"

#include <penstock/penstock.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

// An engine of the C interface with two units, and a step of it.
namespace penstock::test {

using Config = Owned<penstock_config, penstock_config_free>;
using Layout = Owned<penstock_layout, penstock_layout_free>;
using Engine = Owned<penstock_engine, penstock_engine_free>;
using Stream = Owned<penstock_stream, penstock_stream_free>;
using Unit = Owned<penstock_unit, penstock_unit_end>;
using Gradients = Owned<penstock_gradients, penstock_gradients_end>;

inline Config config_of(const std::string& more = "", const std::string& more_of_zero = "") {
  const std::string text =
      R"({"train_batch_size": 1, "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 3)" +
      more_of_zero + "}" + more + "}";
  return made<Config>(
      [&](auto config) { return penstock_config_parse(text.c_str(), "test", nullptr, config); });
}
inline void add_unit(const Layout& layout, const char* name, std::uint64_t elements,
                     std::uint32_t group = 0) {
  std::uint32_t unit = 0;
  succeed(penstock_layout_add_unit(layout.get(), name, &unit));
  const penstock_parameter_options options{
      .size = sizeof(options), .name = "weight", .shape = &elements, .dimensions = 1, .group = group};
  succeed(penstock_layout_add_parameter(layout.get(), unit, &options, nullptr));
}
inline Layout two_units() {
  auto layout = made<Layout>(penstock_layout_create);
  add_unit(layout, "first", 1000);
  add_unit(layout, "second", 500);
  return layout;
}
inline Engine engine_of(const Config& config, const Layout& layout) {
  const penstock_engine_options options{
      .size = sizeof(options), .config = config.get(), .layout = layout.get()};
  return made<Engine>([&](auto engine) { return penstock_engine_create(&options, engine); });
}
inline std::int32_t ones(void*, std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t count,
                         float* values) {
  std::fill_n(values, count, 1.0f);
  return 0;
}
inline Stream stream_of(const Engine& engine) {
  return made<Stream>([&](auto stream) { return penstock_stream_create(engine.get(), stream); });
}
inline Unit lease(const Engine& engine, std::uint32_t unit, const Stream& stream) {
  return made<Unit>([&](auto to) { return penstock_unit_begin(engine.get(), unit, stream.get(), to); });
}
inline Gradients gradients_of(const Engine& engine, std::uint32_t unit, const Stream& stream) {
  return made<Gradients>(
      [&](auto to) { return penstock_gradients_begin(engine.get(), unit, stream.get(), to); });
}
/// One step in which each gradient is `value`.
inline void step(const Engine& engine, const Stream& stream, float value, penstock_step_outcome* outcome) {
  for (std::uint32_t unit = 2; unit-- > 0;) {
    const std::vector<float> values(unit == 0 ? 1000 : 500, value);
    const penstock_source source{
        .size = sizeof(source), .data = values.data(), .elements = values.size(), .dtype = PENSTOCK_FP32};
    succeed(penstock_engine_reduce(engine.get(), unit, &source, 1, stream.get()));
  }
  succeed(penstock_engine_step(engine.get(), outcome));
}

}  // namespace penstock::test
