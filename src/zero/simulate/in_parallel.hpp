#pragma once

#include <penstock/parallel/workers.hpp>

#include <algorithm>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace penstock::zero::simulate {

template <class Value>
std::vector<Value> values_of(std::vector<std::optional<Value>>& made) {
  std::vector<Value> values;
  for (std::optional<Value>& value : made) values.push_back(*std::move(value));
  return values;
}

/// Of a program that does nothing else. Each simulation of a trace with a million tiles takes a GB of memory.
[[nodiscard]] inline std::uint32_t simulation_threads() {
  return std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
}

/// function(0), function(1), …, function(count - 1), on up to so many threads: simulations that do not depend on each
/// other. `function` must be safe from any thread, and not throw.
template <class Function>
auto in_parallel(std::size_t count, std::uint32_t threads_max, const Function& function) {
  using Value = std::invoke_result_t<const Function&, std::size_t>;
  std::vector<std::optional<Value>> made(count);
  const auto range = [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) made[i].emplace(function(i));
  };
  const auto threads = static_cast<std::uint32_t>(std::min<std::size_t>(count, threads_max));
  if (threads <= 1) {
    range(0, count);
    return values_of(made);
  }
  auto workers = parallel::Workers::create({.threads = threads});
  workers ? workers->parallel_blocks(count, range) : range(0, count);
  return values_of(made);
}

}  // namespace penstock::zero::simulate
