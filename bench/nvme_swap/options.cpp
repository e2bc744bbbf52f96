#include "options.hpp"
#include "measure/command_line.hpp"

#include <algorithm>
#include <map>
#include <thread>

namespace penstock::bench {

namespace {

using swap::BenchmarkPattern;

const std::map<std::string, tiers::EngineChoice> engines = {{"auto", tiers::EngineChoice::automatic},
                                                            {"io_uring", tiers::EngineChoice::io_uring},
                                                            {"libaio", tiers::EngineChoice::libaio},
                                                            {"threads", tiers::EngineChoice::threads}};
const std::map<std::string, BenchmarkPattern> patterns = {{"read", BenchmarkPattern::read},
                                                          {"write", BenchmarkPattern::write},
                                                          {"mixed", BenchmarkPattern::mixed},
                                                          {"swap", BenchmarkPattern::swap}};
const std::map<std::string, cpu_adam::StateFormat> formats = {
    {"fp32", cpu_adam::StateFormat::fp32},
    {"split", cpu_adam::StateFormat::split},
    {"split_bf16", cpu_adam::StateFormat::split_bf16},
    {"split_q8", cpu_adam::StateFormat::split_q8}};
const std::map<std::string, std::vector<bool>> switches = {
    {"off", {false}}, {"on", {true}}, {"both", {false, true}}};

struct Words {
  std::vector<std::string> engines = {"auto"}, operations = {"read", "write", "mixed"};
  std::vector<std::uint64_t> request_sizes = {(4_MiB).value()}, in_flight = {(16_MiB).value()};
  std::string format = "fp32", compute = "both", integrity = "both";
  std::uint64_t file_size = (1_GiB).value(), tile_elements = 262'144;
  bool json = false, csv = false;
};

std::vector<Setting> settings(const Words& words) {
  std::vector<Setting> all;
  for (const std::string& engine : words.engines) {
    for (const std::uint64_t request_size : words.request_sizes) {
      for (const std::uint64_t in_flight : words.in_flight) {
        all.push_back({engines.at(engine), ByteCount(request_size), ByteCount(in_flight)});
      }
    }
  }
  return all;
}

/// In the order of the patterns. swap adds mixed, which is its upper limit.
std::vector<BenchmarkPattern> operations(const Words& words) {
  const auto wanted = [&](const char* word) {
    return std::find(words.operations.begin(), words.operations.end(), word) != words.operations.end();
  };
  std::vector<BenchmarkPattern> all;
  if (wanted("read") || wanted("all")) all.push_back(BenchmarkPattern::read);
  if (wanted("write") || wanted("all")) all.push_back(BenchmarkPattern::write);
  if (wanted("mixed") || wanted("swap") || wanted("all")) all.push_back(BenchmarkPattern::mixed);
  if (wanted("swap") || wanted("all")) all.push_back(BenchmarkPattern::swap);
  return all;
}

std::vector<TileWork> work(const Words& words) {
  std::vector<TileWork> all;
  for (const bool compute : switches.at(words.compute)) {
    if (!compute) all.push_back({});
    for (const bool integrity : switches.at(words.integrity)) {
      if (compute) all.push_back({.compute = true, .integrity = integrity});
    }
  }
  return all;
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, int& status) {
  Options options;
  Words words;
  options.swap.threads = std::max(1u, std::thread::hardware_concurrency());
  measure::CommandLine app(
      "Measures reads, writes and swaps of swap files through the library, and with fio for comparison");
  app.add_option("--path", options.directories,
                 "directories; each contestant has a swap file in each of them")
      .required();
  measure::add_io_deadline(app, options.io_deadline);
  app.add_option("--file-size", words.file_size, "size of each file, such as 1GiB")
      .show_default()
      .bytes()
      .positive();
  app.add_option("--operation", words.operations,
                 "read, write, mixed (reads and writes alternate), swap (a tile is read, updated and written "
                 "back; measures mixed too, its upper limit) or all")
      .show_default()
      .delimiter(',')
      .one_of({"read", "write", "mixed", "swap", "all"});
  app.add_option("--engine", words.engines, "auto, io_uring, libaio or threads, or a list of them to compare")
      .show_default()
      .delimiter(',')
      .one_of(engines);
  app.add_option("--request-size", words.request_sizes, "longest request; a list is a sweep")
      .show_default()
      .delimiter(',')
      .bytes()
      .positive();
  app.add_option("--in-flight", words.in_flight, "bytes in flight on each path; a list is a sweep")
      .show_default()
      .delimiter(',')
      .bytes()
      .positive();
  app.add_option("--format", words.format, "format of the optimizer state that swap moves")
      .show_default()
      .one_of(formats);
  app.add_option("--tile-elements", words.tile_elements, "parameters of a tile")
      .show_default()
      .range(std::uint64_t{1024}, std::uint64_t{1} << 32);
  app.add_option("--compute", words.compute,
                 "run the Adam step between read and write of swap: on, off or both")
      .show_default()
      .one_of(switches);
  app.add_option("--integrity", words.integrity,
                 "verify each block's checksum before that step and compute it after: on, off or both")
      .show_default()
      .one_of(switches);
  app.add_option("--threads", options.swap.threads, "threads that compute").show_default().range(1u, 1024u);
  measure::add_rounds(app, options.rounds);
  app.add_option("--seconds", options.seconds, "length of each run of a round")
      .show_default()
      .number_range(0.05, 3600);
  app.add_flag("--fio", options.fio, "measure fio too, on the same files, in the same rounds");
  app.add_flag("--allow-page-cache", options.allow_page_cache,
               "measure even where the page cache is not bypassed; the output says so");
  const measure::CommandOption json = app.add_flag("--json", words.json, "print one line of JSON");
  app.add_flag("--csv", words.csv,
               "print CSV, a line for each figure; the description of the machine goes to standard error")
      .excludes(json);
  if (const auto end = app.parse(argc, argv)) {
    status = *end;
    return std::nullopt;
  }

  options.file_size = ByteCount(words.file_size);
  options.settings = settings(words);
  options.operations = operations(words);
  options.swap.format = formats.at(words.format);
  options.swap.tile_elements = ElementCount(words.tile_elements);
  options.swap.work = work(words);
  options.output = words.json ? Output::json : words.csv ? Output::csv : Output::table;
  return options;
}

}  // namespace penstock::bench
