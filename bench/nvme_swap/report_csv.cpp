#include "report.hpp"

#include <fmt/format.h>

namespace penstock::bench {

namespace {

std::string text(const std::optional<measure::Center>& ratio) {
  return ratio ? fmt::format("{:.4f}", ratio->median) : "";
}

const char* text(bool yes) {
  return yes ? "true" : "false";
}

}  // namespace

void print_csv(const std::vector<Figure>& figures, bool direct) {
  fmt::print(
      "operation,contestant,engine,request_bytes,in_flight_bytes,compute,integrity,direct,gb_per_s,spread,"
      "p50_us,p99_us,p999_us,driver_s_per_gb,cpu_s_per_gb,requests,parameters_g_per_s,to_fio,to_mixed,"
      "to_unchecked\n");
  for (const Figure& figure : figures) {
    fmt::print("{},{},{},{},{},{},{},{},{:.4f},{:.4f},{:.1f},{:.1f},{:.1f},{:.6f},{:.6f},{},{},{},{},{}\n",
               figure.operation, figure.contestant, figure.engine, figure.request_size.value(),
               figure.in_flight.value(), text(figure.work.compute), text(figure.work.integrity), text(direct),
               figure.gb_per_second.median, figure.gb_per_second.spread, figure.p50_us, figure.p99_us,
               figure.p999_us, figure.driver_s_per_gb, figure.cpu_s_per_gb, figure.requests,
               figure.parameters_g_per_second ? fmt::format("{:.5f}", *figure.parameters_g_per_second) : "",
               text(figure.to_fio), text(figure.to_mixed), text(figure.to_unchecked));
  }
}

}  // namespace penstock::bench
