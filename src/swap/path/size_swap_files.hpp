#pragma once

#include <penstock/swap/runtime_options.hpp>

#include <span>
#include <string>
#include <vector>

namespace penstock::swap {

/// Sizes the swap files of several paths. Each reserves its share of the need, by weight, or what is free there if
/// that is less and the others have room for the rest; and may grow, unreserved, to hold all of it, for paths that
/// fail. A path that has no room for one tensor is left out. Weights of zero, on any path, are measured first; see
/// measure_weights(). Directories of one file system share what is free there.
///
/// Returns a line for each path that is left out. Blocks. Errors: invalid_argument, for a weight below zero or not
/// finite; no_space (wanted, free, each path); those of measure_weights() and FileSystem::free_space.
[[nodiscard]] Result<std::vector<std::string>> size_swap_files(const SwapNeed& need,
                                                               std::vector<PathOptions>& paths);

/// The paths' speeds beside each other: each path's share of what all of them read and write in a third of a second,
/// on files of a few queues' length that are written once before, with everything running at once, as it will. Speeds
/// that differ by less than a quarter are taken for equal: that much is noise in so short a time.
///
/// Blocks. Errors: those of DiskBenchmark.
[[nodiscard]] Result<std::vector<double>> measure_weights(std::span<const PathOptions> paths);

/// What measure_weights() makes of speeds; a pure function. The slowest path has the weight 1.
[[nodiscard]] std::vector<double> weights_of(std::span<const double> speeds);

}  // namespace penstock::swap
