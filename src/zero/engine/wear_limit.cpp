#include "zero/engine/wear_limit.hpp"

#include <algorithm>
#include <cstdio>

namespace penstock::zero {

namespace {

std::string percent(double part) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g %%", 100 * part);
  return text;
}

double of(ByteCount bytes) {
  return static_cast<double>(bytes.value());
}

}  // namespace

std::optional<std::string> WearLimit::end_step(const std::vector<swap::PathReport>& paths,
                                               ByteCount step_writes) {
  if (!config_.endurance_cap) return std::nullopt;
  const bool is_first = written_.size() != paths.size();
  written_.resize(paths.size());
  double weights = 0;
  for (const swap::PathReport& path : paths) weights += path.weight;
  std::optional<std::string> reason;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const ByteCount written = paths[i].counters.bytes_written;
    const double planned = of(step_writes) * paths[i].weight / weights;
    const double step = is_first ? planned : std::max(planned, of(written - written_[i]));
    written_[i] = written;
    if (reason || paths[i].endurance.is_zero()) continue;
    // The update of this step comes before the next one.
    if (of(written) + 2 * step <= *config_.endurance_cap * of(paths[i].endurance)) continue;
    reason = paths[i].directory.string() + ": " + to_string(written) + " written of the " +
             to_string(paths[i].endurance) + " that this rank may write, and penstock.endurance_cap is " +
             percent(*config_.endurance_cap);
  }
  return reason;
}

std::vector<std::string> WearLimit::take_warnings(const std::vector<swap::PathReport>& paths) {
  warned_.resize(paths.size());
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const ByteCount written = paths[i].counters.bytes_written, endurance = paths[i].endurance;
    if (warned_[i] || endurance.is_zero() || of(written) < config_.endurance_warning * of(endurance))
      continue;
    warned_[i] = true;
    lines.push_back(paths[i].directory.string() + ": " + percent(of(written) / of(endurance)) + " of the " +
                    to_string(endurance) +
                    " that this rank may write to the drive (penstock.path_endurance)");
  }
  return lines;
}

}  // namespace penstock::zero
