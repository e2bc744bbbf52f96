#pragma once

#include "choice.hpp"

#include <penstock/swap/disk_benchmark.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace penstock::tool {

/// What a search came to.
struct Tuned {
  struct Tried {
    Candidate at_first;  ///< all of them, in the same rounds
    Candidate at_last;   ///< the best of those, in rounds of their own; the others have no rates
  };
  std::vector<Tried> tried;        ///< the best first, as they stood at first
  std::size_t left_out = 0;        ///< candidates for which there was no time
  Choice choice;                   ///< among the finalists: indices of `tried`
  double read = 0, write = 0;      ///< bytes a second of the chosen one, all paths together
  std::vector<double> path_rates;  ///< mixed, of the chosen one, all paths at once
  std::string engine, notes;
};

/// Looks for the request size and the bytes in flight at which all directories together move most, half of
/// it read and half written, as an optimizer step does it: first everything for a moment, then the best
/// again for longer.
///
/// Ends about `seconds` after it began, whatever the disks do: work is left out, and no piece of it takes
/// longer than writing one file or emptying one queue. Every candidate has a file in every directory until
/// the end, since removing files disturbs the disk. Progress goes to standard error. Blocks.
///
/// Errors: unsupported, where the page cache answers for the disk; no_space; those of DiskBenchmark.
[[nodiscard]] Result<Tuned> tune(const std::vector<std::filesystem::path>& directories, double seconds);

}  // namespace penstock::tool
