#include "report.hpp"

#include <fmt/format.h>

namespace penstock::bench {

namespace {

/// Prints one line for consecutive loads with the same description.
void print_loads(std::FILE* to, const Contest& contest) {
  std::size_t alike = 0;
  for (std::size_t i = 0; i < contest.loads().size(); ++i) {
    ++alike;
    const std::string line = describe_load(*contest.loads()[i]);
    if (i + 1 < contest.loads().size() && describe_load(*contest.loads()[i + 1]) == line) continue;
    fmt::print(to, "{} file{}: {}\n", alike, alike == 1 ? "" : "s", line);
    alike = 0;
  }
}

}  // namespace

std::vector<std::string> describe_directories(const Contest& contest) {
  std::vector<std::string> lines;
  for (const swap::PathReport& path : contest.loads().front()->paths()) {
    lines.push_back(fmt::format(
        "{}: {}, {}, alignment {} B", path.directory.string(), to_string(contest.devices()[lines.size()]),
        path.file.direct ? "direct I/O" : "BUFFERED I/O", path.file.alignment.bytes()));
  }
  return lines;
}

std::string describe_load(const swap::DiskBenchmark& load) {
  const swap::PathReport path = load.paths().front();
  const bool ring = path.engine == "io_uring";
  const std::string notes = !path.notes.empty() ? ": " + path.notes
                            : ring              ? ": files and buffers registered"
                                                : "";
  return fmt::format("{}, requests of {}, {} in flight, transfers of {}{}; buffers {}", path.engine,
                     to_string(path.request_max), to_string(path.in_flight_max), to_string(load.transfer()),
                     notes, load.describe_memory());
}

void print_header(std::FILE* to, const Contest& contest, const measure::Machine& machine) {
  const Options& options = contest.options();
  fmt::print(to, "{}, {}, {} cores, load {:.1f}, transparent huge pages {}\n", machine.kernel, machine.cpu,
             machine.cores, machine.load, machine.huge_pages);
  for (const std::string& line : describe_directories(contest)) fmt::print(to, "{}\n", line);
  print_loads(to, contest);
  fmt::print(to,
             "files of {}, {} in each directory, each written once before; fio uses the first; {} rounds of "
             "{} s, medians\n",
             to_string(options.file_size), contest.loads().size(), options.rounds, options.seconds);
  if (!contest.tile_size().is_zero()) {
    fmt::print(to, "swap: tiles of {} parameters, {} in format {}, {} threads compute\n",
               to_string(options.swap.tile_elements), to_string(contest.tile_size()),
               to_string(options.swap.format), options.swap.threads);
  }
  for (const std::string& line : contest.caveats()) fmt::print(to, "caveat: {}\n", line);
}

}  // namespace penstock::bench
