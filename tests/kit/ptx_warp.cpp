#include "kit/ptx_warp.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace penstock::test::ptx {

namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

/// Gives each thread the value of the lane `source(lane, distance)`, or its own where that is after its segment.
template <class Source>
void shuffle(std::span<Thread> warp, const Operands& o, Source source) {
  std::vector<u32> values;
  for (const Thread& thread : warp) values.push_back(thread.get<u32>(o[2]));
  for (std::size_t lane = 0; lane < warp.size(); ++lane) {
    const u32 control = warp[lane].get<u32>(o[4]), segment = control >> 8 & 0x1f;
    const std::size_t last = (lane & segment) | (control & 0x1f & ~segment);
    const std::size_t other = source(lane, std::size_t{warp[lane].get<u32>(o[3])});
    warp[lane].set(o[0], values.at(other <= last ? other : lane));
    warp[lane].set(o[1], u64{other <= last});
  }
}

/// Lane l gets the elements (l / 4, 2 (l mod 4)) and the next one of the row, of each matrix or the transposed one.
void load_matrices_as(std::span<Thread> warp, const Operands& o, bool transposes) {
  constexpr std::size_t matrices = 4, size = 8, row_bytes = 2 * size;
  if (warp.size() != matrices * size) throw std::runtime_error("PTX: matrices loaded by a part of a warp");
  std::array<std::array<std::uint16_t, size>, matrices * size> row_values;
  for (std::size_t lane = 0; lane < warp.size(); ++lane) {
    const std::uint64_t address = warp[lane].get<u32>(o[matrices]) + o[matrices].offset;
    if (address % row_bytes != 0)
      throw std::runtime_error("PTX: a row of a matrix that is not aligned to 16 bytes");
    const std::byte* const from = warp[lane].shared->read(address, row_bytes, warp[lane].number);
    std::memcpy(row_values[lane].data(), from, row_bytes);
  }
  for (std::size_t lane = 0; lane < warp.size(); ++lane) {
    for (std::size_t matrix = 0; matrix < matrices; ++matrix) {
      const auto element = [&](std::size_t row, std::size_t column) -> u32 {
        return transposes ? row_values[matrix * size + column][row] : row_values[matrix * size + row][column];
      };
      const std::size_t row = lane / 4, column = lane % 4 * 2;
      warp[lane].set(o[matrix], element(row, column) | element(row, column + 1) << 16);
    }
  }
}

/// A matrix of which each thread holds some elements, two bf16 in a register (PTX ISA, "Matrix Fragments for
/// mma.m16n8k16 with floating point type").
constexpr std::size_t rows = 16, columns = 8, inner = 16, lanes = 32;
float bf16(u32 bits) {
  return std::bit_cast<float>(bits << 16);
}

}  // namespace

void shuffle_down(std::span<Thread> warp, const Operands& o) {
  shuffle(warp, o, [](std::size_t lane, std::size_t distance) { return lane + distance; });
}

void shuffle_butterfly(std::span<Thread> warp, const Operands& o) {
  shuffle(warp, o, [](std::size_t lane, std::size_t mask) { return lane ^ mask; });
}

void load_matrices(std::span<Thread> warp, const Operands& o) {
  load_matrices_as(warp, o, /*transposes=*/false);
}

void load_matrices_transposed(std::span<Thread> warp, const Operands& o) {
  load_matrices_as(warp, o, /*transposes=*/true);
}

void multiply_matrices(std::span<Thread> warp, const Operands& o) {
  if (warp.size() != lanes) throw std::runtime_error("PTX: a product of matrices by a part of a warp");
  // Operands: four registers of the result, four of a, two of b, four of the addend.
  std::array<float, rows * inner> a;
  std::array<float, inner * columns> b;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const std::size_t group = lane / 4, pair = lane % 4 * 2;
    for (std::size_t i = 0; i < 4; ++i) {
      const u32 both = warp[lane].get<u32>(o[4 + i]);
      float* const at = &a[(group + i % 2 * 8) * inner + pair + i / 2 * 8];
      at[0] = bf16(both & 0xffff);
      at[1] = bf16(both >> 16);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const u32 both = warp[lane].get<u32>(o[8 + i]);
      float* const at = &b[(pair + i * 8) * columns + group];
      at[0] = bf16(both & 0xffff);
      at[columns] = bf16(both >> 16);
    }
  }
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      float sum = warp[lane].get<float>(o[10 + i]);
      for (std::size_t k = 0; k < inner; ++k) sum += a[row * inner + k] * b[k * columns + column];
      warp[lane].set(o[i], sum);
    }
  }
}

}  // namespace penstock::test::ptx
