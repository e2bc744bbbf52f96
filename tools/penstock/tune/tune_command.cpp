#include "command.hpp"
#include "measure/command_line.hpp"
#include "measure/statistics.hpp"
#include "search.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <system_error>

namespace penstock::tool {

namespace {

struct TuneOptions {
  std::vector<std::filesystem::path> directories;
  double seconds = 60;
  TimePoint io_deadline = swap::PathOptions().deadline;
  bool json = false;
};

/// The result of tune() with everything that is printed.
struct Report {
  std::vector<std::filesystem::path> directories;
  std::vector<double> weights;
  Tuned tuned;

  [[nodiscard]] const Candidate& chosen() const { return tuned.tried[tuned.choice.index].at_last; }
};

std::uint64_t depth(const Candidate& candidate) {
  return ceil_divide(candidate.in_flight.value(), candidate.request_size.value());
}

/// More digits than a measurement has.
double in_megabytes(double rate) {
  return std::max(1.0, std::round(rate * 1e-6)) * 1e6;
}

/// The keys to paste into a configuration; DeepSpeed reads the same `aio` block.
Json::Value to_config(const Report& report) {
  Json::Value config;
  config["aio"]["block_size"] = Json::UInt64(report.chosen().request_size.value());
  config["aio"]["queue_depth"] = Json::UInt64(depth(report.chosen()));
  if (report.weights.size() > 1) {
    for (const double weight : report.weights) config["penstock"]["path_weights"].append(weight);
  }
  for (const double rate : report.tuned.path_rates)
    config["penstock"]["path_limits"].append(in_megabytes(rate));
  return config;
}

/// Explains weights of paths that share a device, virtual drives, settings left out, and uncertain rates.
std::vector<std::string> remarks(const Report& report) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < report.directories.size(); ++i) {
    std::string sharers;
    for (std::size_t j = 0; j < i; ++j) {
      if (report.tuned.devices[j].id == report.tuned.devices[i].id) sharers = report.directories[j].string();
    }
    if (!sharers.empty()) {
      lines.push_back(fmt::format("{} is on the same device as {}: they share its rate in equal parts",
                                  report.directories[i].string(), sharers));
    }
    if (report.tuned.devices[i].virtual_because) {
      lines.push_back(fmt::format("{}: {}; its host may cache and throttle", report.directories[i].string(),
                                  *report.tuned.devices[i].virtual_because));
    }
  }
  if (report.tuned.left_out > 0) {
    lines.push_back(fmt::format("there was no time for {} settings; raise --seconds", report.tuned.left_out));
  }
  const double spread = std::max(measure::spread(report.tuned.read), measure::spread(report.tuned.write));
  if (spread > 0.3) {
    lines.push_back(
        fmt::format("the rates of reads and of writes are uncertain: {} rounds with spread {:.0f} %; stop "
                    "other users of the "
                    "disk, or raise --seconds",
                    report.tuned.read.size(), 100 * spread));
  }
  return lines;
}

std::string describe_resolution(const Report& report) {
  const Choice& choice = report.tuned.choice;
  const measure::Center mixed = measure::center(report.chosen().rates);
  const std::size_t rounds = report.chosen().rates.size();
  std::string text = fmt::format(
      "resolution {:.0f} %: smaller differences are within the noise of {} round{} with spread {:.0f} %",
      100 * choice.resolution, rounds, rounds == 1 ? "" : "s", 100 * mixed.spread);
  if (choice.as_good.size() > 1) {
    text +=
        fmt::format("; {} settings are equally fast within it, and this one has the fewest bytes in flight",
                    choice.as_good.size());
  }
  if (choice.resolution > 0.1) {
    text += "; this is coarse: stop other users of the disk, or raise --seconds";
  }
  return text;
}

/// Prints each setting's figures of the first phase and, for the best ones, of the second. Rates of different phases
/// cannot be compared.
void print_settings(const Tuned& tuned) {
  std::vector<Candidate> first, last;
  for (const Tuned::Tried& one : tuned.tried) {
    first.push_back(one.at_first);
    if (!one.at_last.rates.empty()) last.push_back(one.at_last);
  }
  const std::vector<double> first_relative = median_relative_rates(first),
                            last_relative = median_relative_rates(last);
  fmt::print("{:>9} {:>10} {:>6} | {:>7} {:>8} {:>7} | {:>7} {:>8} {:>7}\n", "request", "in flight", "depth",
             "GB/s", "spread", "to best", "GB/s", "spread", "to best");
  const auto figures = [](const Candidate& candidate, double relative_rate) {
    const measure::Center rate = measure::center(candidate.rates);
    return fmt::format(" | {:>7.2f} {:>6.1f} % {:>7.3f}", rate.median * 1e-9, 100 * rate.spread,
                       relative_rate);
  };
  for (std::size_t i = 0; i < first.size(); ++i) {
    const auto& as_good = tuned.choice.as_good;
    const bool good = std::find(as_good.begin(), as_good.end(), i) != as_good.end();
    fmt::print("{:>9} {:>10} {:>6}{}{}{}\n", to_string(first[i].request_size), to_string(first[i].in_flight),
               depth(first[i]), figures(first[i], first_relative[i]),
               i < last.size() ? figures(last[i], last_relative[i]) : "",
               i == tuned.choice.index ? "  chosen"
               : good                  ? "  as good"
                                       : "");
  }
  fmt::print("{} rounds over all, then {} over the best {}\n", first.front().rates.size(),
             last.front().rates.size(), last.size());
}

void print_report(const Report& report) {
  const Tuned& tuned = report.tuned;
  for (std::size_t i = 0; i < report.directories.size(); ++i) {
    fmt::print("{}: {}, {:.2f} GB/s mixed{}\n", report.directories[i].string(),
               measure::to_string(report.tuned.devices[i]), tuned.path_rates[i] * 1e-9,
               report.weights.size() > 1 ? fmt::format(", weight {:.3f}", report.weights[i]) : "");
  }
  fmt::print("engine {}{}\n\n", tuned.engine, tuned.notes.empty() ? "" : "; " + tuned.notes);
  print_settings(tuned);
  const measure::Center read = measure::center(tuned.read), write = measure::center(tuned.write);
  fmt::print(
      "\nchosen: {} x {}, mixed {:.2f} GB/s, read {:.2f} (spread {:.0f} %), write {:.2f} (spread {:.0f} %)\n",
      to_string(report.chosen().request_size), depth(report.chosen()),
      measure::median(report.chosen().rates) * 1e-9, read.median * 1e-9, 100 * read.spread,
      write.median * 1e-9, 100 * write.spread);
  fmt::print("{}\n", describe_resolution(report));
  for (const std::string& line : remarks(report)) fmt::print("note: {}\n", line);
  fmt::print("\n{}\n", json_text(to_config(report), ""));
}

Json::Value to_json(const Candidate& candidate) {
  const measure::Center rate = measure::center(candidate.rates);
  Json::Value json;
  json["mixed_gb_per_s"] = rate.median * 1e-9;
  json["spread"] = rate.spread;
  json["rounds"] = Json::UInt64(candidate.rates.size());
  return json;
}

Json::Value to_json(const Report& report) {
  const Tuned& tuned = report.tuned;
  Json::Value json;
  json["config"] = to_config(report);
  json["engine"] = tuned.engine;
  json["mixed_gb_per_s"] = measure::median(report.chosen().rates) * 1e-9;
  json["read_gb_per_s"] = measure::median(tuned.read) * 1e-9;
  json["read_spread"] = measure::spread(tuned.read);
  json["write_gb_per_s"] = measure::median(tuned.write) * 1e-9;
  json["write_spread"] = measure::spread(tuned.write);
  json["read_write_rounds"] = Json::UInt64(tuned.read.size());
  json["spread"] = measure::spread(report.chosen().rates);
  json["resolution"] = tuned.choice.resolution;
  json["rounds"] = Json::UInt64(report.chosen().rates.size());
  json["settings_left_out"] = Json::UInt64(tuned.left_out);
  for (std::size_t i = 0; i < report.directories.size(); ++i) {
    Json::Value path;
    path["directory"] = report.directories[i].string();
    path["device"] = report.tuned.devices[i].id;
    path["mixed_gb_per_s"] = tuned.path_rates[i] * 1e-9;
    path["weight"] = report.weights[i];
    json["paths"].append(path);
  }
  for (const Tuned::Tried& one : tuned.tried) {
    Json::Value setting;
    setting["request_bytes"] = Json::UInt64(one.at_first.request_size.value());
    setting["in_flight_bytes"] = Json::UInt64(one.at_first.in_flight.value());
    setting["at_first"] = to_json(one.at_first);
    if (!one.at_last.rates.empty()) setting["at_last"] = to_json(one.at_last);
    json["settings"].append(setting);
  }
  json["notes"] = Json::arrayValue;
  for (const std::string& line : remarks(report)) json["notes"].append(line);
  return json;
}

/// A directory that is named twice would be measured as two drives.
Result<void> check_different(const std::vector<std::filesystem::path>& directories) {
  std::error_code unknown;
  for (auto one = directories.begin(); one != directories.end(); ++one) {
    const auto same = std::find_if(directories.begin(), one, [&](const std::filesystem::path& other) {
      return std::filesystem::equivalent(*one, other, unknown);
    });
    if (same == one) continue;
    return Error::invalid_argument("tune")
        .object("--path")
        .wanted("each directory once")
        .got(one->string() + " again");
  }
  return ok();
}

ExitStatus run(const TuneOptions& options) {
  if (const auto different = check_different(options.directories); !different) {
    fail(different.error());
    return bad_usage;
  }
  auto tuned = tune(options.directories, options.seconds, options.io_deadline);
  if (!tuned) {
    fail(tuned.error());
    return failed;
  }
  Report report{.directories = options.directories, .tuned = std::move(*tuned)};
  std::vector<std::string> ids;
  for (const measure::StorageDevice& device : report.tuned.devices) ids.push_back(device.id);
  report.weights = path_weights(report.tuned.path_rates, ids);
  if (options.json)
    print_json(to_json(report));
  else
    print_report(report);
  return done;
}

}  // namespace

void add_tune_command(measure::CommandLine& app, ExitStatus& status) {
  auto options = std::make_shared<TuneOptions>();
  measure::CommandLine command = app.add_command(
      "tune",
      "Find the request size and queue depth that suit the drives best, and print the configuration keys");
  command
      .add_option("--path", options->directories,
                  "The directories of nvme_path, in the same order; all are measured concurrently")
      .type_name("DIR")
      .required();
  measure::add_io_deadline(command, options->io_deadline);
  command.add_option("--seconds", options->seconds, "About how long it takes")
      .number_range(1, 100)
      .show_default();
  command.add_flag("--json", options->json, "Print JSON");
  command.on_run([options, &status] { status = run(*options); });
}

}  // namespace penstock::tool
