// Prints the errors of all state formats for all series of gradients, as the rows of a table in docs/optimizer.md.

#include "unit/cpu_adam/update_error.hpp"

#include <gtest/gtest.h>
#include <cstdio>

namespace penstock::test {
namespace {

TEST(UpdateErrorTable, OfAllFormatsAndSeries) {
  constexpr TileKind kinds[] = {{StateFormat::fp32},     {StateFormat::split}, {StateFormat::split_bf16},
                                {StateFormat::split_q8}, narrow_kinds[0],      narrow_kinds[1],
                                narrow_kinds[2]};
  std::printf("| gradients |");
  for (const TileKind& kind : kinds) std::printf(" `%s` |", kind.name().c_str());
  std::printf("\n");
  for (const GradientSeries& series : all_series()) {
    std::printf("| %s |", series.name.c_str());
    for (const UpdateError& error : update_errors(series, kinds, 4096, 5000)) {
      std::printf(" %.2f, %+.2f |", 100 * error.rms, 100 * error.travel_bias);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace penstock::test
