#include "unit/arguments/tile_bench.hpp"

namespace penstock::test {
namespace {

using Step = Result<UpdateOutcome> (*)(const Hyperparameters& config, std::uint64_t step, float factor,
                                       const OptimizerTile& tile, const UpdateExecution& execution);

Result<UpdateOutcome> step_in_segments(const Hyperparameters& config, std::uint64_t step, float factor,
                                       const OptimizerTile& tile, const UpdateExecution& execution) {
  const std::array segments = {OptimizerSegment{ElementCount(7), config},
                               OptimizerSegment{tile.elements, config}};
  return optimizer_step_in_segments(segments, step, factor, tile, execution);
}
Result<UpdateOutcome> step_in_one(const Hyperparameters& config, std::uint64_t step, float factor,
                                  const OptimizerTile& tile, const UpdateExecution& execution) {
  return optimizer_step(config, step, factor, tile, execution);
}

/// Rows of a step with wrong hyperparameters, in which `change` sets the named one.
template <class Config, class Change>
void add_wrong(BadArguments& bad, const char* function, Step step, Optimizer optimizer, const char* argument,
               std::initializer_list<float> values, const Change& change) {
  for (const float value : values) {
    bad(function, std::string("config.") + argument, std::to_string(value), [=] {
      TileBench bench{.optimizer = optimizer};
      Config config;
      change(config) = value;
      return all({refused(step(config, 1, 1.0f, bench.tile(), {}), argument), bench.untouched()});
    });
  }
}

void add_steps_of(BadArguments& bad, const char* function, Step step, const Hyperparameters& config) {
  const Optimizer optimizer = optimizer_of(config);
  const auto call = [=](TileBench&, const OptimizerTile& tile) { return step(config, 1, 1.0f, tile, {}); };
  add_tiles(bad, function, wrong_tiles, call, optimizer);
  add_tiles(bad, function, wrong_parameters, call, optimizer);
  add_tiles(bad, function, wrong_gradients, call, optimizer);
  bad(function, "config", "of another optimizer", [=] {
    TileBench bench{.optimizer = optimizer};
    return all({refused(step(AdamConfig{}, 1, 1.0f, bench.tile(), {}), "optimizer"), bench.untouched()});
  });
  bad(function, "step", "0", [=] {
    TileBench bench{.optimizer = optimizer};
    return all({refused(step(config, 0, 1.0f, bench.tile(), {}), "step"), bench.untouched()});
  });
  for (const float factor : {nan, infinity, -infinity}) {
    bad(function, "gradient_factor", std::to_string(factor), [=] {
      TileBench bench{.optimizer = optimizer};
      return all({refused(step(config, 1, factor, bench.tile(), {}), "gradient_factor"), bench.untouched()});
    });
  }
  bad(function, "execution.isa", "unknown", [=] {
    TileBench bench{.optimizer = optimizer};
    return all({fails(step(config, 1, 1.0f, bench.tile(), {.isa = unknown<Isa>})), bench.untouched()});
  });
  for (const StateFormat format : {StateFormat::split, StateFormat::split_bf16, StateFormat::split_q8}) {
    bad(function, "tile.format", std::string(to_string(format)), [=] {
      TileBench bench{.optimizer = optimizer};
      OptimizerTile tile = bench.tile();
      tile.format = format;
      return all({refused(step(config, 1, 1.0f, tile, {}), "fp32 or moments", ErrorCode::unsupported),
                  bench.untouched()});
    });
  }
}

void add_steps(BadArguments& bad, const char* function, Step step) {
  add_steps_of(bad, function, step, LionConfig{});
  add_steps_of(bad, function, step, AdagradConfig{});
  const auto lion = [&](const char* argument, std::initializer_list<float> values, auto change) {
    add_wrong<LionConfig>(bad, function, step, Optimizer::lion, argument, values, change);
  };
  const auto adagrad = [&](const char* argument, std::initializer_list<float> values, auto change) {
    add_wrong<AdagradConfig>(bad, function, step, Optimizer::adagrad, argument, values, change);
  };
  const auto wrong = {-1.0f, nan, infinity, -infinity};
  const auto wrong_beta = {-1.0f, 1.0f, nan, infinity, -infinity};
  lion("learning_rate", wrong, [](LionConfig& c) -> float& { return c.learning_rate; });
  lion("beta1", wrong_beta, [](LionConfig& c) -> float& { return c.beta1; });
  lion("beta2", wrong_beta, [](LionConfig& c) -> float& { return c.beta2; });
  lion("weight_decay", wrong, [](LionConfig& c) -> float& { return c.weight_decay; });
  adagrad("learning_rate", wrong, [](AdagradConfig& c) -> float& { return c.learning_rate; });
  adagrad("epsilon", wrong, [](AdagradConfig& c) -> float& { return c.epsilon; });
  adagrad("weight_decay", wrong, [](AdagradConfig& c) -> float& { return c.weight_decay; });
}

void add_segment_rows(BadArguments& bad) {
  const auto with = [&bad](const char* value, std::vector<std::uint64_t> ends) {
    bad("optimizer_step_in_segments", "segments", value, [ends] {
      TileBench bench{.optimizer = Optimizer::lion};
      std::vector<OptimizerSegment> segments;
      for (const std::uint64_t end : ends) segments.push_back({ElementCount(end), LionConfig{}});
      return all({refused(optimizer_step_in_segments(segments, 1, 1.0f, bench.tile()), "segment"),
                  bench.untouched()});
    });
  };
  with("none", {});
  with("one without elements", {100, 100, 300});
  with("one too short", {299});
  with("beyond every tile", {most});
}

void add_state_rows(BadArguments& bad, Optimizer optimizer) {
  const auto initialize = [](TileBench& b, const OptimizerTile& tile) {
    return initialize_tile(b.initial(), DType::fp32, tile);
  };
  const auto restore = [](TileBench& b, const OptimizerTile& tile) { return restore_tile(b.states(), tile); };
  const auto read = [](TileBench& b, const OptimizerTile& tile) {
    return read_states(tile, StateKind::master, ElementCount(1), b.values);
  };
  add_tiles(bad, "initialize_tile", wrong_tiles, initialize, optimizer);
  add_tiles(bad, "restore_tile", wrong_tiles, restore, optimizer);
  add_tiles(bad, "restore_tile", wrong_parameters, restore, optimizer);
  add_tiles(bad, "read_states", wrong_tiles, read, optimizer);
  bad("restore_tile", "states", "with one that the optimizer does not keep", [=] {
    TileBench b{.optimizer = optimizer};
    return all({refused(restore_tile({b.values, b.values, b.values}, b.tile()), "_moment"), b.untouched()});
  });
  bad("restore_tile", "states", "without the one that the optimizer keeps", [=] {
    TileBench b{.optimizer = optimizer};
    return all({refused(restore_tile({b.values, {}, {}}, b.tile()), "_moment"), b.untouched()});
  });
  bad("read_states", "kind", "one that the optimizer does not keep", [=] {
    TileBench b{.optimizer = optimizer};
    const bool lion = optimizer == Optimizer::lion;
    return refused(
        read_states(b.tile(), lion ? StateKind::second_moment : StateKind::first_moment, {}, b.values),
        "kind");
  });
}

void add_layout_rows(BadArguments& bad) {
  bad("TileLayout::TileLayout", "of_optimizer", "unknown", [] {
    const TileLayout layout(StateFormat::fp32, unknown<Optimizer>);
    return all({refused(tile_bytes(layout, ElementCount(1)), "optimizer"),
                refused(block_bytes(layout, ElementCount(1)), "optimizer"),
                expect(default_tile_elements(layout) == block_elements, "not one block")});
  });
  bad("TileLayout::TileLayout", "of_format", "one that the optimizer does not take", [] {
    const TileLayout layout(StateFormat::split, Optimizer::adagrad);
    return all({refused(tile_bytes(layout, ElementCount(1)), "adagrad", ErrorCode::unsupported),
                expect(default_tile_elements(layout) == block_elements, "not one block")});
  });
  bad("is_custom", "optimizer", "unknown",
      [] { return expect(!is_custom(unknown<Optimizer>), "it is custom"); });
  bad("states_of", "optimizer", "unknown",
      [] { return expect(states_of(unknown<Optimizer>).empty(), "it keeps states"); });
  bad("keeps", "optimizer", "unknown",
      [] { return expect(!keeps(unknown<Optimizer>, StateKind::master), "it keeps a master"); });
  bad("keeps", "kind", "unknown",
      [] { return expect(!keeps(Optimizer::adam, unknown<StateKind>), "it keeps an unknown state"); });
  bad("to_string", "optimizer", "unknown",
      [] { return expect(!to_string(unknown<Optimizer>).empty(), "no text"); });
}

}  // namespace

void add_optimizer_rows(BadArguments& bad) {
  add_steps(bad, "optimizer_step", &step_in_one);
  add_steps(bad, "optimizer_step_in_segments", &step_in_segments);
  add_segment_rows(bad);
  for (const Optimizer optimizer : {Optimizer::lion, Optimizer::adagrad}) add_state_rows(bad, optimizer);
  add_layout_rows(bad);
}

}  // namespace penstock::test
