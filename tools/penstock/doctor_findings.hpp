#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace penstock::tool {

/// One capability of this machine.
struct Finding {
  enum class State { used, reduced, unusable } state = State::used;
  std::string capability;
  std::string found;        ///< what was probed, in a few words
  std::string consequence;  ///< of its being reduced or unusable; empty when used
  std::string remedy;       ///< empty when there is nothing to do
};

[[nodiscard]] const char* to_string(Finding::State state);

/// What does not depend on a path. Probes by doing: sets up a ring, maps memory.
[[nodiscard]] std::vector<Finding> examine_machine();

/// What `directory` can do as a home of swap files. Makes a scratch file there, without a name.
[[nodiscard]] std::vector<Finding> examine_path(const std::filesystem::path& directory);

}  // namespace penstock::tool
