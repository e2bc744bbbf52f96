#include "report.hpp"

#include <fmt/format.h>
#include <json/json.h>

namespace penstock::bench {

void print_table(const Report& report) {
  fmt::print("{}, {} rounds, medians\n", report.device, report.rounds);
  if (!report.copies.empty()) {
    fmt::print("{:<14}  {:>10}  {:>10}  {:>7}  {:>13}  {:>7}  {:>6}\n", "copy", "size", "bare GB/s", "spread",
               "penstock GB/s", "spread", "ratio");
  }
  for (const CopyRow& row : report.copies) {
    fmt::print("{:<14}  {:>10}  {:>10.2f}  {:>5.1f} %  {:>13.2f}  {:>5.1f} %  {:>6.3f}\n", row.direction,
               to_string(row.size), row.bare.median, 100 * row.bare.spread, row.penstock.median,
               100 * row.penstock.spread, row.ratio.median);
  }
  if (!report.kernels.empty()) {
    fmt::print("{:<26}  {:>9}  {:>9}  {:>7}  {:>9}  {:>7}\n", "kernel", "B/element", "GB/s", "spread",
               "copy GB/s", "to copy");
  }
  for (const KernelRow& row : report.kernels) {
    fmt::print("{:<26}  {:>9.2f}  {:>9.1f}  {:>5.1f} %  {:>9.1f}  {:>7.3f}\n", row.name,
               row.bytes_per_element, row.rate.median, 100 * row.rate.spread, row.copy.median,
               row.to_copy.median);
  }
}

void print_json(const Report& report) {
  Json::Value json;
  json["bench"] = "cuda_bandwidth";
  json["device"] = report.device;
  json["rounds"] = report.rounds;
  for (const char* list : {"copies", "kernels"}) json[list] = Json::arrayValue;
  for (const CopyRow& row : report.copies) {
    Json::Value line;
    line["direction"] = row.direction;
    line["bytes"] = Json::UInt64(row.size.value());
    line["bare_gb_per_s"] = row.bare.median;
    line["bare_spread"] = row.bare.spread;
    line["penstock_gb_per_s"] = row.penstock.median;
    line["penstock_spread"] = row.penstock.spread;
    line["ratio"] = row.ratio.median;
    json["copies"].append(line);
  }
  for (const KernelRow& row : report.kernels) {
    Json::Value line;
    line["name"] = row.name;
    line["bytes_per_element"] = row.bytes_per_element;
    line["gb_per_s"] = row.rate.median;
    line["spread"] = row.rate.spread;
    line["copy_gb_per_s"] = row.copy.median;
    line["to_copy"] = row.to_copy.median;
    json["kernels"].append(line);
  }
  Json::StreamWriterBuilder builder;
  builder["indentation"] = "";
  builder["precision"] = 6;
  fmt::print("{}\n", Json::writeString(builder, json));
}

}  // namespace penstock::bench
