#include "cpu_adam/adam_coefficients.hpp"
#include "kit/ptx.hpp"
#include "kit/ptx_memory.hpp"
#include "tile_fixture.hpp"

#include <penstock/cpu_adam/adam.hpp>

#include <gtest/gtest.h>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>

namespace penstock::test {

using namespace cpu_adam;
namespace {

constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();
constexpr DType dtypes[] = {DType::fp32, DType::bf16, DType::fp16};
constexpr AdamDecay decays[] = {AdamDecay::none, AdamDecay::l2, AdamDecay::decoupled};

using Variant = TileKind;
constexpr Variant variants[] = {{StateFormat::fp32, DType::fp32},    {StateFormat::fp32, DType::bf16},
                                {StateFormat::fp32, DType::fp16},    {StateFormat::moments, DType::fp32},
                                {StateFormat::moments, DType::bf16}, {StateFormat::moments, DType::fp16},
                                {StateFormat::moments_bf16},         {StateFormat::split},
                                {StateFormat::split_bf16},           {StateFormat::split_q8}};

std::string format_in_cuda(const Variant& variant) {
  const std::string space = "penstock::kernels::";
  switch (variant.format) {
    case StateFormat::fp32: return space + "Fp32Format<" + cuda_type(variant.parameter) + ">";
    case StateFormat::moments: return space + "MomentsFormat<" + cuda_type(variant.parameter) + ">";
    case StateFormat::moments_bf16: return space + "MomentsBf16Format";
    case StateFormat::split: return space + "SplitFormat";
    case StateFormat::split_bf16: return space + "SplitBf16Format";
    case StateFormat::split_q8: break;
  }
  return space + "SplitQ8Format";
}

/// The first step moves no master.
AdamConfig adam(AdamDecay mode, std::uint64_t step) {
  return {.learning_rate = step == 1 ? 0.0f : 1e-2f, .weight_decay = 0.1f, .decay_mode = mode};
}

/// Bytes `shift` after a multiple of 64.
class Bytes {
 public:
  Bytes(ByteCount size, ByteCount shift)
      : memory_(std::make_unique<std::byte[]>(size.value() + shift.value() + 64)), size_(size) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
    begin_ = memory_.get() + (64 - address % 64) % 64 + shift.value();
  }
  [[nodiscard]] HostSpan span() const { return {begin_, size_}; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  ByteCount size_;
  std::byte* begin_;
};

/// By how many elements operands begin after multiples of 64 bytes.
struct Shifts {
  std::size_t state = 0, gradient = 0, parameter = 0;
};

/// A tile in memory of its own.
class Tile {
 public:
  Tile(const Variant& variant, DType gradient, std::size_t count, const Shifts& shifts = {})
      : variant_(variant),
        gradient_dtype_(gradient),
        count_(count),
        state_(tile_bytes(variant.format, ElementCount(count)).value(),
               ByteCount(state_alignment(variant.format).bytes() * shifts.state)),
        gradient_(size_of(gradient) * count, size_of(gradient) * shifts.gradient),
        parameter_(size_of(variant.parameter) * count, size_of(variant.parameter) * shifts.parameter) {}

  [[nodiscard]] AdamTile get() const {
    return {.state = state_.span(),
            .gradient = gradient_.span(),
            .parameter = parameter_.span(),
            .elements = ElementCount(count_),
            .gradient_dtype = gradient_dtype_,
            .parameter_dtype = variant_.parameter,
            .format = variant_.format,
            .first_element = 1'000'003};
  }
  void set(const std::vector<float>& masters, const std::vector<float>& gradient) const {
    ASSERT_TRUE(initialize_tile(ConstHostSpan(std::span(masters)), DType::fp32, get()).has_value());
    set_gradient(gradient);
  }
  void set_gradient(const std::vector<float>& gradient) const {
    const std::size_t size = size_of(gradient_dtype_).value();
    for (std::size_t i = 0; i < count_; ++i) {
      put(gradient_dtype_, gradient_.span().data() + i * size, rounded_to(gradient_dtype_, gradient[i]));
    }
  }
  /// State, then parameter.
  [[nodiscard]] std::vector<std::byte> bytes() const {
    std::vector<std::byte> all;
    for (const HostSpan part : {state_.span(), parameter_.span()}) {
      all.insert(all.end(), part.data(), part.data() + part.size().value());
    }
    return all;
  }
  [[nodiscard]] std::vector<float> states(StateKind kind) const {
    std::vector<float> values(count_);
    EXPECT_TRUE(read_states(get(), kind, ElementCount(0), values));
    return values;
  }
  [[nodiscard]] float parameter(std::size_t i) const {
    return test::get(variant_.parameter, parameter_.span().data() + i * size_of(variant_.parameter).value());
  }
  [[nodiscard]] std::string kernel() const {
    return "adam_kernel<" + cuda_type(gradient_dtype_) + "," + format_in_cuda(variant_) + ">";
  }

 private:
  Variant variant_;
  DType gradient_dtype_;
  std::size_t count_;
  Bytes state_, gradient_, parameter_;
};

struct GpuOutcome {
  std::uint64_t first_non_finite_block;
  CountedMemory::Accesses accesses;
};

enum class Gpu { hopper, before_hopper };

const PtxModule& module_of(Gpu gpu) {
  static const PtxModule hopper(PENSTOCK_PTX), before_hopper(PENSTOCK_PTX_BEFORE_HOPPER);
  return gpu == Gpu::hopper ? hopper : before_hopper;
}

/// Interprets the kernel's PTX, with a few warps that stride over the tile.
GpuOutcome run_on_gpu(const Tile& tile, const AdamConfig& config, std::uint64_t step, Gpu gpu = Gpu::hopper) {
  const AdamTile on_host = tile.get();
  const auto coefficients = adam_coefficients(config, step, 0.5f).value();
  const struct {
    void *state, *parameter;
    std::uint64_t step, first_element;
  } operands{on_host.state.data(), on_host.parameter.data(), step, on_host.first_element};
  GpuOutcome outcome{none, {}};
  const void* const gradient = on_host.gradient.data();
  std::uint64_t* const flag = &outcome.first_non_finite_block;
  const std::uint64_t count = on_host.elements.value();
  const void* const arguments[] = {&coefficients, &operands, &gradient, &flag, &count};
  const CountedMemory memory{on_host.state, on_host.gradient, on_host.parameter,
                             ConstHostSpan(std::span<const std::uint64_t>(flag, 1))};
  module_of(gpu).bind(tile.kernel(), {.blocks = 2, .threads = 64}, arguments)(memory);
  outcome.accesses = memory.accesses();
  return outcome;
}

/// Random masters, every fifth of which is a tie.
TileValues values_of(std::size_t count) {
  TileValues values = random_values(count, 3);
  for (std::size_t i = 0; i < count; i += 5) values.master[i] = tie(i);
  return values;
}

/// Steps on the CPU and on the GPU, with gradients that change their signs.
void expect_same_bits(const Variant& variant, DType gradient, AdamDecay decay, std::size_t count,
                      const Shifts& shifts = {}, Gpu kind = Gpu::hopper) {
  SCOPED_TRACE(variant.name() + ", gradient " + std::string(to_string(gradient)) + ", decay " +
               std::to_string(int(decay)) + ", " + std::to_string(count) + " elements, shifts " +
               std::to_string(shifts.state) + " " + std::to_string(shifts.gradient) + " " +
               std::to_string(shifts.parameter));
  TileValues values = values_of(count);
  const Tile cpu(variant, gradient, count), gpu(variant, gradient, count, shifts);
  for (const Tile* tile : {&cpu, &gpu}) tile->set(values.master, values.gradient);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const AdamConfig config = adam(decay, step);
    ASSERT_TRUE(adam_step(config, step, 0.5f, cpu.get()).has_value());
    ASSERT_EQ(run_on_gpu(gpu, config, step, kind).first_non_finite_block, none);
    ASSERT_TRUE(gpu.bytes() == cpu.bytes()) << "step " << step;
    for (std::size_t i = 0; i < count; i += 3) values.gradient[i] *= -0.5f;
    for (const Tile* tile : {&cpu, &gpu}) tile->set_gradient(values.gradient);
  }
}

class AdamPtx : public testing::TestWithParam<Variant> {};

TEST_P(AdamPtx, GivesTheBitsOfTheCpuForEveryGradientDecayAndEnd) {
  for (const DType gradient : dtypes) {
    for (const AdamDecay decay : decays) {
      for (const std::size_t count : std::initializer_list<std::size_t>{0, 1, 7, 8, 9, 255, 256, 257, 520}) {
        ASSERT_NO_FATAL_FAILURE(expect_same_bits(GetParam(), gradient, decay, count));
      }
    }
  }
}

TEST_P(AdamPtx, GivesTheBitsOfTheCpuAtAnyAlignment) {
  for (const DType gradient : dtypes) {
    for (const Shifts& shifts : {Shifts{1, 0, 0}, Shifts{0, 3, 0}, Shifts{0, 0, 7}, Shifts{2, 2, 2}}) {
      ASSERT_NO_FATAL_FAILURE(expect_same_bits(GetParam(), gradient, AdamDecay::decoupled, 520, shifts));
    }
  }
}

TEST_P(AdamPtx, GivesTheBitsOfTheCpuInSeveralBlocks) {
  std::size_t choice = 0;
  for (const std::size_t count : std::initializer_list<std::size_t>{16383, 16384, 16385, 3 * 16384 + 5}) {
    const DType gradient = dtypes[choice % 3];
    ASSERT_NO_FATAL_FAILURE(expect_same_bits(GetParam(), gradient, decays[(choice + 1) % 3], count));
    ++choice;
  }
}

TEST_P(AdamPtx, NamesTheFirstBlockThatIsNotFiniteAndUpdatesFiniteElements) {
  constexpr std::size_t count = 2 * 16384 + 300;
  TileValues values = values_of(count);
  values.master[16384 + 20] = std::bit_cast<float>(0x8000u);  // the smallest tie, beside a NaN
  values.gradient[16384 + 20] = 0.0f;
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  const Tile cpu(GetParam(), DType::bf16, count), gpu(GetParam(), DType::bf16, count);
  for (const Tile* tile : {&cpu, &gpu}) tile->set(values.master, values.gradient);
  std::vector<float> gradient = values.gradient;
  const std::pair<std::size_t, float> specials[] = {
      {count - 1, infinity}, {16384 + 7, nan}, {16384 + 777, -infinity}, {16384 - 1, 1e30f}};
  std::uint64_t step = 0;
  for (const auto& [at, value] : specials) {
    gradient[at] = value;
    for (const Tile* tile : {&cpu, &gpu}) tile->set_gradient(gradient);
    ++step;
    const auto outcome = adam_step(adam(AdamDecay::decoupled, step), step, 0.5f, cpu.get());
    ASSERT_TRUE(outcome.has_value());
    EXPECT_EQ(run_on_gpu(gpu, adam(AdamDecay::decoupled, step), step).first_non_finite_block,
              outcome->first_non_finite_block.value_or(none));
    EXPECT_EQ(outcome->first_non_finite_block, at / 16384);
  }
  for (const StateKind kind : all_states) {
    const auto wanted = cpu.states(kind), got = gpu.states(kind);
    for (std::size_t i = 0; i < count; ++i) {
      const bool special = std::ranges::any_of(specials, [&](const auto& one) { return one.first == i; });
      if (special) continue;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(wanted[i]))
          << to_string(kind) << " " << i;
    }
  }
}

TEST_P(AdamPtx, ReportsAnInfiniteMasterWhoseMomentsAreFinite) {
  constexpr std::size_t count = 16384 + 256;
  for (const std::size_t at : std::initializer_list<std::size_t>{16384, 16384 - 1}) {
    const Tile gpu(GetParam(), DType::bf16, count);
    std::vector<float> masters(count, 1.0f);
    masters[at] = -std::numeric_limits<float>::infinity();
    gpu.set(masters, std::vector<float>(count, 1.0f));

    EXPECT_EQ(run_on_gpu(gpu, adam(AdamDecay::none, 2), 2).first_non_finite_block, at / 16384);
  }
}

// A NaN must not become a number when it is rounded or divided into halves: neither one that CUDA makes, the first,
// nor others.
TEST_P(AdamPtx, KeepsNaNsThatGradientsMake) {
  for (const std::uint32_t nan : {0x7fffffffu, 0xffffffffu, 0x7fc00000u}) {
    const std::size_t count = 300;
    const Tile gpu(GetParam(), DType::fp32, count);
    std::vector<float> gradient(count, 1.0f);
    for (const std::size_t i : std::initializer_list<std::size_t>{0, 7, 299})
      gradient[i] = std::bit_cast<float>(nan);
    gpu.set(std::vector<float>(count, 0x1.01p0f), gradient);
    for (std::uint64_t step = 1; step <= 2; ++step) {
      EXPECT_EQ(run_on_gpu(gpu, adam(AdamDecay::none, step), step).first_non_finite_block, 0u);
      gpu.set_gradient(std::vector<float>(count, 1.0f));
      const auto masters = gpu.states(StateKind::master);
      for (std::size_t i = 0; i < count; ++i) {
        const bool wanted = i == 0 || i == 7 || i == 299;
        ASSERT_EQ(std::isnan(gpu.parameter(i)), wanted) << std::hex << nan << " " << i;
        ASSERT_EQ(std::isnan(masters[i]), wanted) << std::hex << nan << " " << i;
      }
    }
  }
}

// Of an odd number of elements, the last byte has a nibble that belongs to none; the CPU keeps it.
TEST(AdamPtxQ8, KeepsTheNibbleOfNoElement) {
  constexpr std::size_t count = 265;
  constexpr Variant q8{StateFormat::split_q8, DType::bf16};
  const TileValues values = values_of(count);
  const Tile cpu(q8, DType::bf16, count), gpu(q8, DType::bf16, count);
  for (const Tile* tile : {&cpu, &gpu}) {
    tile->set(values.master, values.gradient);
    tile->get().state.data()[4 * count + count / 2] |= std::byte{0xa0};
  }
  ASSERT_TRUE(adam_step(adam(AdamDecay::none, 2), 2, 0.5f, cpu.get()).has_value());
  EXPECT_EQ(run_on_gpu(gpu, adam(AdamDecay::none, 2), 2).first_non_finite_block, none);

  EXPECT_TRUE(gpu.bytes() == cpu.bytes());
}

// With L2 decay, gradients that cancel their masters leave a scale that is so much larger than all v of the run that
// their codes are the coarse ones.
TEST(AdamPtxQ8, BoundsRunsOfCoarseCodesAsTheCpuDoes) {
  constexpr std::size_t count = 16 * 256 + 77;
  constexpr Variant q8{StateFormat::split_q8, DType::bf16};
  std::vector<float> masters(count), gradient(count);
  for (std::size_t i = 0; i < count; ++i) {
    const float size = 1.0f + static_cast<float>(i / 256) / 16;
    masters[i] = i % 256 == 0 ? 256.0f : 0.0f;
    gradient[i] = i % 256 == 0 ? -512.0f : std::ldexp(size, -static_cast<int>(i % 20));
  }
  const Tile cpu(q8, DType::fp32, count), gpu(q8, DType::fp32, count);
  for (const Tile* tile : {&cpu, &gpu}) tile->set(masters, gradient);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const AdamConfig config =
        step == 1 ? AdamConfig{.weight_decay = 1, .decay_mode = AdamDecay::l2} : AdamConfig{};
    ASSERT_TRUE(adam_step(config, step, 0.5f, cpu.get()).has_value());
    ASSERT_EQ(run_on_gpu(gpu, config, step).first_non_finite_block, none);
    ASSERT_TRUE(gpu.bytes() == cpu.bytes()) << step;
    for (std::size_t i = 0; i < count; ++i) gradient[i] *= i % 256 == 0 ? 0.0f : 0.5f;
    for (const Tile* tile : {&cpu, &gpu}) tile->set_gradient(gradient);
  }
}

TEST(AdamPtxQ8, GivesTheSameBitsOnGpusWithoutInstructionsForPairs) {
  for (const AdamDecay decay : decays) {
    for (const std::size_t count : std::initializer_list<std::size_t>{9, 257, 520, 16384 + 300}) {
      ASSERT_NO_FATAL_FAILURE(expect_same_bits({StateFormat::split_q8, DType::bf16}, DType::bf16, decay,
                                               count, {}, Gpu::before_hopper));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, AdamPtx, testing::ValuesIn(variants),
                         [](const auto& tested) { return tested.param.name(); });

// A warp's access to 16-bit elements beside fp32 ones is to 256 bytes, 8 of each thread: its neighbours in memory are
// those of its fp32 accesses, which are of 16 bytes each.
TEST(AdamPtxAccesses, AreOf16BytesInAlignedTiles) {
  constexpr std::size_t count = 16384, threads = count / 8;
  using Accesses = CountedMemory::Accesses;
  const auto accesses = [](const Variant& variant, DType gradient, const Shifts& shifts = {}) {
    const Tile tile(variant, gradient, count, shifts);
    tile.set(std::vector<float>(count, 1.0f), std::vector<float>(count, 1.0f));
    return run_on_gpu(tile, adam(AdamDecay::decoupled, 2), 2).accesses;
  };
  const Variant fp32{StateFormat::fp32, DType::bf16}, fp32_alone{StateFormat::fp32, DType::fp32},
      moments{StateFormat::moments, DType::fp32}, split{StateFormat::split, DType::bf16},
      split_bf16{StateFormat::split_bf16, DType::bf16}, split_q8{StateFormat::split_q8, DType::bf16};

  EXPECT_EQ(accesses(fp32_alone, DType::fp32), (Accesses{{16, (4 + 4) * 2 * threads}}));
  EXPECT_EQ(accesses(fp32, DType::bf16), (Accesses{{16, (3 + 3) * 2 * threads}, {8, (1 + 1) * 2 * threads}}));
  EXPECT_EQ(accesses(moments, DType::bf16), (Accesses{{16, (3 + 3) * 2 * threads}, {8, 2 * threads}}));
  EXPECT_EQ(accesses(narrow_kinds[0], DType::bf16),
            (Accesses{{16, (2 + 2) * 2 * threads}, {8, (2 + 1) * 2 * threads}}));
  EXPECT_EQ(accesses(narrow_kinds[2], DType::bf16), (Accesses{{16, (4 + 3) * threads}}));
  EXPECT_EQ(accesses(split, DType::bf16),
            (Accesses{{16, (2 + 2) * 2 * threads}, {8, (3 + 2) * 2 * threads}}));
  EXPECT_EQ(accesses(split_bf16, DType::bf16), (Accesses{{16, (5 + 4) * threads}}));
  EXPECT_EQ(accesses(split_bf16, DType::fp32), (Accesses{{16, (6 + 4) * threads}}));
  // Nibbles have 4 bytes a thread, and each thread reads both scales of the run.
  EXPECT_EQ(accesses(split_q8, DType::bf16),
            (Accesses{{16, (4 + 3) * threads}, {4, (1 + 1) * threads}, {1, 2 * threads + 2 * threads / 32}}));
  for (const Variant& variant : {fp32, moments, split, split_bf16, split_q8}) {
    EXPECT_LE(accesses(variant, DType::bf16, {.gradient = 1}).rbegin()->first, 4u) << variant.name();
  }
}

}  // namespace
}  // namespace penstock::test
