#pragma once

#include <penstock/swap/runtime.hpp>
#include <penstock/zero/config/config.hpp>

#include <optional>
#include <string>
#include <vector>

namespace penstock::zero {

/// Compares what a rank writes to its drives with their endurance. Used by the trainer's thread.
class WearLimit {
 public:
  /// `config` outlives it.
  explicit WearLimit(const PenstockConfig& config) : config_(config) {}

  /// At the end of a step, before its update; `step_writes`: what a step writes to all drives, as planned. Returns why
  /// the next step would write more than the cap allows, or nothing: it is taken to write as much as the last one has.
  [[nodiscard]] std::optional<std::string> end_step(const std::vector<swap::PathReport>& paths,
                                                    ByteCount step_writes);
  /// A line for each drive that has come to the part of its endurance of which a warning was asked; once each.
  [[nodiscard]] std::vector<std::string> take_warnings(const std::vector<swap::PathReport>& paths);

 private:
  const PenstockConfig& config_;
  std::vector<ByteCount> written_;  // by path, at the end of the last step
  std::vector<bool> warned_;        // by path
};

}  // namespace penstock::zero
