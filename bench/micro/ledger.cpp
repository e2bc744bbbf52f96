#include <penstock/tiers/store/ledger.hpp>

#include <benchmark/benchmark.h>

namespace penstock::tiers {
namespace {

void hold(benchmark::State& state) {
  Ledger ledger;
  for (auto _ : state) {
    ledger.hold(Tier::host, Purpose::optimizer_tile, 64_KiB);
    ledger.give_back(Tier::host, Purpose::optimizer_tile, 64_KiB);
  }
}
BENCHMARK(hold)->Name("ledger/hold");

void traffic(benchmark::State& state) {
  Ledger ledger;
  for (auto _ : state) {
    ledger.read(Purpose::optimizer_tile, 64_KiB);
    ledger.wrote(Purpose::optimizer_tile, 64_KiB);
  }
}
BENCHMARK(traffic)->Name("ledger/traffic");

}  // namespace
}  // namespace penstock::tiers
