#include <penstock/cpu_adam/optimizer_tile.hpp>

#include "base/number_text.hpp"
#include "cpu_adam/block_moments.hpp"
#include "cpu_adam/block_view.hpp"
#include "cpu_adam/check_tile.hpp"
#include "kernels/floating_point_mode.hpp"
#include "kernels/operands.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

namespace penstock::cpu_adam {

using detail::block_count;
using detail::BlockView;
using detail::parallel_blocks;

namespace {

/// `kind` holds a value for each element, or none if the tile's optimizer does not keep it.
Result<void> check_count(StateKind kind, std::span<const float> values, const OptimizerTile& tile) {
  const ElementCount wanted = keeps(tile.optimizer, kind) ? tile.elements : ElementCount();
  if (ElementCount(values.size()) == wanted) return ok();
  return Error::invalid_argument("restore_tile")
      .object(std::string(to_string(kind)))
      .reason("for the optimizer " + std::string(to_string(tile.optimizer)))
      .wanted(wanted)
      .got(values.size());
}

/// Errors: invalid_argument, for values that a part of the tile is in.
Result<void> check_apart(const char* operation, const char* name, std::span<const float> values,
                         const OptimizerTile& tile) {
  const auto range = kernels::ByteRange::of(ConstHostSpan(values));
  const std::string with = name;
  PENSTOCK_TRY(kernels::check_apart(operation, (with + " and state").c_str(), range,
                                    kernels::ByteRange::of(tile.state)));
  return kernels::check_apart(operation, (with + " and parameter").c_str(), range,
                              kernels::ByteRange::of(tile.parameter));
}

/// "master or first_moment"
std::string names_of(std::span<const StateKind> kinds) {
  std::string names;
  for (const StateKind kind : kinds) names.append(names.empty() ? "" : " or ").append(to_string(kind));
  return names;
}

template <class Accepts>
Result<void> check_values(const char* name, std::span<const float> values, const char* wanted,
                          const Accepts& accepts) {
  const auto bad = std::find_if(values.begin(), values.end(), [&](float value) { return !accepts(value); });
  if (bad == values.end()) return ok();
  return Error::invalid_argument("restore_tile")
      .object(std::string(name) + "[" + std::to_string(bad - values.begin()) + "]")
      .wanted(wanted)
      .got(number_text(*bad));
}

Result<void> check_states(const TileStates& states, const OptimizerTile& tile) {
  PENSTOCK_TRY(check_count(StateKind::master, states.master, tile));
  PENSTOCK_TRY(check_count(StateKind::first_moment, states.first_moment, tile));
  PENSTOCK_TRY(check_count(StateKind::second_moment, states.second_moment, tile));
  PENSTOCK_TRY(check_apart("restore_tile", "master", states.master, tile));
  PENSTOCK_TRY(check_apart("restore_tile", "first_moment", states.first_moment, tile));
  PENSTOCK_TRY(check_apart("restore_tile", "second_moment", states.second_moment, tile));
  const bool any_sign = is_custom(tile.optimizer);
  const bool has_fp32 = tile.format == StateFormat::fp32 || tile.format == StateFormat::moments;
  if (states.may_be_non_finite && has_fp32) {
    return check_values("second_moment", states.second_moment, "no number below 0",
                        [any_sign](float value) { return any_sign || !(value < 0.0f); });
  }
  PENSTOCK_TRY(check_values("first_moment", states.first_moment, "a finite number",
                            [](float value) { return std::isfinite(value); }));
  return check_values(
      "second_moment", states.second_moment, any_sign ? "a finite number" : "a finite number, 0 or more",
      [any_sign](float value) { return std::isfinite(value) && (any_sign || value >= 0.0f); });
}

}  // namespace

Result<void> initialize_tile(ConstHostSpan initial, DType initial_dtype, const OptimizerTile& tile,
                             parallel::Workers* workers) {
  PENSTOCK_TRY(detail::check_tile("initialize_tile", tile));
  PENSTOCK_TRY(detail::check_initial("initialize_tile", initial, initial_dtype, tile));

  OptimizerTile target = tile;
  target.gradient = {};
  const ByteCount initial_size = size_of(initial_dtype);
  parallel_blocks(workers, block_count(tile), [&](std::size_t first, std::size_t last) noexcept {
    std::array<float, 1024> values;
    for (std::size_t block = first; block < last; ++block) {
      const BlockView view(target, block);
      std::memset(view.state.data(), 0, view.state.size().value());
      for (std::uint64_t at = 0; at < view.count; at += values.size()) {
        const auto some = std::span(values).first(std::min<std::uint64_t>(values.size(), view.count - at));
        detail::convert(initial.subspan(initial_size * (view.first + at), initial_size * some.size()),
                        initial_dtype, HostSpan(some), DType::fp32);
        view.set_masters(at, some);
      }
    }
  });
  return ok();
}

Result<void> restore_tile(const TileStates& states, const OptimizerTile& tile, parallel::Workers* workers) {
  PENSTOCK_TRY(detail::check_tile("restore_tile", tile));
  PENSTOCK_TRY(check_states(states, tile));

  OptimizerTile target = tile;
  target.gradient = {};
  parallel_blocks(workers, block_count(tile), [&](std::size_t first, std::size_t last) noexcept {
    const kernels::DefaultFloatingPointMode mode;
    for (std::size_t block = first; block < last; ++block) {
      const BlockView view(target, block);
      view.set_masters(0, states.master.subspan(view.first, view.count));
      const auto part = [&](std::span<const float> moments) {
        return moments.empty() ? moments : moments.subspan(view.first, view.count);
      };
      detail::set_moments(view, part(states.first_moment), part(states.second_moment));
    }
  });
  return ok();
}

Result<void> read_states(const OptimizerTile& tile, StateKind kind, ElementCount first,
                         std::span<float> values) {
  if (to_string(kind) == "unknown") {
    return Error::invalid_argument("read_states").object("kind").wanted("an enumerator").got(unsigned(kind));
  }
  if (!states_of(tile.optimizer).empty() && !keeps(tile.optimizer, kind)) {
    return Error::invalid_argument("read_states")
        .object("kind")
        .reason("the optimizer " + std::string(to_string(tile.optimizer)) + " does not keep it")
        .wanted(names_of(states_of(tile.optimizer)))
        .got(std::string(to_string(kind)));
  }
  const bool reads_parameter = kind == StateKind::master && shares_parameter(tile.format);
  PENSTOCK_TRY(reads_parameter ? detail::check_tile("read_states", tile)
                               : detail::check_state("read_states", tile));
  if (first > tile.elements || ElementCount(values.size()) > tile.elements - first) {
    return Error::invalid_argument("read_states")
        .object("values")
        .reason("beyond the tile's end")
        .wanted(tile.elements)
        .got(std::to_string(values.size()) + " values from " + std::to_string(first.value()) + " on");
  }
  OptimizerTile whole = tile;
  whole.gradient = {};
  if (!reads_parameter) whole.parameter = {};
  PENSTOCK_TRY(check_apart("read_states", "values", values, whole));
  const kernels::DefaultFloatingPointMode mode;
  for (std::uint64_t at = first.value(); !values.empty();) {
    const BlockView view(whole, at / block_elements.value());
    const auto some = values.first(std::min(values.size(), view.first + view.count - at));
    switch (kind) {
      case StateKind::master: view.get_masters(at - view.first, some); break;
      case StateKind::first_moment: detail::get_first_moments(view, at - view.first, some); break;
      case StateKind::second_moment: detail::get_second_moments(view, at - view.first, some); break;
    }
    at += some.size();
    values = values.subspan(some.size());
  }
  return ok();
}

}  // namespace penstock::cpu_adam
