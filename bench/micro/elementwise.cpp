#include <penstock/tiers/device/host_device.hpp>
#include "kernels/host_compute.hpp"
#include "tiers/store/block_table.hpp"

#include <benchmark/benchmark.h>
#include <cstring>
#include <vector>

// Operations on every element or byte, on one block that stays in cache.

namespace penstock {
namespace {

constexpr ElementCount block_elements(16'384);

void cast(benchmark::State& state, DType from, DType to) {
  tiers::HostDevice device({.memory = 1_MiB});
  const auto compute = kernels::make_host_compute();
  const auto stream = device.create_stream().value();
  const auto allocate = [&](DType dtype) {
    const DeviceSpan span = device.allocate(size_of(dtype) * block_elements.value()).value();
    std::memset(tiers::HostDevice::bytes(span).data(), 0, span.size().value());
    return DeviceTensor{span, dtype};
  };
  const DeviceTensor source = allocate(from), target = allocate(to);
  for (auto _ : state) {
    if (auto done = compute->cast(stream->handle(), source, target); !done) {
      return state.SkipWithError(done.error().message().c_str());
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(block_elements.value()));
  device.release(source.bytes);
  device.release(target.bytes);
}
BENCHMARK_CAPTURE(cast, fp32_to_bf16, DType::fp32, DType::bf16)->Name("cast/fp32_to_bf16");
BENCHMARK_CAPTURE(cast, bf16_to_fp32, DType::bf16, DType::fp32)->Name("cast/bf16_to_fp32");
BENCHMARK_CAPTURE(cast, fp32_to_fp16, DType::fp32, DType::fp16)->Name("cast/fp32_to_fp16");
BENCHMARK_CAPTURE(cast, fp16_to_fp32, DType::fp16, DType::fp32)->Name("cast/fp16_to_fp32");

class Block {
 public:
  [[nodiscard]] ConstHostSpan bytes() const { return {bytes_.data(), size}; }
  tiers::BlockTable table{/*seed=*/7, size, size};

 private:
  static constexpr ByteCount size = 192_KiB;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(size.value());
};

void seal(benchmark::State& state) {
  Block block;
  for (auto _ : state) block.table.seal(0, block.bytes(), /*step=*/1);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(block.bytes().size().value()));
}
BENCHMARK(seal)->Name("checksum/seal");

void verify(benchmark::State& state) {
  Block block;
  block.table.seal(0, block.bytes(), /*step=*/1);
  for (auto _ : state) benchmark::DoNotOptimize(block.table.verify(0, block.bytes()));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(block.bytes().size().value()));
}
BENCHMARK(verify)->Name("checksum/verify");

}  // namespace
}  // namespace penstock
