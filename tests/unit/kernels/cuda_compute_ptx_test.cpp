#include "elements.hpp"
#include "kernels/operands.hpp"
#include "kit/host_queue.hpp"
#include "kit/ptx.hpp"
#include "kit/ptx_memory.hpp"

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

DeviceSpan span(Bytes& bytes) {
  return {DeviceAddress(reinterpret_cast<std::uintptr_t>(bytes.data())), ByteCount(bytes.size())};
}

const PtxModule& module() {
  static const PtxModule read(PENSTOCK_PTX);
  return read;
}
std::string kernel_of(std::string name, std::initializer_list<DType> types) {
  const char* separator = "<";
  for (const DType type : types) name.append(std::exchange(separator, ",")).append(cuda_type(type));
  return name.append(">");
}

/// The host's operations, which run when `queue` does.
struct HostOperations {
  DeferredQueue queue;
  StreamHandle stream = StreamHandle::of(queue);
  std::unique_ptr<Compute> host = kernels::make_host_compute();
};

/// Runs the host's operations and the PTX of the CUDA kernels, both on host memory, to compare them.
class CudaComputePtx : public testing::TestWithParam<std::uint64_t>, protected HostOperations {
 protected:
  template <class... Arguments>
  void launch(const std::string& kernel, std::initializer_list<DType> types,
              const Arguments&... arguments) const {
    // Of several elements each, not all of the same number; of a few elements, some have none.
    module().launch(kernel_of(kernel, types), {.blocks = 3, .threads = 64}, arguments...);
  }

  const std::uint64_t count = GetParam();
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

// Warps process 512 or 1024 elements at a time, of square sums 8 or 16 blocks of 4096.
INSTANTIATE_TEST_SUITE_P(Sizes, CudaComputePtx,
                         testing::Values(1, 127, 511, 1024, 4097, 3 * 4096 + 5, 17 * 4096 - 3));

/// Elements at `shift` elements after a multiple of 16 bytes.
class Shifted {
 public:
  Shifted(std::uint64_t count, DType dtype, std::uint64_t seed, std::size_t shift)
      : bytes_(elements(count + 64, dtype, seed)), dtype_(dtype), count_(count) {
    const std::size_t size = size_of(dtype).value();
    while (reinterpret_cast<std::uintptr_t>(bytes_.data() + begin_) % 16 != 0) begin_ += size;
    begin_ += shift * size;
  }
  [[nodiscard]] std::byte* data() { return bytes_.data() + begin_; }
  [[nodiscard]] HostSpan span() { return {data(), size_of(dtype_) * count_}; }
  [[nodiscard]] DeviceTensor tensor() {
    return {{DeviceAddress(reinterpret_cast<std::uintptr_t>(data())), size_of(dtype_) * count_}, dtype_};
  }
  /// With what lies around the elements.
  [[nodiscard]] const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
  DType dtype_;
  std::uint64_t count_;
  std::size_t begin_ = 0;
};

/// By how many elements operands begin after a multiple of 16 bytes.
struct Shifts {
  std::size_t from, to;
};

class CudaComputePtxAccesses : public testing::Test, protected HostOperations {
 protected:
  static constexpr std::uint64_t count = 4096;

  /// Runs a kernel on host memory, which `spans` are.
  template <class... Arguments>
  static CountedMemory::Accesses run(const std::string& kernel, std::initializer_list<ConstHostSpan> spans,
                                     const Arguments&... arguments) {
    const void* const addresses[] = {&arguments...};
    const CountedMemory memory(spans);
    module().bind(kernel, {.blocks = 3, .threads = 64}, addresses)(memory);
    return memory.accesses();
  }
  /// Of operands: the size of an access, and all bytes.
  static CountedMemory::Accesses sum_of(std::initializer_list<std::pair<std::size_t, std::uint64_t>> parts) {
    CountedMemory::Accesses all;
    for (const auto& [size, bytes] : parts) all[size] += bytes / size;
    return all;
  }
};

// A warp's access to 16-bit elements is of 8 bytes a thread beside fp32 elements that it writes, because the threads
// have 4 neighbouring elements then.
TEST_F(CudaComputePtxAccesses, AreOf16BytesWhereOperandsAreAligned) {
  for (const DType from : dtypes) {
    for (const DType to : dtypes) {
      SCOPED_TRACE(std::string(to_string(from)) + " to " + std::string(to_string(to)));
      const std::uint64_t x_bytes = size_of(from).value() * count, y_bytes = size_of(to).value() * count;
      const std::size_t x_access = from != DType::fp32 && to == DType::fp32 ? 8 : 16;
      Shifted x(count, from, 1, 0), y(count, to, 2, 0);
      if (from != to) {
        EXPECT_EQ(run(kernel_of("cast_kernel", {from, to}), {x.span(), y.span()}, x.data(), y.data(), count),
                  sum_of({{x_access, x_bytes}, {16, y_bytes}}));
      }
      EXPECT_EQ(
          run(kernel_of("accumulate_kernel", {from, to}), {x.span(), y.span()}, x.data(), y.data(), count),
          sum_of({{x_access, x_bytes}, {16, 2 * y_bytes}}));
      const struct {
        const void* x[kernels::mean_inputs_max];
        unsigned count;
      } inputs{{x.data(), x.data(), x.data()}, 3};
      EXPECT_EQ(
          run(kernel_of("mean_kernel", {from, to}), {x.span(), y.span()}, inputs, y.data(), 1.0f, count),
          sum_of({{x_access, 3 * x_bytes}, {16, y_bytes}}));
    }
    const std::uint64_t bytes = size_of(from).value() * count;
    Shifted x(count, from, 1, 0);
    EXPECT_EQ(run(kernel_of("scale_kernel", {from}), {x.span()}, x.data(), 1.0f, count),
              sum_of({{16, 2 * bytes}}));
    // A warp reads two whole blocks.
    const std::uint64_t blocks = 2, elements = blocks * Compute::square_sum_block;
    Shifted in_blocks(elements, from, 1, 0);
    std::vector<double> sums(blocks);
    EXPECT_EQ(run(kernel_of("square_sums_kernel", {from}),
                  {in_blocks.span(), ConstHostSpan(std::span<const double>(sums))}, in_blocks.data(),
                  sums.data(), elements, blocks),
              sum_of({{16, size_of(from).value() * elements}, {8, 8 * blocks}}));
  }
}

TEST_F(CudaComputePtxAccesses, StayWithinOperandsAndGiveTheBitsOfTheHostAtAnyAlignment) {
  constexpr std::uint64_t long_count = count + 777, blocks = 2;
  for (const DType from : dtypes) {
    for (const DType to : dtypes) {
      for (const Shifts& shifts : {Shifts{1, 0}, Shifts{0, 1}, Shifts{3, 3}, Shifts{0, 0}}) {
        SCOPED_TRACE(std::string(to_string(from)) + " to " + std::string(to_string(to)) + ", shifts " +
                     std::to_string(shifts.from) + " " + std::to_string(shifts.to));
        Shifted aligned(long_count, from, 3, 0), x(long_count, from, 1, shifts.from),
            wanted(long_count, to, 2, shifts.to), got(long_count, to, 2, shifts.to);
        Bytes wanted_sums(8 * blocks), got_sums(8 * blocks);
        const DeviceTensor inputs[] = {aligned.tensor(), x.tensor()};
        const struct {
          const void* x[kernels::mean_inputs_max];
          unsigned count;
        } mean_inputs{{aligned.data(), x.data()}, 2};

        ASSERT_TRUE(host->accumulate(stream, x.tensor(), wanted.tensor()).has_value());
        ASSERT_TRUE(host->scale(stream, wanted.tensor(), 0.3f).has_value());
        ASSERT_TRUE(host->square_sums(stream, wanted.tensor(), span(wanted_sums)).has_value());
        queue.run();
        run(kernel_of("accumulate_kernel", {from, to}), {x.span(), got.span()}, x.data(), got.data(),
            long_count);
        run(kernel_of("scale_kernel", {to}), {got.span()}, got.data(), 0.3f, long_count);
        EXPECT_TRUE(got.bytes() == wanted.bytes());
        run(kernel_of("square_sums_kernel", {to}),
            {got.span(), {got_sums.data(), ByteCount(got_sums.size())}}, got.data(), got_sums.data(),
            long_count, blocks);
        EXPECT_EQ(got_sums, wanted_sums);

        ASSERT_TRUE(host->mean(stream, inputs, wanted.tensor()).has_value());
        queue.run();
        run(kernel_of("mean_kernel", {from, to}), {aligned.span(), x.span(), got.span()}, mean_inputs,
            got.data(), 0.5f, long_count);
        EXPECT_TRUE(got.bytes() == wanted.bytes());
        if (from == to) continue;
        ASSERT_TRUE(host->cast(stream, x.tensor(), wanted.tensor()).has_value());
        queue.run();
        run(kernel_of("cast_kernel", {from, to}), {x.span(), got.span()}, x.data(), got.data(), long_count);
        EXPECT_TRUE(got.bytes() == wanted.bytes());
      }
    }
  }
}

}  // namespace
}  // namespace penstock::test
