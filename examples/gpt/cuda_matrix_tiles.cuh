#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

/// Products of small matrices on tensor cores, by one warp: mma.m16n8k16 of bf16 with fp32 sums, and ldmatrix (PTX ISA,
/// "Matrix Fragments for mma.m16n8k16 with floating point type", "ldmatrix"). Lane l holds the elements of row l / 4 and of columns
/// 2 (l mod 4) and the next one, and those 8 rows or columns further.
namespace gpt::cuda {

constexpr unsigned warp_size = 32;

/// Two bf16, the one of the lower row or column in the lower half.
using Pair = std::uint32_t;

__device__ inline unsigned lane_row() {
  return threadIdx.x % warp_size / 4;
}
__device__ inline unsigned lane_column() {
  return threadIdx.x % 4 * 2;
}

__device__ inline Pair pair(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return Pair{__bfloat16_as_ushort(both.x)} | Pair{__bfloat16_as_ushort(both.y)} << 16;
}

/// The left operand: 16 rows, 16 columns.
struct LeftFragment {
  Pair at[4];
};
/// The right operand: 16 rows, 8 columns.
struct RightFragment {
  Pair at[2];
};
/// Those of two products.
struct RightFragments {
  RightFragment at[2];
};
/// A sum: 16 rows, 8 columns. at[0] and at[1] are of row lane_row(), at[2] and at[3] of the row 8 further.
struct SumFragment {
  float at[4];

  __device__ static unsigned row(unsigned i) { return lane_row() + i / 2 * 8; }
  __device__ static unsigned column(unsigned i) { return lane_column() + i % 2; }
};

/// sum += left · right.
__device__ inline void multiply_add(SumFragment& sum, const LeftFragment& left, const RightFragment& right) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum.at[0]), "+f"(sum.at[1]), "+f"(sum.at[2]), "+f"(sum.at[3])
      : "r"(left.at[0]), "r"(left.at[1]), "r"(left.at[2]), "r"(left.at[3]), "r"(right.at[0]),
        "r"(right.at[1]));
}

/// Two sums side by side as the left operand of a product, rounded: the lanes hold the same elements of both.
__device__ inline LeftFragment rounded(const SumFragment& left, const SumFragment& right) {
  return {{pair(left.at[0], left.at[1]), pair(left.at[2], left.at[3]), pair(right.at[0], right.at[1]),
           pair(right.at[2], right.at[3])}};
}

/// A matrix of bf16 in global memory. Its columns, and the elements between two rows, are multiples of 8, and it is
/// aligned to 16 bytes. Elements outside of it are zero.
struct MatrixView {
  const __nv_bfloat16* data;
  std::size_t stride;
  unsigned rows, columns;

  /// As many elements of a row as a T has.
  template <class T>
  __device__ T at(unsigned row, unsigned column) const {
    return row < rows && column < columns ? *reinterpret_cast<const T*>(data + row * stride + column) : T{};
  }
  /// Its 16 rows and columns from (row, column) as a left operand.
  __device__ LeftFragment left(unsigned row, unsigned column) const {
    const unsigned r = row + lane_row(), c = column + lane_column();
    return {{at<Pair>(r, c), at<Pair>(r + 8, c), at<Pair>(r, c + 8), at<Pair>(r + 8, c + 8)}};
  }
};

/// A matrix in shared memory. Rows are 16 bytes longer than they need be: the lanes that read a fragment then access
/// different banks.
template <unsigned row_count, unsigned column_count>
class SharedTile {
 public:
  /// Copies rows [first, first + row_count) of `from`, with all `threads` of the block.
  __device__ void load(const MatrixView& from, unsigned first, unsigned threads) {
    constexpr unsigned pieces = column_count / 8;  // of 16 bytes, in a row
    for (unsigned i = threadIdx.x; i < row_count * pieces; i += threads) {
      const unsigned row = i / pieces, piece = i % pieces;
      *reinterpret_cast<uint4*>(&at_[row][4 * piece]) = from.at<uint4>(first + row, 8 * piece);
    }
  }
  /// Its 16 rows and columns from (row, column), transposed, as the right operands of two products: rows 0 to 7 and
  /// rows 8 to 15.
  __device__ RightFragments transposed(unsigned row, unsigned column) const {
    const unsigned matrix = lane_matrix();
    RightFragments result;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(result.at[0].at[0]), "=r"(result.at[0].at[1]), "=r"(result.at[1].at[0]),
                   "=r"(result.at[1].at[1])
                 : "r"(address(row + matrix / 2 * 8, column + matrix % 2 * 8)));
    return result;
  }
  /// Its 16 rows and columns from (row, column) as the right operands of two products: columns 0 to 7 and 8 to 15.
  __device__ RightFragments right(unsigned row, unsigned column) const {
    const unsigned matrix = lane_matrix();
    RightFragments result;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(result.at[0].at[0]), "=r"(result.at[0].at[1]), "=r"(result.at[1].at[0]),
                   "=r"(result.at[1].at[1])
                 : "r"(address(row + matrix % 2 * 8, column + matrix / 2 * 8)));
    return result;
  }

 private:
  /// ldmatrix loads four matrices of 8 rows of 16 bytes; eight lanes give the addresses of the rows of one.
  __device__ static unsigned lane_matrix() { return threadIdx.x % warp_size / 8; }
  /// In shared memory, of the row of this lane in the matrix that begins at (row, column).
  __device__ unsigned address(unsigned row, unsigned column) const {
    return static_cast<unsigned>(__cvta_generic_to_shared(&at_[row + threadIdx.x % 8][column / 2]));
  }

  alignas(16) Pair at_[row_count][column_count / 2 + 4];
};

}  // namespace gpt::cuda
