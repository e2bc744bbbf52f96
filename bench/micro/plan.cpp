#include <penstock/zero/layout/memory_plan.hpp>

#include <benchmark/benchmark.h>
#include <string>

namespace penstock::zero {
namespace {

ModelLayout model_of(std::uint64_t units, ElementCount unit_elements) {
  ModelLayout model;
  for (std::uint64_t unit = 0; unit < units; ++unit) {
    model.units.push_back(
        {.name = "unit " + std::to_string(unit), .parameters = {{.name = "weight", .count = unit_elements}}});
  }
  return model;
}

/// Plans memory for a model whose tiles and parameter shards are all on disk.
void plan(benchmark::State& state) {
  const auto tiles = static_cast<std::uint64_t>(state.range(0));
  const auto units = static_cast<std::uint64_t>(state.range(1));
  Config config{.stage = 3};
  config.dtype = config.grad_accum_dtype = DType::bf16;
  config.offload_optimizer = config.offload_param = {.device = OffloadDevice::nvme, .nvme_paths = {"a"}};
  const ModelLayout model = model_of(units, config.penstock.tile() * (tiles / units));
  for (auto _ : state) {
    auto plan = plan_memory(config, model, 1, 1);
    if (!plan || plan->tiles != tiles) return state.SkipWithError("the plan has other tiles");
    benchmark::DoNotOptimize(*plan);
  }
}
BENCHMARK(plan)
    ->Name("plan_memory")
    ->ArgNames({"tiles", "units"})
    ->ArgsProduct({{1000, 10'000, 100'000}, {100}})
    ->Args({100'000, 1000})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace penstock::zero
