#include "report.hpp"

#include <fmt/format.h>
#include <json/json.h>

namespace penstock::bench {

namespace {

Json::Value to_json(const measure::Center& center) {
  Json::Value json;
  json["median"] = center.median;
  json["spread"] = center.spread;
  return json;
}

Json::Value to_json(const Figure& figure) {
  Json::Value json;
  json["operation"] = figure.operation;
  json["contestant"] = figure.contestant;
  json["engine"] = figure.engine;
  json["fio"] = figure.is_fio;
  json["request_bytes"] = Json::UInt64(figure.request_size.value());
  json["in_flight_bytes"] = Json::UInt64(figure.in_flight.value());
  json["gb_per_s"] = to_json(figure.gb_per_second);
  json["p50_us"] = figure.p50_us;
  json["p99_us"] = figure.p99_us;
  json["p999_us"] = figure.p999_us;
  json["driver_s_per_gb"] = figure.driver_s_per_gb;
  json["cpu_s_per_gb"] = figure.cpu_s_per_gb;
  json["requests"] = Json::UInt64(figure.requests);
  if (figure.parameters_g_per_second) {
    json["compute"] = figure.work.compute;
    json["integrity"] = figure.work.integrity;
    json["parameters_g_per_s"] = *figure.parameters_g_per_second;
  }
  if (figure.to_fio) json["to_fio"] = to_json(*figure.to_fio);
  if (figure.to_mixed) json["to_mixed"] = to_json(*figure.to_mixed);
  if (figure.to_unchecked) json["to_unchecked"] = to_json(*figure.to_unchecked);
  if (figure.simulated) json["simulated"] = to_json(*figure.simulated);
  return json;
}

}  // namespace

void print_json(const Contest& contest, const measure::Machine& machine, const std::vector<Figure>& figures) {
  const Options& options = contest.options();
  Json::Value json;
  json["bench"] = "nvme_swap";
  json["kernel"] = machine.kernel;
  json["cpu"] = machine.cpu;
  json["cores"] = machine.cores;
  json["load"] = machine.load;
  json["huge_pages"] = machine.huge_pages;
  json["direct"] = contest.direct();
  json["file_bytes"] = Json::UInt64(options.file_size.value());
  json["rounds"] = options.rounds;
  json["seconds"] = options.seconds;
  if (!contest.tile_size().is_zero()) {
    json["swap"]["format"] = std::string(to_string(options.swap.format));
    json["swap"]["tile_elements"] = Json::UInt64(options.swap.tile_elements.value());
    json["swap"]["tile_bytes"] = Json::UInt64(contest.tile_size().value());
    json["swap"]["threads"] = options.swap.threads;
  }
  for (const char* list : {"paths", "loads", "caveats", "figures"}) json[list] = Json::arrayValue;
  for (const std::string& line : describe_directories(contest)) json["paths"].append(line);
  for (const auto& load : contest.loads()) json["loads"].append(describe_load(*load));
  for (const std::string& line : contest.caveats()) json["caveats"].append(line);
  for (const Figure& figure : figures) json["figures"].append(to_json(figure));

  Json::StreamWriterBuilder writer;
  writer["indentation"] = "";
  writer["precision"] = 6;
  fmt::print("{}\n", Json::writeString(writer, json));
}

}  // namespace penstock::bench
