#include "zero/comm/hop_order.hpp"

#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/comm/in_process_group.hpp>
#include "kernels/host_compute.hpp"

#include <benchmark/benchmark.h>
#include <array>
#include <memory>
#include <vector>

namespace penstock::zero {
namespace {

/// The cost of ordering one collective among a rank's other collectives.
void order(benchmark::State& state) {
  HopOrder order;
  for (auto _ : state) {
    const std::uint64_t hop = order.append();
    if (order.is_head(hop)) order.pop();
    benchmark::DoNotOptimize(order.failure());
  }
}
BENCHMARK(order)->Name("collectives/order");

/// An exchange of 8 bytes between ranks on one thread, in which each rank checks that its peers call the same
/// collective.
void exchange(benchmark::State& state) {
  const auto ranks = static_cast<std::uint32_t>(state.range(0));
  tiers::HostDevice device({.memory = 1_MiB});
  const auto compute = kernels::make_host_compute();
  const auto group = InProcessGroup::create(ranks).value();
  std::vector<std::unique_ptr<Communicator>> members;
  for (std::uint32_t r = 0; r < ranks; ++r) members.push_back(group->join(r, device, *compute).value());
  std::array<std::byte, 8> mine{};
  std::vector<std::byte> all(mine.size() * ranks);
  const ConstHostSpan from(mine.data(), ByteCount(mine.size()));
  const HostSpan to(all.data(), ByteCount(all.size()));

  for (auto _ : state) {
    for (const auto& member : members) member->start_exchange(from, to, {}).value();
    for (const auto& member : members) benchmark::DoNotOptimize(member->poll().value());
    for (const auto& member : members) benchmark::DoNotOptimize(member->poll().value());
  }
}
BENCHMARK(exchange)->Name("collectives/exchange")->RangeMultiplier(2)->Range(2, 8);

}  // namespace
}  // namespace penstock::zero
