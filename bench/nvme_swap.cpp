// How fast swap files are read and written through the library, and how near that is to fio on the same
// files, with the same kind of memory, in the same minutes.

#include "fio.hpp"
#include "machine.hpp"
#include "statistics.hpp"
#include "storage_device.hpp"

#include <penstock/swap/path_load.hpp>

#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iterator>
#include <map>

namespace penstock::bench {
namespace {

using swap::LoadPattern;
using swap::PathLoad;

struct Options {
  PathLoad::Options load;
  int rounds = 5;
  double seconds = 1.0;
  bool json = false, fio = false;
};

/// The median run of one contestant at one operation.
struct Figure {
  std::string name;
  double gb_per_second, spread, cpu_s_per_gb, driver_s_per_gb;
  std::uint64_t requests;  ///< of all rounds
};

struct Row {
  LoadPattern operation;
  Figure ours;
  std::vector<Figure> fio;

  [[nodiscard]] const Figure* best_fio() const {
    const auto best = std::max_element(fio.begin(), fio.end(), [](const Figure& a, const Figure& b) {
      return a.gb_per_second < b.gb_per_second;
    });
    return best == fio.end() ? nullptr : &*best;
  }
};

const std::map<std::string, tiers::EngineChoice> engines = {{"auto", tiers::EngineChoice::automatic},
                                                            {"io_uring", tiers::EngineChoice::io_uring},
                                                            {"libaio", tiers::EngineChoice::libaio},
                                                            {"threads", tiers::EngineChoice::threads}};

/// Fair settings at the usual sizes, and what fio does when nobody tells it about pages.
const std::vector<FioVariant> fio_variants = {
    {.name = "fio 4 MiB x 4", .request_size = 4_MiB, .depth = 4},
    {.name = "fio 1 MiB x 16", .request_size = 1_MiB, .depth = 16},
    {.name = "fio 1 MiB x 32", .request_size = 1_MiB, .depth = 32},
    {.name = "fio 4 MiB x 4, default buffers", .request_size = 4_MiB, .depth = 4, .huge_pages = false},
};

/// fio's word for it.
const char* fio_word(LoadPattern pattern) {
  switch (pattern) {
    case LoadPattern::read: return "read";
    case LoadPattern::write: return "write";
    case LoadPattern::mixed:
    case LoadPattern::swap: break;
  }
  return "rw";
}

Sample to_sample(const swap::LoadSample& sample) {
  const auto seconds = [](TimePoint time) { return std::chrono::duration<double>(time).count(); };
  const double gigabytes = static_cast<double>(sample.total().value()) * 1e-9;
  return {.gb_per_second = sample.bytes_per_second() * 1e-9,
          .cpu_s_per_gb = seconds(sample.process_cpu) / gigabytes,
          .driver_s_per_gb = seconds(sample.driver_cpu) / gigabytes,
          .requests = sample.moved.requests};
}

Figure summarize(std::string name, const std::vector<Sample>& samples) {
  const auto each = [&](double Sample::*member) {
    std::vector<double> values;
    for (const Sample& sample : samples) values.push_back(sample.*member);
    return values;
  };
  std::uint64_t requests = 0;
  for (const Sample& sample : samples) requests += sample.requests;
  return {.name = std::move(name),
          .gb_per_second = median(each(&Sample::gb_per_second)),
          .spread = spread(each(&Sample::gb_per_second)),
          .cpu_s_per_gb = median(each(&Sample::cpu_s_per_gb)),
          .driver_s_per_gb = median(each(&Sample::driver_s_per_gb)),
          .requests = requests};
}

const swap::PathOptions& path_options(const PathLoad& load) {
  return load.paths().front()->options();
}
ByteCount file_size(const PathLoad& load) {
  return path_options(load).capacity;
}

/// fio opens our own files, which have no name, through this process.
std::vector<std::string> file_names(const PathLoad& load) {
  std::vector<std::string> names;
  for (const auto& path : load.paths()) {
    names.push_back(fmt::format("/proc/{}/fd/{}", ::getpid(), static_cast<int>(path->file().handle)));
  }
  return names;
}

/// A tmpfs takes O_DIRECT and has nothing but the page cache.
bool bypasses_page_cache(const PathLoad& load) {
  return std::all_of(load.paths().begin(), load.paths().end(), [](const auto& path) {
    return path->file().direct && tiers::real_file_system().type_name(path->options().directory) != "tmpfs";
  });
}

/// Every contestant at every operation, round by round; who goes first rotates, so that drift of the disk
/// favours nobody.
std::vector<Row> measure(PathLoad& load, const Options& options) {
  constexpr std::array operations = {LoadPattern::read, LoadPattern::write, LoadPattern::mixed};
  const std::vector<std::string> files = file_names(load);
  const bool direct = bypasses_page_cache(load);
  const std::size_t contestants = 1 + (options.fio ? fio_variants.size() : 0);
  std::vector<std::vector<std::vector<Sample>>> samples(operations.size());
  for (auto& of_operation : samples) of_operation.resize(contestants);

  for (int round = 0; round < options.rounds; ++round) {
    std::fprintf(stderr, "round %d/%d\n", round + 1, options.rounds);
    for (std::size_t o = 0; o < operations.size(); ++o) {
      for (std::size_t i = 0; i < contestants; ++i) {
        const std::size_t who = (i + static_cast<std::size_t>(round)) % contestants;
        const auto duration = std::chrono::duration_cast<TimePoint>(std::chrono::duration<double>(options.seconds));
        samples[o][who].push_back(who == 0 ? to_sample(load.run(operations[o], duration).value())
                                           : run_fio(fio_variants[who - 1], fio_word(operations[o]), files,
                                                     file_size(load), direct, options.seconds)
                                                 .value());
      }
    }
  }
  std::vector<Row> rows;
  for (std::size_t o = 0; o < operations.size(); ++o) {
    Row row{.operation = operations[o], .ours = summarize("penstock", samples[o][0]), .fio = {}};
    for (std::size_t who = 1; who < contestants; ++who) {
      row.fio.push_back(summarize(fio_variants[who - 1].name, samples[o][who]));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string describe_path(const swap::Path& path) {
  const StorageDevice device = describe_storage(path.options().directory);
  const std::string type = tiers::real_file_system().type_name(path.options().directory);
  const bool ring = path.engine_name() == std::string_view("io_uring");
  const std::string notes = !path.notes().empty() ? ", " + path.notes()
                            : ring                ? ", files and buffers registered"
                                                  : "";
  return fmt::format("{}: {} on {}, {}, alignment {} B, engine {}{}", path.options().directory.string(), type,
                     device.name.empty() ? "no block device" : device.name + " (" + device.model + ")",
                     path.file().direct ? "direct I/O" : "BUFFERED I/O", path.alignment().bytes(),
                     path.engine_name(), notes);
}

std::vector<std::string> caveats(const PathLoad& load) {
  std::vector<std::string> lines;
  if (!bypasses_page_cache(load)) {
    lines.emplace_back("these are figures of the page cache, not of a disk");
  }
  for (const auto& path : load.paths()) {
    const StorageDevice device = describe_storage(path->options().directory);
    if (!device.virtual_because) continue;
    lines.push_back(
        fmt::format("{}: {}; its host may cache and throttle, so that the ratio says more than "
                    "the rate",
                    path->options().directory.string(), *device.virtual_because));
  }
  return lines;
}

void print_figure(std::string_view operation, const Figure& figure, const std::string& ratio) {
  fmt::print("{:<6} {:<31} {:7.2f} {:6.1f} % {:10.4f} {:10.4f} {:9} {:>7}\n", operation, figure.name,
             figure.gb_per_second, 100 * figure.spread, figure.driver_s_per_gb, figure.cpu_s_per_gb,
             figure.requests, ratio);
}

void print(const Machine& machine, const PathLoad& load, const Options& options,
           const std::vector<Row>& rows) {
  fmt::print("{}, {}, {} cores, load {:.1f}, huge pages {}\n", machine.kernel, machine.cpu, machine.cores,
             machine.load, machine.huge_pages);
  for (const auto& path : load.paths()) fmt::print("{}\n", describe_path(*path));
  fmt::print("buffers {} on {}{}\n", to_string(load.arena().bytes().size()),
             tiers::to_string(load.arena().page_kind()),
             load.arena().notes().empty() ? "" : "; " + load.arena().notes());
  fmt::print("{} a file, written once before; requests of {}, {} in flight; {} rounds of {} s, medians\n",
             to_string(file_size(load)), to_string(path_options(load).request_max),
             to_string(path_options(load).in_flight_max), options.rounds, options.seconds);
  for (const std::string& line : caveats(load)) fmt::print("caveat: {}\n", line);

  fmt::print("\n{:<6} {:<31} {:>7} {:>8} {:>10} {:>10} {:>9} {:>7}\n", "", "",
             bypasses_page_cache(load) ? "GB/s" : "cache!", "spread", "driver s/GB", "CPU s/GB", "requests",
             "to fio");
  for (const Row& row : rows) {
    const Figure* best = row.best_fio();
    print_figure(to_string(row.operation), row.ours,
                 best == nullptr ? "" : fmt::format("{:.3f}", row.ours.gb_per_second / best->gb_per_second));
    for (const Figure& figure : row.fio) print_figure("", figure, &figure == best ? "= 1" : "");
  }
}

std::string json_text(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c < ' ' ? ' ' : c;
  }
  return quoted + '"';
}

std::string json(const Figure& figure) {
  return fmt::format(R"({{"name": {}, "gb_per_s": {:.4f}, "spread": {:.4f}, "driver_s_per_gb": {:.6f}, )"
                     R"("cpu_s_per_gb": {:.6f}, "requests": {}}})",
                     json_text(figure.name), figure.gb_per_second, figure.spread, figure.driver_s_per_gb,
                     figure.cpu_s_per_gb, figure.requests);
}

std::string json(const Machine& machine, const PathLoad& load, const Options& options,
                 const std::vector<Row>& rows) {
  std::string text = fmt::format(
      R"({{"bench": "nvme_swap", "kernel": {}, "cpu": {}, "cores": {}, "load": {:.1f}, "direct": {}, )"
      R"("pages": {}, "file_bytes": {}, "request_bytes": {}, "in_flight_bytes": {}, "rounds": {}, )"
      R"("seconds": {}, "paths": [)",
      json_text(machine.kernel), json_text(machine.cpu), machine.cores, machine.load,
      bypasses_page_cache(load), json_text(tiers::to_string(load.arena().page_kind())),
      file_size(load).value(), path_options(load).request_max.value(), path_options(load).in_flight_max.value(),
      options.rounds, options.seconds);
  const auto append = [&](std::string_view separator, const std::string& item) {
    text += (text.back() == '[' ? "" : std::string(separator)) + item;
  };
  for (const auto& path : load.paths()) append(", ", json_text(describe_path(*path)));
  text += R"(], "caveats": [)";
  for (const std::string& line : caveats(load)) append(", ", json_text(line));
  text += R"(], "rows": [)";
  for (const Row& row : rows) {
    std::string item =
        fmt::format(R"({{"operation": "{}", "ours": {})", to_string(row.operation), json(row.ours));
    if (const Figure* best = row.best_fio()) {
      fmt::format_to(std::back_inserter(item), R"(, "ratio": {:.4f}, "fio": [)",
                     row.ours.gb_per_second / best->gb_per_second);
      for (const Figure& figure : row.fio) item += (&figure == row.fio.data() ? "" : ", ") + json(figure);
      item += "]";
    }
    append(", ", item + "}");
  }
  return text + "]}";
}

int run(int argc, char** argv) {
  Options options;
  std::uint64_t file_size = (1_GiB).value(), request_size = (4_MiB).value(), in_flight = (16_MiB).value();
  std::vector<std::filesystem::path> directories;
  std::string engine = "auto";
  CLI::App app("Reads and writes swap files as the library does, and beside it as fio does");
  app.add_option("--path", directories, "directories, one swap file in each")
      ->required()
      ->check(CLI::ExistingDirectory);
  const CLI::AsSizeValue bytes(/*kb_is_1000=*/false);
  app.add_option("--file-size", file_size, "of each file, such as 1GiB")
      ->capture_default_str()
      ->transform(bytes);
  app.add_option("--request-size", request_size, "longest request")
      ->capture_default_str()
      ->transform(bytes)
      ->check(CLI::PositiveNumber);
  app.add_option("--in-flight", in_flight, "bytes in flight on each path")
      ->capture_default_str()
      ->transform(bytes)
      ->check(CLI::PositiveNumber);
  app.add_option("--engine", engine, "auto, io_uring, libaio or threads")
      ->capture_default_str()
      ->check(CLI::IsMember(engines));
  app.add_option("--rounds", options.rounds, "interleaved rounds")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--seconds", options.seconds, "of each run of a round")
      ->capture_default_str()
      ->check(CLI::Range(0.05, 3600.0));
  app.add_flag("--json", options.json, "print one line of JSON");
  app.add_flag("--fio", options.fio, "measure fio too, on the same files, in the same rounds");
  CLI11_PARSE(app, argc, argv);
  for (const auto& directory : directories) {
    options.load.paths.push_back({.directory = directory,
                                  .capacity = ByteCount(file_size),
                                  .request_max = ByteCount(request_size),
                                  .in_flight_max = ByteCount(in_flight),
                                  .engine = engines.at(engine)});
  }

  const Machine machine = describe_machine();
  if (options.fio) fio_version().value();
  const auto load = PathLoad::create(options.load).value();
  const std::vector<Row> rows = measure(*load, options);
  if (options.json) {
    fmt::print("{}\n", json(machine, *load, options, rows));
  } else {
    print(machine, *load, options, rows);
  }
  return 0;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  try {
    return penstock::bench::run(argc, argv);
  } catch (const tl::bad_expected_access<penstock::Error>& failed) {
    std::fprintf(stderr, "error: %s\n", failed.error().message().c_str());
    return 1;
  }
}
