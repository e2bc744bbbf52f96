#pragma once

#include "unit/arguments/bad_arguments.hpp"

#include <penstock/cpu_adam/optimizers.hpp>
#include <penstock/cpu_adam/square_sum.hpp>

#include <array>
#include <span>
#include <string>
#include <vector>

namespace penstock::test {

using namespace cpu_adam;

inline constexpr std::uint64_t count = 300;

/// A tile of `count` elements in format fp32, and values for them.
struct TileBench {
  Optimizer optimizer = Optimizer::adam;
  alignas(64) std::array<std::byte, 12 * count> state{};
  alignas(64) std::array<std::byte, 2 * count> gradient{}, parameter{};
  std::vector<float> values = std::vector<float>(count, 1.0f);

  [[nodiscard]] OptimizerTile tile() {
    const std::size_t each = optimizer == Optimizer::adam ? 12 : 8;
    return {.state = HostSpan(std::span(state).first(each * count)),
            .gradient = ConstHostSpan(gradient.data(), ByteCount(gradient.size())),
            .parameter = HostSpan(std::span(parameter)),
            .elements = ElementCount(count),
            .optimizer = optimizer};
  }
  [[nodiscard]] ConstHostSpan initial() const {
    return ConstHostSpan(reinterpret_cast<const std::byte*>(values.data()), ByteCount(4 * count));
  }
  [[nodiscard]] TileStates states() const {
    const auto kept = [&](StateKind kind) {
      return keeps(optimizer, kind) ? std::span<const float>(values) : std::span<const float>();
    };
    return {values, kept(StateKind::first_moment), kept(StateKind::second_moment)};
  }
  /// That a refused call has written nothing.
  [[nodiscard]] std::string untouched() const {
    const auto zero = [](std::byte byte) { return byte == std::byte{}; };
    for (const std::span<const std::byte> bytes : {std::span<const std::byte>(state), {parameter}}) {
      for (const std::byte byte : bytes) {
        if (!zero(byte)) return "a refused call wrote";
      }
    }
    return "";
  }
};

struct WrongTile {
  const char* argument;
  const char* value;
  void (*change)(OptimizerTile& tile);
};

/// Wrong for every function that takes a tile.
inline constexpr std::array wrong_tiles = {
    WrongTile{"tile.state", "null", [](OptimizerTile& t) { t.state = HostSpan(nullptr, t.state.size()); }},
    WrongTile{"tile.state", "empty", [](OptimizerTile& t) { t.state = {}; }},
    WrongTile{"tile.state", "shorter",
              [](OptimizerTile& t) { t.state = t.state.subspan(0_B, t.state.size() - 4_B); }},
    WrongTile{"tile.state", "misaligned",
              [](OptimizerTile& t) { t.state = HostSpan(t.state.data() + 1, t.state.size()); }},
    WrongTile{"tile.elements", "0", [](OptimizerTile& t) { t.elements = {}; }},
    WrongTile{"tile.elements", "one too many",
              [](OptimizerTile& t) { t.elements = ElementCount(count + 1); }},
    WrongTile{"tile.elements", "2^63",
              [](OptimizerTile& t) { t.elements = ElementCount(std::uint64_t{1} << 63); }},
    WrongTile{"tile.elements", "the most", [](OptimizerTile& t) { t.elements = ElementCount(most); }},
    WrongTile{"tile.format", "unknown", [](OptimizerTile& t) { t.format = unknown<StateFormat>; }},
    WrongTile{"tile.optimizer", "unknown", [](OptimizerTile& t) { t.optimizer = unknown<Optimizer>; }},
    WrongTile{"tile.format", "moments, with the bytes of fp32",
              [](OptimizerTile& t) { t.format = StateFormat::moments; }},
};
/// Wrong for functions that write the parameter.
inline constexpr std::array wrong_parameters = {
    WrongTile{"tile.parameter", "null",
              [](OptimizerTile& t) { t.parameter = HostSpan(nullptr, t.parameter.size()); }},
    WrongTile{"tile.parameter", "empty", [](OptimizerTile& t) { t.parameter = {}; }},
    WrongTile{"tile.parameter", "the state",
              [](OptimizerTile& t) { t.parameter = t.state.subspan(0_B, t.parameter.size()); }},
    WrongTile{"tile.parameter_dtype", "unknown",
              [](OptimizerTile& t) { t.parameter_dtype = unknown<DType>; }},
    WrongTile{"tile.parameter_dtype", "fp32, of bf16 bytes",
              [](OptimizerTile& t) { t.parameter_dtype = DType::fp32; }},
};
/// Wrong for steps.
inline constexpr std::array wrong_gradients = {
    WrongTile{"tile.gradient", "null",
              [](OptimizerTile& t) { t.gradient = ConstHostSpan(nullptr, t.gradient.size()); }},
    WrongTile{"tile.gradient", "empty", [](OptimizerTile& t) { t.gradient = {}; }},
    WrongTile{"tile.gradient", "the state",
              [](OptimizerTile& t) { t.gradient = t.state.subspan(0_B, t.gradient.size()); }},
    WrongTile{"tile.gradient_dtype", "unknown", [](OptimizerTile& t) { t.gradient_dtype = unknown<DType>; }},
};

/// One row for each wrong tile; `call` returns the result for a tile.
template <class Call>
void add_tiles(BadArguments& bad, const char* function, std::span<const WrongTile> tiles, const Call& call,
               Optimizer optimizer = Optimizer::adam) {
  for (const WrongTile& wrong : tiles) {
    bad(function, wrong.argument, wrong.value, [&wrong, call, optimizer] {
      TileBench bench{.optimizer = optimizer};
      OptimizerTile tile = bench.tile();
      wrong.change(tile);
      return all({fails(call(bench, tile)), bench.untouched()});
    });
  }
}

}  // namespace penstock::test
