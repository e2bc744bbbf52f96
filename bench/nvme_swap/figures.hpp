#pragma once

#include "contest.hpp"
#include "measure/statistics.hpp"

#include <optional>
#include <string>
#include <vector>

namespace penstock::bench {

/// One contestant at one operation: medians over the rounds.
struct Figure {
  std::string operation, contestant, engine;
  ByteCount request_size, in_flight;
  bool is_fio = false;
  Hands hands;
  measure::Center gb_per_second;
  double cpu_s_per_gb = 0, driver_s_per_gb = 0, p50_us = 0, p99_us = 0, p999_us = 0;
  std::uint64_t requests = 0;                     ///< of all rounds
  std::optional<double> parameters_g_per_second;  ///< of swap
  // Medians of what two contestants did in the same round.
  std::optional<measure::Center> to_fio;        ///< to the best of fio, by its median
  std::optional<measure::Center> to_mixed;      ///< of swap, to the mixed load of the same setting
  std::optional<measure::Center> to_unchecked;  ///< of swap with checksums, to the same without
};

/// In the order of the events.
[[nodiscard]] std::vector<Figure> figures(const Contest& contest);

}  // namespace penstock::bench
