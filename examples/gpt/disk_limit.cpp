#include "gpt/disk_limit.hpp"

#include <penstock/swap/disk_benchmark.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

namespace gpt {

using penstock::ByteCount;
using penstock::ErrorCode;
using penstock::Result;
using penstock::swap::BenchmarkPattern;
using penstock::swap::DiskBenchmark;
using penstock::swap::PathOptions;

namespace {

constexpr ByteCount tile(3 << 20);
constexpr auto run_duration = std::chrono::milliseconds(300);

/// With files of `size`, or of the largest half, quarter and so on of it for which there is room. Nothing if that is
/// too short for a useful measurement.
Result<std::unique_ptr<DiskBenchmark>> create_benchmark(std::vector<PathOptions> paths, ByteCount size) {
  for (; size >= tile * 32; size = size / 2) {
    for (PathOptions& path : paths) path.capacity = size;
    auto benchmark = DiskBenchmark::create({.paths = paths, .transfer = tile});
    if (benchmark || benchmark.error().code() != ErrorCode::no_space) return benchmark;
  }
  return std::unique_ptr<DiskBenchmark>();
}

}  // namespace

Result<std::optional<DiskLimit>> measure_disk(std::vector<PathOptions> paths, ByteCount size) {
  for (PathOptions& path : paths) path.weight = 1;
  PENSTOCK_TRY_ASSIGN(const auto load, create_benchmark(std::move(paths), size));
  if (load == nullptr) return std::optional<DiskLimit>();

  const auto opened = load->paths();
  DiskLimit limit{
      .direct = std::all_of(opened.begin(), opened.end(), [](const auto& path) { return path.file.direct; })};
  const auto run = [&](BenchmarkPattern pattern, double& rate) -> Result<void> {
    PENSTOCK_TRY_ASSIGN(auto sample, load->run(pattern, run_duration));
    rate = sample.bytes_per_second();
    return penstock::ok();
  };
  PENSTOCK_TRY(run(BenchmarkPattern::mixed, limit.mixed));
  PENSTOCK_TRY(run(BenchmarkPattern::read, limit.read));
  PENSTOCK_TRY(run(BenchmarkPattern::write, limit.write));
  return std::optional(limit);
}

}  // namespace gpt
