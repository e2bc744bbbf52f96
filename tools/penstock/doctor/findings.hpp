#pragma once

#include <penstock/swap/runtime_options.hpp>
#include <penstock/zero/config/config.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace penstock::tool {

/// One capability: its state, the probe's result, the consequence and the remedy.
struct Finding {
  enum class State {
    used,
    unused,    ///< available, but something better is used or nothing needs it
    reduced,   ///< missing in whole or in part: a run works, but slower or with fewer features
    unknown,   ///< cannot be determined here
    unusable,  ///< a run that needs it fails
  };
  State state = State::used;
  std::string capability;
  std::string found;   ///< the result of the probe, in a few words
  std::string why;     ///< why it is not used, or what its absence costs; empty when it is used
  std::string remedy;  ///< empty when there is nothing to do
};

[[nodiscard]] const char* to_string(Finding::State state);

/// The error's message without its advice, its lines joined by "; ".
[[nodiscard]] std::string one_line(const Error& error);
/// The error's advice; `otherwise` if it has none.
[[nodiscard]] std::string advice_of(const Error& error, std::string otherwise);

/// Examines everything that does not depend on a path. Probes by use: sets up rings, maps memory.
[[nodiscard]] std::vector<Finding> examine_machine();

/// Examines the directory of `options` for swap files with these options. Creates an unnamed scratch file there. A
/// directory that does not answer within the deadline of `options` is unusable.
[[nodiscard]] std::vector<Finding> examine_path(const swap::PathOptions& options);

/// Examines a configuration as far as possible without its model. If the file is valid, adds its paths to `paths` and
/// applies its I/O settings to those of them that are already there.
[[nodiscard]] std::vector<Finding> examine_config(const std::filesystem::path& file, std::uint32_t world_size,
                                                  std::vector<swap::PathOptions>& paths);

}  // namespace penstock::tool
