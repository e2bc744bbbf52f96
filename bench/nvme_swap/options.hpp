#pragma once

#include <penstock/cpu_adam/state_format.hpp>
#include <penstock/swap/disk_benchmark.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace penstock::bench {

/// The I/O settings of one Penstock contestant.
struct Setting {
  tiers::EngineChoice engine = tiers::EngineChoice::automatic;
  ByteCount request_size, in_flight;
};

/// The work done on a tile between its read and its write.
struct TileWork {
  bool compute = false;    ///< run the Adam step; otherwise the bytes are written back unchanged
  bool integrity = false;  ///< verify each block's checksum and compute the new one; with compute only
};

struct SwapOptions {
  cpu_adam::StateFormat format = cpu_adam::StateFormat::fp32;
  ElementCount tile_elements;
  std::uint32_t threads = 1;  ///< number of compute threads
  std::vector<TileWork> work;
};

enum class Output : std::uint8_t { table, json, csv };

struct Options {
  std::vector<std::filesystem::path> directories;
  ByteCount file_size;
  std::vector<Setting> settings;
  std::vector<swap::BenchmarkPattern> operations;
  SwapOptions swap;
  std::uint32_t rounds = 5;
  double seconds = 1.0;  ///< length of each run
  TimePoint io_deadline = swap::PathOptions().deadline;
  bool fio = false, allow_page_cache = false;
  Output output = Output::table;
};

/// Parses the command line. Returns nothing when the program must exit with `status`: after --help, or after an
/// error, which has been printed.
[[nodiscard]] std::optional<Options> parse_options(int argc, char** argv, int& status);

}  // namespace penstock::bench
