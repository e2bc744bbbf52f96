#pragma once

#include <penstock/swap/runtime_options.hpp>

#include <span>
#include <string>
#include <vector>

namespace penstock::swap {

/// Sizes the swap files of several paths, as RuntimeOptions::swap_need says. Directories of one file system share its
/// free space. If any weight is zero, measure_weights() is called first.
///
/// Returns one line for each path that is not used. Blocks. Errors: invalid_argument, for a weight below zero or not
/// finite; no_space (wanted, free, each path); those of measure_weights() and FileSystem::free_space.
[[nodiscard]] Result<std::vector<std::string>> size_swap_files(const SwapNeed& need,
                                                               std::vector<PathOptions>& paths);

/// Measures the speeds of all paths at the same time, as a run uses them: the bytes that each reads and writes in a
/// third of a second, on files of a few queue lengths that were written once before. Speeds that differ by less than a
/// quarter count as equal, because so short a measurement varies as much.
///
/// Blocks. Errors: those of DiskBenchmark.
[[nodiscard]] Result<std::vector<double>> measure_weights(std::span<const PathOptions> paths);

/// The weights that measure_weights() computes from speeds. Pure. The slowest path has the weight 1.
[[nodiscard]] std::vector<double> weights_of(std::span<const double> speeds);

}  // namespace penstock::swap
