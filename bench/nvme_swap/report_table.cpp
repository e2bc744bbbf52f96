#include "report.hpp"

#include <fmt/format.h>

namespace penstock::bench {

namespace {

std::string text(const std::optional<measure::Center>& ratio) {
  return ratio ? fmt::format("{:.3f}", ratio->median) : "";
}

void print_line(const Figure& figure, bool first) {
  fmt::print("{:<6}{:<48}{:>10.2f}{:>6.1f} %{:>9.2f}{:>9.2f}{:>10.2f}{:>13.4f}{:>10.4f}{:>8}{:>10}\n",
             first ? figure.operation : "", figure.contestant, figure.gb_per_second.median,
             100 * figure.gb_per_second.spread, figure.p50_us * 1e-3, figure.p99_us * 1e-3,
             figure.p999_us * 1e-3, figure.driver_s_per_gb, figure.cpu_s_per_gb, text(figure.to_fio),
             text(figure.to_mixed));
}

void print_swap(const Figure& figure) {
  fmt::print("{}: {:.3f} G parameters/s", figure.contestant, *figure.parameters_g_per_second);
  if (figure.to_unchecked) {
    fmt::print(", {:.3f} of the rate without checksums (spread {:.1f} %)", figure.to_unchecked->median,
               100 * figure.to_unchecked->spread);
  }
  if (figure.simulated) {
    fmt::print(", simulated {:.2f} of it (spread {:.1f} %)", figure.simulated->median,
               100 * figure.simulated->spread);
  }
  fmt::print("\n");
}

}  // namespace

void print_table(const std::vector<Figure>& figures, bool direct) {
  fmt::print("\n{:<54}{:>10}{:>8}{:>9}{:>9}{:>10}{:>13}{:>10}{:>8}{:>10}\n", "",
             direct ? "GB/s" : "cache GB/s", "spread", "p50 ms", "p99 ms", "p99.9 ms", "driver s/GB",
             "CPU s/GB", "to fio", "to mixed");
  std::string operation;
  for (const Figure& figure : figures) {
    print_line(figure, figure.operation != operation);
    operation = figure.operation;
  }
  for (const Figure& figure : figures) {
    if (figure.parameters_g_per_second) print_swap(figure);
  }
}

}  // namespace penstock::bench
