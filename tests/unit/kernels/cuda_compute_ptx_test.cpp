#include "elements.hpp"
#include "kernels/operands.hpp"
#include "kit/host_queue.hpp"
#include "kit/ptx.hpp"

#include "kernels/host_compute.hpp"

#include <gtest/gtest.h>
#include <initializer_list>
#include <memory>
#include <string>

namespace penstock::test {
namespace {

using Bytes = std::vector<std::byte>;

/// Zeros, a subnormal, infinities and NaNs of every kind first, as far as there is room.
Bytes elements_with_specials(std::uint64_t count, DType dtype) {
  Bytes bytes = elements(count, dtype, 1);
  const std::uint32_t infinity = dtype == DType::fp32 ? 0x7f800000 : dtype == DType::bf16 ? 0x7f80 : 0x7c00;
  const std::uint32_t sign = dtype == DType::fp32 ? 0x80000000 : 0x8000, quiet = (sign - infinity) / 2;
  std::size_t at = 0;
  for (const std::uint32_t magnitude : {0u, 1u, infinity, infinity | 1u, infinity | quiet, sign - 1}) {
    for (const std::uint32_t bits : {magnitude, magnitude | sign}) {
      const std::size_t size = size_of(dtype).value();
      if (at + size <= bytes.size()) std::memcpy(&bytes[at], &bits, size);
      at += size;
    }
  }
  return bytes;
}

/// Runs the host's operations and the PTX of the CUDA kernels, both on host memory, to compare them.
class CudaComputePtx : public testing::TestWithParam<std::uint64_t> {
 protected:
  static DeviceSpan span(Bytes& bytes) {
    return {DeviceAddress(reinterpret_cast<std::uintptr_t>(bytes.data())), ByteCount(bytes.size())};
  }
  template <class... Arguments>
  void launch(std::string kernel, std::initializer_list<DType> types, const Arguments&... arguments) const {
    const char* separator = "<";
    for (const DType type : types) kernel.append(std::exchange(separator, ",")).append(cuda_type(type));
    // Of several elements each, not all of the same number; of a few elements, some have none.
    module.launch(kernel.append(">"), {.blocks = 3, .threads = 64}, arguments...);
  }

  const std::uint64_t count = GetParam();
  const PtxModule module{PENSTOCK_PTX};
  DeferredQueue queue;
  StreamHandle stream = StreamHandle::of(queue);
  std::unique_ptr<Compute> host = kernels::make_host_compute();
};

TEST_P(CudaComputePtx, CastsToTheBitsOfTheHostNaNsToo) {
  for (const DType from : dtypes) {
    for (const DType to : dtypes) {
      if (from == to) continue;  // a copy, and no kernel
      Bytes x = elements_with_specials(count, from), wanted = elements(count, to, 2), got = wanted;
      ASSERT_TRUE(host->cast(stream, {span(x), from}, {span(wanted), to}).has_value());
      queue.run();
      launch("cast_kernel", {from, to}, x.data(), got.data(), count);
      EXPECT_EQ(got, wanted) << to_string(from) << " to " << to_string(to);
    }
  }
}

TEST_P(CudaComputePtx, AccumulatesAndScalesToTheBitsOfTheHost) {
  const float third = 1.0f / 3.0f;
  for (const DType from : dtypes) {
    for (const DType to : dtypes) {
      Bytes x = elements(count, from, 1), wanted = elements(count, to, 2), got = wanted;
      ASSERT_TRUE(host->accumulate(stream, {span(x), from}, {span(wanted), to}).has_value());
      ASSERT_TRUE(host->scale(stream, {span(wanted), to}, third).has_value());
      queue.run();
      launch("accumulate_kernel", {from, to}, x.data(), got.data(), count);
      launch("scale_kernel", {to}, got.data(), third, count);
      EXPECT_EQ(got, wanted) << to_string(from) << " to " << to_string(to);
    }
  }
}

TEST_P(CudaComputePtx, TakesTheMeanToTheBitsOfTheHost) {
  for (const DType from : dtypes) {
    for (const DType to : dtypes) {
      Bytes x = elements(count, from, 1), y = elements(count, from, 2), wanted = elements(count, to, 3),
            got = wanted;
      const DeviceTensor inputs[] = {{span(x), from}, {span(y), from}, {span(x), from}};
      ASSERT_TRUE(host->mean(stream, inputs, {span(wanted), to}).has_value());
      queue.run();
      const struct {
        const void* x[kernels::mean_inputs_max];
        unsigned count;
      } mean_inputs{{x.data(), y.data(), x.data()}, 3};
      launch("mean_kernel", {from, to}, mean_inputs, got.data(), 1.0f / 3.0f, count);
      EXPECT_EQ(got, wanted) << to_string(from) << " to " << to_string(to);
    }
  }
}

TEST_P(CudaComputePtx, SumsSquaresToTheBitsOfTheHost) {
  const std::uint64_t blocks = ceil_divide(count, Compute::square_sum_block);
  for (const DType dtype : dtypes) {
    Bytes x = elements(count, dtype, 1), wanted(8 * blocks), got = wanted;
    ASSERT_TRUE(host->square_sums(stream, {span(x), dtype}, span(wanted)).has_value());
    queue.run();
    launch("square_sums_kernel", {dtype}, x.data(), got.data(), count, blocks);
    EXPECT_EQ(got, wanted) << to_string(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CudaComputePtx, testing::Values(1, 127, 4097, 3 * 4096 + 5, 100'000));

}  // namespace
}  // namespace penstock::test
