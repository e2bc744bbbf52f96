#include "unit/arguments/tile_bench.hpp"

#include <cmath>
#include <memory>
#include <span>

namespace penstock::test {
namespace {

Result<AdamOutcome> step_in_segments(const AdamConfig& config, std::uint64_t step, float factor,
                                     const AdamTile& tile, const AdamExecution& execution = {}) {
  const std::array segments = {AdamSegment{ElementCount(7), {}}, AdamSegment{tile.elements, config}};
  return adam_step_in_segments(segments, step, factor, tile, execution);
}
Result<AdamOutcome> step_in_one(const AdamConfig& config, std::uint64_t step, float factor,
                                const AdamTile& tile, const AdamExecution& execution = {}) {
  return adam_step(config, step, factor, tile, execution);
}

using Step = decltype(&step_in_one);

/// For adam_step() and adam_step_in_segments().
void add_steps(BadArguments& bad, const char* function, Step step) {
  const auto call = [step](TileBench&, const AdamTile& tile) { return step({}, 1, 1.0f, tile, {}); };
  add_tiles(bad, function, wrong_tiles, call);
  add_tiles(bad, function, wrong_parameters, call);
  add_tiles(bad, function, wrong_gradients, call);
  const auto with = [&bad, function, step](const char* argument, float value, auto change) {
    bad(function, std::string("config.") + argument, std::to_string(value), [=] {
      TileBench bench;
      AdamConfig config;
      change(config, value);
      return all({refused(step(config, 1, 1.0f, bench.tile(), {}), argument), bench.untouched()});
    });
  };
  for (const float value : {-1.0f, nan, infinity, -infinity}) {
    with("learning_rate", value, [](AdamConfig& c, float x) { c.learning_rate = x; });
    with("beta1", value, [](AdamConfig& c, float x) { c.beta1 = x; });
    with("beta2", value, [](AdamConfig& c, float x) { c.beta2 = x; });
    with("epsilon", value, [](AdamConfig& c, float x) { c.epsilon = x; });
    with("weight_decay", value, [](AdamConfig& c, float x) { c.weight_decay = x; });
  }
  with("beta1", 1.0f, [](AdamConfig& c, float x) { c.beta1 = x; });
  with("beta2", 1.0f, [](AdamConfig& c, float x) { c.beta2 = x; });
  bad(function, "config.decay_mode", "unknown", [=] {
    TileBench bench;
    return all(
        {fails(step({.decay_mode = unknown<AdamDecay>}, 1, 1.0f, bench.tile(), {})), bench.untouched()});
  });
  bad(function, "step", "0", [=] {
    TileBench bench;
    return all({refused(step({}, 0, 1.0f, bench.tile(), {}), "step"), bench.untouched()});
  });
  for (const float factor : {nan, infinity, -infinity}) {
    bad(function, "gradient_factor", std::to_string(factor), [=] {
      TileBench bench;
      return all({refused(step({}, 1, factor, bench.tile(), {}), "gradient_factor"), bench.untouched()});
    });
  }
  bad(function, "execution.isa", "unknown", [=] {
    TileBench bench;
    return all({fails(step({}, 1, 1.0f, bench.tile(), {.isa = unknown<Isa>})), bench.untouched()});
  });
  bad(function, "execution.workers", "moved from", [=] {
    TileBench bench;
    auto workers = parallel::Workers::create({.threads = 2}).value();
    const parallel::Workers kept = std::move(workers);
    return expect(step({}, 1, 1.0f, bench.tile(), {.workers = &workers}).has_value(), "the step failed");
  });
}

void add_segment_rows(BadArguments& bad) {
  const auto with = [&bad](const char* value, std::vector<std::uint64_t> ends) {
    bad("adam_step_in_segments", "segments", value, [ends] {
      TileBench bench;
      std::vector<AdamSegment> segments;
      for (const std::uint64_t end : ends) segments.push_back({ElementCount(end), {}});
      return all(
          {refused(adam_step_in_segments(segments, 1, 1.0f, bench.tile()), "segment"), bench.untouched()});
    });
  };
  with("none", {});
  with("one without elements", {100, 100, 300});
  with("in descending order", {200, 100, 300});
  with("one too short", {299});
  with("one too long", {301});
  with("beyond every tile", {most});
}

void add_state_rows(BadArguments& bad) {
  const auto initialize = [](TileBench& b, const AdamTile& tile) {
    return initialize_tile(b.initial(), DType::fp32, tile);
  };
  const auto restore = [](TileBench& b, const AdamTile& tile) { return restore_tile(b.states(), tile); };
  const auto read = [](TileBench& b, const AdamTile& tile) {
    return read_states(tile, StateKind::master, ElementCount(1), b.values);
  };
  add_tiles(bad, "initialize_tile", wrong_tiles, initialize);
  add_tiles(bad, "initialize_tile", wrong_parameters, initialize);
  add_tiles(bad, "restore_tile", wrong_tiles, restore);
  add_tiles(bad, "restore_tile", wrong_parameters, restore);
  add_tiles(bad, "read_states", wrong_tiles, read);
  for (const std::uint64_t bytes : {std::uint64_t{0}, 4 * count - 4, 4 * count + 4, 4 * count - 1}) {
    bad("initialize_tile", "initial", std::to_string(bytes) + " B", [=] {
      TileBench b;
      b.values.resize(2 * count);
      const ConstHostSpan initial(b.initial().data(), ByteCount(bytes));
      return all({refused(initialize_tile(initial, DType::fp32, b.tile()), "initial"), b.untouched()});
    });
  }
  bad("initialize_tile", "initial", "null", [] {
    TileBench b;
    return all({fails(initialize_tile(ConstHostSpan(nullptr, ByteCount(4 * count)), DType::fp32, b.tile())),
                b.untouched()});
  });
  bad("initialize_tile", "initial_dtype", "unknown", [] {
    TileBench b;
    return all({fails(initialize_tile(b.initial(), unknown<DType>, b.tile())), b.untouched()});
  });
  for (const float value : {nan, infinity}) {
    bad("restore_tile", "states.first_moment", std::to_string(value), [=] {
      TileBench b;
      std::vector<float> wrong(count, value);
      return all({fails(restore_tile({b.values, wrong, b.values}, b.tile())), b.untouched()});
    });
  }
  for (const float value : {nan, infinity, -1.0f}) {
    bad("restore_tile", "states.second_moment", std::to_string(value), [=] {
      TileBench b;
      std::vector<float> wrong(count, value);
      return all({fails(restore_tile({b.values, b.values, wrong}, b.tile())), b.untouched()});
    });
  }
  for (int which = 0; which < 3; ++which) {
    for (const bool null : {false, true}) {
      bad("restore_tile", "states",
          std::string(null ? "null" : "one too few") + " of " + std::to_string(which), [=] {
            TileBench b;
            AdamStates states = b.states();
            auto& span = which == 0 ? states.master : which == 1 ? states.first_moment : states.second_moment;
            span = null ? std::span<const float>() : span.first(count - 1);
            return all({fails(restore_tile(states, b.tile())), b.untouched()});
          });
    }
  }
  for (const std::uint64_t first : {std::uint64_t{1}, count, count + 1, most}) {
    bad("read_states", "first", std::to_string(first), [=] {
      TileBench b;
      return refused(read_states(b.tile(), StateKind::master, ElementCount(first), b.values), "");
    });
  }
  bad("read_states", "kind", "unknown", [] {
    TileBench b;
    return fails(read_states(b.tile(), unknown<StateKind>, {}, b.values));
  });
}

/// Of the bench's memory: a gradient, and a parameter and moments in the memory of the state.
AdamArrays arrays_of(TileBench& bench) {
  const HostSpan state = bench.tile().state;
  const ByteCount each(4 * count);
  return {.parameter = state.subspan(ByteCount(0), each),
          .gradient = bench.tile().gradient,
          .first_moment = state.subspan(each, each),
          .second_moment = state.subspan(each + each, each),
          .gradient_dtype = DType::bf16};
}

void add_array_rows(BadArguments& bad) {
  const auto with = [&bad](const char* argument, const char* value, auto change) {
    bad("adam_step_in_arrays", argument, value, [=] {
      TileBench bench;
      AdamArrays arrays = arrays_of(bench);
      change(arrays);
      return all({fails(adam_step_in_arrays({}, 1, 1.0f, arrays)), bench.untouched()});
    });
  };
  with("parameter", "too short", [](AdamArrays& a) { a.parameter = a.parameter.subspan({}, ByteCount(8)); });
  with("gradient", "none", [](AdamArrays& a) { a.gradient = {}; });
  with("first_moment", "the parameter", [](AdamArrays& a) { a.first_moment = a.parameter; });
  with("second_moment", "misaligned",
       [](AdamArrays& a) { a.second_moment = HostSpan(a.second_moment.data() - 1, a.second_moment.size()); });
  with("parameter_dtype", "unknown", [](AdamArrays& a) { a.parameter_dtype = unknown<DType>; });
  with("gradient_dtype", "another", [](AdamArrays& a) { a.gradient_dtype = DType::fp32; });
  with("moment_dtype", "unknown", [](AdamArrays& a) { a.moment_dtype = unknown<DType>; });
  bad("adam_step_in_arrays", "step", "0", [] {
    TileBench bench;
    return all({refused(adam_step_in_arrays({}, 0, 1.0f, arrays_of(bench)), "step"), bench.untouched()});
  });
  bad("adam_step_in_arrays", "gradient_factor", "NaN", [] {
    TileBench bench;
    const auto result = adam_step_in_arrays({}, 1, std::nanf(""), arrays_of(bench));
    return all({fails(result), bench.untouched()});
  });
}

void add_square_sum_rows(BadArguments& bad) {
  alignas(4) static const std::array<std::byte, 16> bytes{};
  const auto with = [&bad](const char* argument, const char* value, ConstHostSpan gradient, DType dtype) {
    bad("square_sum", argument, value, [=] { return fails(square_sum(gradient, dtype)); });
  };
  const ConstHostSpan all{std::span(bytes)};
  with("gradient", "not a whole number of elements", all.subspan({}, ByteCount(7)), DType::fp32);
  with("gradient", "misaligned", all.subspan(ByteCount(1), ByteCount(4)), DType::fp32);
  with("dtype", "unknown", all, unknown<DType>);
}

void add_format_rows(BadArguments& bad) {
  constexpr auto none = unknown<StateFormat>;
  bad("tile_bytes", "format", "unknown", [] { return refused(tile_bytes(none, ElementCount(1)), "format"); });
  bad("block_bytes", "format", "unknown",
      [] { return refused(block_bytes(none, ElementCount(1)), "format"); });
  for (const std::uint64_t elements : {std::uint64_t{1} << 63, most}) {
    bad("tile_bytes", "elements", std::to_string(elements),
        [=] { return refused(tile_bytes(StateFormat::fp32, ElementCount(elements)), "elements"); });
    bad("block_bytes", "elements", std::to_string(elements),
        [=] { return refused(block_bytes(StateFormat::fp32, ElementCount(elements)), "elements"); });
  }
  bad("default_tile_elements", "format", "unknown",
      [] { return expect(default_tile_elements(none) == block_elements, "not one block"); });
  bad("state_alignment", "format", "unknown",
      [] { return expect(state_alignment(none).bytes() > 0, "no alignment"); });
  bad("shares_parameter", "format", "unknown", [] {
    (void)shares_parameter(none);
    return harmless();
  });
  bad("takes_parameter", "format", "unknown", [] {
    (void)takes_parameter(none, DType::bf16);
    return harmless();
  });
  bad("to_string", "kind", "unknown",
      [] { return expect(!to_string(unknown<StateKind>).empty(), "no text"); });
}

}  // namespace

void add_adam_rows(BadArguments& bad) {
  add_steps(bad, "adam_step", &step_in_one);
  add_steps(bad, "adam_step_in_segments", &step_in_segments);
  add_segment_rows(bad);
  add_state_rows(bad);
  add_array_rows(bad);
  add_square_sum_rows(bad);
  add_format_rows(bad);
  bad("adam_step", "tile", "a default one", [] {
    const auto outcome = adam_step({}, 1, 1.0f, {});
    return expect(outcome && outcome->blocks_updated == 0,
                  "a tile without elements is updated by doing nothing");
  });
}

}  // namespace penstock::test
