#pragma once

#include "gpt/model_config.hpp"
#include "gpt/state_file.hpp"

#include <penstock/base/result.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>

namespace gpt {

/// The files of states that a training begins with, and the one that it writes once it has ended.
struct TrainingStates {
  struct Paths {
    std::optional<std::filesystem::path> base, resume, save;
  };
  /// Errors: those of StateFile; invalid_argument, for adapters without a base, a base that is not used, and a training
  /// that has ended already.
  [[nodiscard]] static penstock::Result<TrainingStates> open(const Paths& paths, const ModelConfig& model,
                                                             const TrainingConfig& training);

  [[nodiscard]] std::uint32_t first_step() const {
    return resumed ? static_cast<std::uint32_t>(resumed->progress().steps) : 0;
  }

  std::optional<StateFile> base, resumed, saved;
};

}  // namespace gpt
