#pragma once

#include "swap/simulate/replay.hpp"

#include <penstock/base/result.hpp>
#include <penstock/base/units.hpp>

#include <filesystem>
#include <string>
#include <string_view>

namespace penstock::zero::simulate {

/// A machine that a file describes, see docs/simulation.md.
struct Machine {
  swap::ReplayCosts costs;
  double update = 0;      ///< bytes of optimizer states a second that its processors update; 0: not given
  ByteCount memory;       ///< of the host; 0: not given, so that every plan fits
  std::string file = {};  ///< that describes it, for messages; empty: none
  /// Of each rank; 0: not given, so that what needs it takes no time, or is refused.
  struct Device {
    double flops = 0;      ///< floating-point operations a second, as achieved in matrix products
    double link = 0;       ///< bytes a second that a rank receives in a gather
    double host_copy = 0;  ///< bytes a second between host memory and the device, each way
    double update = 0;  ///< bytes of optimizer states a second that it updates in its memory; 0: in no time
    ByteCount memory;   ///< 0: not given, so that every plan fits
  } device;
};

/// The text is Hjson as that of a configuration: JSON that may have comments. Rates are bytes a second. Example:
///
///     {
///       "disk": {"read": "6.8 GB", "write": "4 GB", "mixed": "5.1 GB", "endurance": "600 TB", "count": 2},
///       "use": {"parameter_shards": "20 GB", "optimizer_tiles": "9 GB"},   // of traces; others take no time
///       "update": "9 GB",                                                  // of models, as the devices
///       "device": {"flops": 1.2e14, "link": "20 GB", "host_copy": "12 GB", "update": "1.3 TB"},
///       "memory": "1 TB",          // of the host; a device may have one too
///       "shared_processor": true   // the update and the trainer share it
///     }
struct MachineFile {
  /// Strict: an unknown key is an error. `name` stands for the file's in messages.
  ///
  /// Errors: invalid_config, with every error of the file, its path and its line.
  [[nodiscard]] static Result<Machine> parse(std::string_view text, const std::string& name);
  /// Reads a file of at most 16 MiB. Errors: as parse(), and those of the system.
  [[nodiscard]] static Result<Machine> read(const std::filesystem::path& file);
};

}  // namespace penstock::zero::simulate
