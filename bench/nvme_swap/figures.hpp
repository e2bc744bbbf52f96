#pragma once

#include "contest.hpp"
#include "measure/statistics.hpp"

#include <optional>
#include <string>
#include <vector>

namespace penstock::bench {

/// The result of one contestant at one operation: medians over the rounds.
struct Figure {
  std::string operation, contestant, engine;
  ByteCount request_size, in_flight;
  bool is_fio = false;
  TileWork work;
  measure::Center gb_per_second;
  double cpu_s_per_gb = 0, driver_s_per_gb = 0, p50_us = 0, p99_us = 0, p999_us = 0;
  std::uint64_t requests = 0;                     ///< in all rounds
  std::optional<double> parameters_g_per_second;  ///< swap only
  // Medians of the ratio of two contestants' rates in the same round.
  std::optional<measure::Center> to_fio;        ///< divided by the fio variant with the best median
  std::optional<measure::Center> to_mixed;      ///< swap only: divided by the mixed load of the same setting
  std::optional<measure::Center> to_unchecked;  ///< swap with checksums: divided by swap without
  /// Swap with compute on one drive, beside all other operations: the rate that is simulated from theirs, divided by
  /// it.
  std::optional<measure::Center> simulated;
};

/// In the order of the events.
[[nodiscard]] std::vector<Figure> figures(const Contest& contest);

}  // namespace penstock::bench
