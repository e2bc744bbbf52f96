#include "unit/arguments/bad_arguments.hpp"

#include <penstock/zero/rank.hpp>

#include <memory>

namespace penstock::test {
namespace {

using namespace cpu_adam;
using MakeAccelerator = zero::Accelerator (*)();

/// A tile of 300 elements in format fp32, with bf16 gradients and parameters.
struct TileBench {
  explicit TileBench(MakeAccelerator make) : accelerator(make()) {}

  zero::Accelerator accelerator;
  std::unique_ptr<tiers::Stream> stream = accelerator.device->create_stream().value();
  DeviceSpan memory = accelerator.device->allocate(32_KiB).value();
  DeviceAdamTile tile{.state = memory.subspan({}, 3600_B),
                      .gradient = {memory.subspan(4096_B, 600_B), DType::bf16},
                      .parameter = {memory.subspan(8192_B, 600_B), DType::bf16},
                      .first_non_finite_block = memory.subspan(12288_B, 8_B)};

  Result<void> step(const AdamConfig& config = {}, std::uint64_t number = 1, float factor = 1) {
    return accelerator.adam->step(stream->handle(), config, number, factor, tile);
  }
  [[nodiscard]] DeviceSpan null(ByteCount size) const { return {DeviceAddress{}, size}; }
};

void add_rows(BadArguments& bad, MakeAccelerator make) {
  constexpr const char* function = "DeviceAdam::step";
  const auto with = [&](const char* argument, const char* value, auto change) {
    bad(function, argument, value, [change, make] {
      TileBench bench(make);
      change(bench);
      return refused(bench.step(), "");
    });
  };
  with("tile.state", "null", [](TileBench& b) { b.tile.state = b.null(3600_B); });
  with("tile.state", "empty", [](TileBench& b) { b.tile.state = {}; });
  with("tile.state", "shorter", [](TileBench& b) { b.tile.state = b.memory.subspan({}, 3596_B); });
  with("tile.state", "misaligned", [](TileBench& b) { b.tile.state = b.memory.subspan(1_B, 3600_B); });
  with("tile.gradient", "null", [](TileBench& b) { b.tile.gradient.bytes = b.null(600_B); });
  with("tile.gradient", "empty", [](TileBench& b) { b.tile.gradient = {}; });
  with("tile.gradient", "of an unknown dtype", [](TileBench& b) { b.tile.gradient.dtype = unknown<DType>; });
  with("tile.gradient", "the state",
       [](TileBench& b) { b.tile.gradient.bytes = b.memory.subspan({}, 600_B); });
  with("tile.parameter", "null", [](TileBench& b) { b.tile.parameter.bytes = b.null(600_B); });
  with("tile.parameter", "of an unknown dtype",
       [](TileBench& b) { b.tile.parameter.dtype = unknown<DType>; });
  with("tile.parameter", "one element less",
       [](TileBench& b) { b.tile.parameter.bytes = b.memory.subspan(8192_B, 598_B); });
  with("tile.parameter", "the gradient", [](TileBench& b) { b.tile.parameter = b.tile.gradient; });
  with("tile.first_non_finite_block", "null",
       [](TileBench& b) { b.tile.first_non_finite_block = b.null(8_B); });
  with("tile.first_non_finite_block", "empty", [](TileBench& b) { b.tile.first_non_finite_block = {}; });
  with("tile.first_non_finite_block", "misaligned",
       [](TileBench& b) { b.tile.first_non_finite_block = b.memory.subspan(12289_B, 8_B); });
  with("tile.first_non_finite_block", "in the state",
       [](TileBench& b) { b.tile.first_non_finite_block = b.memory.subspan(8_B, 8_B); });
  with("tile.first_non_finite_block", "in the gradient",
       [](TileBench& b) { b.tile.first_non_finite_block = b.memory.subspan(4104_B, 8_B); });
  with("tile.format", "unknown", [](TileBench& b) { b.tile.format = unknown<StateFormat>; });
  with("tile.format", "moments, with the bytes of fp32",
       [](TileBench& b) { b.tile.format = StateFormat::moments; });
  bad(function, "step", "0", [make] { return refused(TileBench(make).step({}, 0), "step"); });
  for (const float value : {nan, infinity}) {
    bad(function, "gradient_factor", std::to_string(value),
        [=] { return fails(TileBench(make).step({}, 1, value)); });
    bad(function, "config.learning_rate", std::to_string(value),
        [=] { return fails(TileBench(make).step({.learning_rate = value})); });
  }
  bad(function, "config.decay_mode", "unknown",
      [make] { return fails(TileBench(make).step({.decay_mode = unknown<AdamDecay>})); });
}

}  // namespace

void add_device_adam_rows(BadArguments& bad) {
  constexpr MakeAccelerator make = [] { return zero::make_host_accelerator(64_KiB); };
  add_rows(bad, make);
  bad("DeviceAdam::step", "stream", "a default handle", [] {
    TileBench b(make);
    return refused(b.accelerator.adam->step({}, {}, 1, 1, b.tile), "stream");
  });
}

void add_cuda_device_adam_rows(BadArguments& bad) {
  add_rows(bad, [] { return zero::make_cuda_accelerator(0).value(); });
}

}  // namespace penstock::test
