#include "zero/engine/wear_limit.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>

namespace penstock::zero {

namespace {

std::string percent(double part) {
  char text[32];
  std::snprintf(text, sizeof(text), part < 9.99 ? "%.3g %%" : "%.0f %%", 100 * part);
  return text;
}

double of(ByteCount bytes) {
  return static_cast<double>(bytes.value());
}

std::string bytes(double count) {
  return to_string(ByteCount(static_cast<std::uint64_t>(count)));
}

}  // namespace

WearLimit::Verdict WearLimit::end_step(const std::vector<swap::PathReport>& paths, ByteCount step_writes) {
  Verdict verdict;
  if (!config_.endurance_cap) return verdict;
  const bool is_first = written_.size() != paths.size();
  written_.resize(paths.size());
  double weights = 0;
  for (const swap::PathReport& path : paths) weights += path.weight;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const ByteCount written = paths[i].counters.bytes_written;
    const double planned = of(step_writes) * paths[i].weight / weights;
    // What is still to be stored may count twice, and less of it a moment later.
    const ByteCount since = written - std::min(written, written_[i]);
    const double step = is_first || others_wrote_ ? planned : std::max(planned, of(since));
    written_[i] = std::max(written, written_[i]);
    if (paths[i].endurance.is_zero()) continue;
    const double allowed = *config_.endurance_cap * of(paths[i].endurance);
    const Refuses refuses = of(written) + step > allowed       ? Refuses::this_step
                            : of(written) + 2 * step > allowed ? Refuses::next_step
                                                               : Refuses::nothing;
    if (refuses <= verdict.refuses) continue;
    const double before = of(written) + (refuses == Refuses::next_step ? step : 0);
    const std::string writes = before > allowed ? bytes(before) + " were written before it"
                                                : "it would write " + bytes(step) + " beside the " +
                                                      bytes(before) + " that were written before it";
    verdict = {refuses, paths[i].directory.string() + ": " + writes +
                            ", this rank's part of the endurance is " + to_string(paths[i].endurance) +
                            ", and penstock.endurance_cap is " + percent(*config_.endurance_cap)};
  }
  others_wrote_ = false;
  return verdict;
}

std::vector<std::string> WearLimit::take_warnings(const std::vector<swap::PathReport>& paths) {
  next_warning_.resize(paths.size(), config_.endurance_warning);
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const ByteCount written = paths[i].counters.bytes_written, endurance = paths[i].endurance;
    if (endurance.is_zero()) continue;
    const double part = of(written) / of(endurance);
    if (part < next_warning_[i]) continue;
    next_warning_[i] = part < 1 ? 1 : std::numeric_limits<double>::infinity();
    lines.push_back(paths[i].directory.string() + ": this rank has written " + percent(part) + " of the " +
                    to_string(endurance) + " that it may write to the drive (penstock.path_endurance)");
  }
  return lines;
}

}  // namespace penstock::zero
