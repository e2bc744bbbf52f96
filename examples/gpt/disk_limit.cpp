#include "gpt/disk_limit.hpp"

#include <penstock/swap/disk_benchmark.hpp>

#include <algorithm>
#include <chrono>

namespace gpt {

using penstock::ByteCount;
using penstock::Result;
using penstock::swap::BenchmarkPattern;
using penstock::swap::DiskBenchmark;

Result<std::optional<DiskLimit>> measure_disk(std::vector<penstock::swap::PathOptions> paths,
                                              ByteCount size) {
  constexpr auto duration = std::chrono::milliseconds(300);
  const ByteCount tile(3 << 20);
  for (auto& path : paths) {
    PENSTOCK_TRY_ASSIGN(auto free, path.file_system->free_space(path.directory));
    path.capacity = std::min(size, free / 2);
    path.weight = 1;
    if (path.capacity < tile * 32) return std::optional<DiskLimit>();
  }
  PENSTOCK_TRY_ASSIGN(auto load, DiskBenchmark::create({.paths = std::move(paths), .transfer = tile}));

  const auto opened = load->paths();
  DiskLimit limit{
      .direct = std::all_of(opened.begin(), opened.end(), [](const auto& path) { return path.file.direct; })};
  const auto run = [&](BenchmarkPattern pattern, double& rate) -> Result<void> {
    PENSTOCK_TRY_ASSIGN(auto sample, load->run(pattern, duration));
    rate = sample.bytes_per_second();
    return penstock::ok();
  };
  PENSTOCK_TRY(run(BenchmarkPattern::mixed, limit.mixed));
  PENSTOCK_TRY(run(BenchmarkPattern::read, limit.read));
  PENSTOCK_TRY(run(BenchmarkPattern::write, limit.write));
  return std::optional(limit);
}

}  // namespace gpt
