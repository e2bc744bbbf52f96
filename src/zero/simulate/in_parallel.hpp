#pragma once

#include <penstock/parallel/workers.hpp>

#include <algorithm>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace penstock::zero::simulate {

/// function(0), function(1), …, function(count - 1), on as many threads as the machine has: simulations that do not
/// depend on each other. `function` must be safe from any thread, and not throw.
template <class Function>
auto in_parallel(std::size_t count, const Function& function) {
  using Value = std::invoke_result_t<const Function&, std::size_t>;
  std::vector<std::optional<Value>> made(count);
  const auto range = [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) made[i].emplace(function(i));
  };
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const auto threads = static_cast<std::uint32_t>(std::clamp<std::size_t>(count, 1, cores));
  auto workers = parallel::Workers::create({.threads = threads});
  workers ? workers->parallel_blocks(count, range) : range(0, count);
  std::vector<Value> values;
  for (std::optional<Value>& value : made) values.push_back(*std::move(value));
  return values;
}

}  // namespace penstock::zero::simulate
