#pragma once

#include <penstock/cpu_adam/state_format.hpp>
#include <penstock/swap/disk_benchmark.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace penstock::bench {

/// How files are moved: one contestant of ours.
struct Setting {
  tiers::EngineChoice engine = tiers::EngineChoice::automatic;
  ByteCount request_size, in_flight;
};

/// What becomes of a tile between its read and its write.
struct Hands {
  bool compute = false;    ///< the Adam step; without it the bytes go back as they came
  bool integrity = false;  ///< each block verified and sealed; with compute only
};

struct SwapOptions {
  cpu_adam::StateFormat format = cpu_adam::StateFormat::fp32;
  ElementCount tile_elements;
  std::uint32_t threads = 1;  ///< that compute
  std::vector<Hands> hands;
};

enum class Output : std::uint8_t { table, json, csv };

struct Options {
  std::vector<std::filesystem::path> directories;
  ByteCount file_size;
  std::vector<Setting> settings;
  std::vector<swap::BenchmarkPattern> operations;
  SwapOptions swap;
  int rounds = 5;
  double seconds = 1.0;  ///< of each run
  bool fio = false, allow_page_cache = false;
  Output output = Output::table;
};

/// Reads the command line. None when the program is to end with `status`: after --help, and after an error,
/// which has been printed.
[[nodiscard]] std::optional<Options> parse_options(int argc, char** argv, int& status);

}  // namespace penstock::bench
