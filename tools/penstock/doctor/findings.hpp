#pragma once

#include <penstock/swap/runtime_options.hpp>
#include <penstock/zero/config/config.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace penstock::tool {

/// One capability: found, used or not, why, what to do.
struct Finding {
  enum class State {
    used,
    unused,    ///< there, and something else serves or nothing asks for it
    reduced,   ///< missing, or there in part: a run works, at a price
    unknown,   ///< not to be told from here
    unusable,  ///< what was asked for cannot work
  };
  State state = State::used;
  std::string capability;
  std::string found;   ///< what was probed, in a few words
  std::string why;     ///< it is not used, and what follows; empty when it is
  std::string remedy;  ///< empty when there is nothing to do
};

[[nodiscard]] const char* to_string(Finding::State state);

/// Errors keep their details on further lines; a finding has one.
[[nodiscard]] std::string one_line(const Error& error);

/// What does not depend on a path. Probes by doing: sets up rings, maps memory.
[[nodiscard]] std::vector<Finding> examine_machine();

/// What its directory can do as a home of swap files, moved as `options` say. Makes a scratch file there,
/// without a name.
[[nodiscard]] std::vector<Finding> examine_path(const swap::PathOptions& options);

/// What can be told of a configuration without its model. The paths of one that can be read are added to
/// `paths`; those that are there already are to be moved as it says.
[[nodiscard]] std::vector<Finding> examine_config(const std::filesystem::path& file, std::uint32_t world_size,
                                                  std::vector<swap::PathOptions>& paths);

}  // namespace penstock::tool
