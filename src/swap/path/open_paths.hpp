#pragma once

#include "swap/path/path.hpp"

#include <penstock/swap/runtime_options.hpp>

#include <memory>
#include <vector>

namespace penstock::swap {

using Paths = std::vector<std::unique_ptr<Path>>;

/// The paths of a runtime's options, which get the sizes of the swap files, and a message for each path that is not
/// used.
///
/// Blocks. Errors: invalid_argument, for paths that cannot be used together; those of size_swap_files() and
/// Path::create(). The options are not used then.
[[nodiscard]] Result<Paths> open_paths(RuntimeOptions& options);

}  // namespace penstock::swap
