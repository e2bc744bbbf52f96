#include "swap/path/extent_allocator.hpp"

#include <benchmark/benchmark.h>
#include <random>
#include <vector>

namespace penstock::swap {
namespace {

constexpr ByteCount block(4096);

/// Releases one extent and allocates another, in files fragmented by extents of 1 to 16 blocks.
void replace_extent(benchmark::State& state) {
  const auto count = static_cast<std::uint64_t>(state.range(0));
  const std::vector<ExtentAllocator::PathRoom> paths(
      2, {.capacity = block * (count * 10), .reserved = block * (count * 10)});
  ExtentAllocator allocator(paths, Alignment(block.value()));
  std::minstd_rand random;
  const auto next_size = [&random] { return block * (1 + random() % 16); };
  std::vector<tiers::Extent> extents;
  for (std::uint64_t i = 0; i < count; ++i) extents.push_back(allocator.allocate(next_size()).value());
  const auto replace = [&] {
    tiers::Extent& extent = extents[random() % count];
    allocator.release(extent);
    extent = allocator.allocate(next_size()).value();
  };
  for (std::uint64_t i = 0; i < 2 * count; ++i) replace();
  for (auto _ : state) replace();
}
BENCHMARK(replace_extent)->Name("extents/replace")->RangeMultiplier(10)->Range(1000, 100'000);

/// An extent is pinned by a generation, released by its tensor, and freed when the generation is released.
void pin_extent(benchmark::State& state) {
  const std::vector<ExtentAllocator::PathRoom> paths = {{.capacity = 1_GiB, .reserved = 1_GiB}};
  ExtentAllocator allocator(paths, Alignment(block.value()));
  std::uint64_t generation = 0;
  for (auto _ : state) {
    const tiers::Extent extent = allocator.allocate(64_KiB).value();
    allocator.pin(extent, ++generation, tiers::Purpose::optimizer_tile);
    benchmark::DoNotOptimize(allocator.release(extent));
    benchmark::DoNotOptimize(allocator.release_generation(generation));
  }
}
BENCHMARK(pin_extent)->Name("extents/pin");

}  // namespace
}  // namespace penstock::swap
