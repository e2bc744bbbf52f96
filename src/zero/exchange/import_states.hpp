#pragma once

#include <penstock/base/result.hpp>
#include <penstock/zero/config/config.hpp>
#include <penstock/zero/layout/model_layout.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

namespace penstock::zero::exchange {

struct ImportOptions {
  /// A safetensors file with states, an index of such files, or a directory with states.safetensors or its index.
  std::filesystem::path states;
  Config config;                                   ///< of the run that is to go on
  std::vector<std::filesystem::path> directories;  ///< the new durable directories
  /// The trainer's, of the same parameters, if its division into units is another one than that of the states; its
  /// groups get the settings of those of the states.
  std::optional<ModelLayout> layout = {};
  /// Called with the bytes read so far, and those of all states.
  std::function<void(ByteCount done, ByteCount all)> progress = {};
};

struct ImportReport {
  std::uint64_t step = 0;
  std::uint64_t parameters = 0;
  ByteCount bytes;  ///< of masters and moments
};

/// Makes a durable directory from what export_commit() has written with states: Engine::resume() in it continues the
/// run, with any number of ranks. Of the configuration, what states are of counts: dtype, optimizer and state_format;
/// offloads, stage and batch sizes do not. Blocks.
///
/// Errors: not_found, for a state that is missing; already_exists, for directories that have a commit; invalid_config,
/// for another optimizer; invalid_argument, for a tensor of another shape or type, or one that is no parameter's; those
/// of StatesDescription, Rank::create(), Engine::restore() and Engine::commit().
[[nodiscard]] Result<ImportReport> import_states(const ImportOptions& options);

}  // namespace penstock::zero::exchange
