#pragma once

#include <penstock/swap/runtime.hpp>
#include <penstock/zero/config/config.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::zero {

/// Compares what a rank writes to its drives with their endurance. Used by the trainer's thread.
class WearLimit {
 public:
  /// `config` outlives it.
  explicit WearLimit(const PenstockConfig& config) : config_(config) {}

  enum class Refuses : std::uint8_t { nothing, next_step, this_step };  // in the order of their weight
  struct Verdict {
    Refuses refuses = Refuses::nothing;
    std::string reason;
  };
  /// At the end of a step, before its update: whether that, or the update of the next step, would write more than the
  /// cap allows. `paths` count as written what is still to be stored of the updates before. `step_writes`: what a step
  /// writes to all drives, as planned; it is taken to write as much as the last one has, if that is more.
  [[nodiscard]] Verdict end_step(const std::vector<swap::PathReport>& paths, ByteCount step_writes);
  /// A commit, parking and a limit of the memory write too: what is written until end_step() is not what a step writes.
  void note_other_writes() { others_wrote_ = true; }
  /// A line for each drive that has come to the part of its endurance of which a warning was asked, and another one
  /// at its end.
  [[nodiscard]] std::vector<std::string> take_warnings(const std::vector<swap::PathReport>& paths);

 private:
  const PenstockConfig& config_;
  std::vector<ByteCount> written_;    // by path, at the end of the last step
  std::vector<double> next_warning_;  // by path: the part of the endurance; infinite after the last one
  bool others_wrote_ = false;
};

}  // namespace penstock::zero
