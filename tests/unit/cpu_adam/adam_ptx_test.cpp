#include "cpu_adam/adam_coefficients.hpp"
#include "format_tile.hpp"
#include "kernels/adam_element.hpp"
#include "kit/ptx.hpp"

#include <penstock/cpu_adam/adam.hpp>

#include <gtest/gtest.h>
#include <limits>
#include <string>

namespace penstock::test {

using namespace cpu_adam;
namespace {

constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();
constexpr DType dtypes[] = {DType::fp32, DType::bf16, DType::fp16};

/// The first step moves no master.
AdamConfig adam(AdamDecay mode, std::uint64_t step) {
  return {.learning_rate = step == 1 ? 0.0f : 1e-2f, .weight_decay = 0.1f, .decay_mode = mode};
}

/// Interprets the kernel's PTX with a few threads, each of which strides over the tile. Returns the first block that is
/// not finite.
std::uint64_t run_on_gpu(const AdamTile& tile, AdamDecay mode, std::uint64_t step) {
  static const PtxModule module(PENSTOCK_PTX);
  const std::string format = tile.format == StateFormat::split
                                 ? "penstock::kernels::SplitTile"
                                 : "penstock::kernels::Fp32Tile<" + cuda_type(tile.parameter_dtype) + ">";
  std::uint64_t first_non_finite_block = none;
  const struct { void *state, *parameter; } elements{tile.state.data(), tile.parameter.data()};
  module.launch("adam_kernel<" + cuda_type(tile.gradient_dtype) + "," + format + ">",
                {.blocks = 2, .threads = 3}, adam_coefficients(adam(mode, step), step, 0.5f).value(),
                elements, tile.gradient.data(), &first_non_finite_block, tile.elements.value());
  return first_non_finite_block;
}

class AdamPtx : public testing::TestWithParam<std::size_t> {};

TEST_P(AdamPtx, GivesTheBitsOfTheCpuInFormatFp32) {
  const std::size_t count = GetParam();
  const TileValues values = random_values(count, 3);
  for (const DType gradient : dtypes) {
    for (const DType parameter : dtypes) {
      for (const AdamDecay mode : {AdamDecay::decoupled, AdamDecay::l2}) {
        TileMemory cpu(count, gradient, parameter), gpu(count, gradient, parameter);
        for (TileMemory* memory : {&cpu, &gpu}) memory->set(values);
        for (std::uint64_t step = 1; step <= 2; ++step) {
          ASSERT_TRUE(adam_step(adam(mode, step), step, 0.5f, cpu.tile()).has_value());
          EXPECT_EQ(run_on_gpu(gpu.tile(), mode, step), none);
        }
        EXPECT_EQ(gpu.result_bytes(), cpu.result_bytes())
            << to_string(gradient) << " to " << to_string(parameter);
      }
    }
  }
}

TEST_P(AdamPtx, GivesTheBitsOfTheCpuInFormatSplit) {
  const std::size_t count = GetParam();
  TileValues values = random_values(count, 4);
  for (std::size_t i = 0; i < count; i += 5) values.master[i] = tie(i);
  for (const DType gradient : dtypes) {
    for (const AdamDecay mode : {AdamDecay::decoupled, AdamDecay::l2}) {
      FormatTile cpu(StateFormat::split, count, gradient), gpu(StateFormat::split, count, gradient);
      for (FormatTile* tile : {&cpu, &gpu}) {
        tile->initialize(values.master);
        tile->set_gradient(values.gradient);
      }
      for (std::uint64_t step = 1; step <= 2; ++step) {
        ASSERT_TRUE(adam_step(adam(mode, step), step, 0.5f, cpu.tile()).has_value());
        EXPECT_EQ(run_on_gpu(gpu.tile(), mode, step), none);
      }
      EXPECT_EQ(gpu.bytes(), cpu.bytes()) << to_string(gradient);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, AdamPtx, testing::Values(1, 7, 4099, 16384 + 70));

TEST(AdamPtxKernel, NamesTheFirstBlockThatIsNotFinite) {
  constexpr std::size_t count = 3 * 16384;
  TileMemory memory(count, DType::bf16, DType::bf16);
  memory.set(random_values(count, 5));
  memory.set_master(2 * 16384 + 1, std::numeric_limits<float>::infinity());
  EXPECT_EQ(run_on_gpu(memory.tile(), AdamDecay::decoupled, 1), 2u);
  memory.set_master(16384 + 5, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(run_on_gpu(memory.tile(), AdamDecay::decoupled, 2), 1u);
}

}  // namespace
}  // namespace penstock::test
