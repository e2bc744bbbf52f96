#include "report.hpp"

#include <fmt/format.h>
#include <json/json.h>

namespace penstock::bench {

void print_table(const Report& report) {
  const measure::Machine& machine = report.machine;
  const IsaChoice best = best_isa();
  fmt::print("{}, {} cores, load {:.1f}, huge pages {}\n", machine.cpu, machine.cores, machine.load,
             machine.huge_pages);
  fmt::print("AdamW, gradient and parameter bf16, {:.3f} M parameters, {} rounds, medians, isa {} ({})\n",
             static_cast<double>(report.elements) * 1e-6, report.rounds, to_string(report.isa),
             report.isa == best.isa ? best.reason : "requested");
  fmt::print("{:>7}  {:<16}  {:>12}  {:>6}  {:>6}  {:>15}  {:>8}  {:>6}\n", "threads", "contestant",
             "G param./s", "stream", "GB/s", "ratio to", "to floor", "spread");
  for (const Row& row : report.rows) {
    const double rate = static_cast<double>(report.elements) * 1e-9 / row.seconds.median;
    fmt::print("{:>7}  {:<16}  {:>12.3f}  {:>6.2f}  {:>6.1f}  {:>6.2f} {:<8}  {:>8.3f}  {:>4.1f} %\n",
               row.threads, row.name, rate, row.bytes_per_element, rate * row.bytes_per_element,
               row.ratio.median, row.against, row.to_floor.median, 100 * row.seconds.spread);
  }
}

void print_json(const Report& report) {
  Json::Value json;
  json["bench"] = "cpu_adam";
  json["cpu"] = report.machine.cpu;
  json["cores"] = report.machine.cores;
  json["elements"] = Json::UInt64(report.elements);
  json["rounds"] = report.rounds;
  json["isa"] = std::string(to_string(report.isa));
  for (const Row& row : report.rows) {
    Json::Value line;
    line["threads"] = row.threads;
    line["name"] = row.name;
    line["bytes_per_parameter"] = row.bytes_per_element;
    line["seconds"] = row.seconds.median;
    line["seconds_spread"] = row.seconds.spread;
    line["against"] = row.against;
    line["ratio"] = row.ratio.median;
    line["to_floor"] = row.to_floor.median;
    json["rows"].append(line);
  }
  Json::StreamWriterBuilder builder;
  builder["indentation"] = "";
  fmt::print("{}\n", Json::writeString(builder, json));
}

}  // namespace penstock::bench
