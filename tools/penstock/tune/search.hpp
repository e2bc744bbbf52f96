#pragma once

#include "choice.hpp"
#include "measure/storage_device.hpp"

#include <penstock/swap/disk_benchmark.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace penstock::tool {

/// The result of tune().
struct Tuned {
  struct Tried {
    Candidate at_first;  ///< rates of the first phase, which measures all settings
    Candidate at_last;  ///< rates of the second phase, which measures the best settings; empty for the others
  };
  std::vector<Tried> tried;         ///< the best first, by their rates of the first phase
  std::size_t left_out = 0;         ///< number of settings for which there was no time
  Choice choice;                    ///< among the settings of the second phase; indices in `tried`
  std::vector<double> read, write;  ///< bytes per second of the chosen setting, all paths together, by round
  std::vector<double>
      path_rates;  ///< mixed rate of each path with the chosen setting, all paths concurrently
  std::string engine, notes;
  std::vector<measure::StorageDevice> devices;  ///< of the directories
};

/// Finds the request size and the bytes in flight with the highest total rate over all directories, with as many
/// bytes read as written, as in an optimizer step. Measures all settings briefly, then the best ones for longer.
///
/// Ends about `seconds` after its start, however slow the disks are: it skips work when time runs out, and no single
/// piece takes longer than writing one file or emptying one queue. Every candidate keeps a file in every directory
/// until the end, because removing files disturbs the disk. `io_deadline` is that of each request and of each file
/// operation at the start. Progress goes to standard error. Blocks.
///
/// Errors: unsupported, when the page cache is not bypassed; no_space; those of describe_storage and DiskBenchmark.
[[nodiscard]] Result<Tuned> tune(const std::vector<std::filesystem::path>& directories, double seconds,
                                 TimePoint io_deadline);

}  // namespace penstock::tool
