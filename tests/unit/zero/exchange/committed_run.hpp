#pragma once

#include "kit/cluster.hpp"
#include "kit/saved_states.hpp"
#include "kit/scratch_directory.hpp"
#include "zero/commit/rank_directory.hpp"

#include <gtest/gtest.h>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {

/// A run of several ranks that has committed its last step.
class CommittedRun {
 public:
  explicit CommittedRun(RunOptions options) : model_(options.model), saved_(options.model) {
    options.config.penstock.durable_directories = {directory()};
    options.config.penstock.integrity = Integrity::checksum;
    options.after_steps = [this](Engine& engine) -> Result<void> {
      PENSTOCK_TRY(saved_.save(engine));
      PENSTOCK_TRY(engine.commit());
      return ok();
    };
    const RunResult run = train(options);
    if (run.error) {
      ADD_FAILURE() << run.error->message();
      return;
    }
    std::size_t next = 0;
    for (std::uint32_t unit = 0; unit < model_.units.size(); ++unit) {
      for (const ParameterId id : model_.parameters_of(unit)) parameters_[id] = run.parameters.at(next++);
    }
    for (std::uint32_t rank = 0; rank < options.ranks; ++rank)
      manifests_.push_back(RankDirectory::read_of({.directories = {directory()}}, rank, 0, 1).value());
  }

  [[nodiscard]] std::filesystem::path directory() const { return scratch_.path() / "run"; }
  /// A directory that does not exist yet.
  [[nodiscard]] std::filesystem::path out() const { return scratch_.path() / "out"; }
  [[nodiscard]] const ModelLayout& model() const { return model_; }
  [[nodiscard]] const std::vector<Manifest>& manifests() const { return manifests_; }
  /// As gathered after the last step.
  [[nodiscard]] const std::map<ParameterId, std::vector<float>>& parameters() const { return parameters_; }
  [[nodiscard]] const SavedStates& states() const { return saved_; }

 private:
  penstock::test::ScratchDirectory scratch_;
  ModelLayout model_;
  SavedStates saved_;
  std::map<ParameterId, std::vector<float>> parameters_;
  std::vector<Manifest> manifests_;
};

/// A run of two ranks whose states are on disk.
[[nodiscard]] inline RunOptions run_on_disk() {
  RunOptions options{.ranks = 2, .steps = 3};
  options.config.offload_optimizer.device = OffloadDevice::nvme;
  return options;
}

}  // namespace penstock::zero::test
