#include "zero/engine/accumulate_shard.hpp"

#include <penstock/base/compute.hpp>

#include <algorithm>
#include <mutex>
#include <optional>

namespace penstock::zero {

namespace {

constexpr std::uint64_t blocks_of_piece = 4;  // with both operands less than a core's L2 cache
constexpr std::uint64_t piece_elements = Compute::square_sum_block * blocks_of_piece;

/// The bytes of piece number `piece` of `elements`.
template <class Span>
Span piece_of(Span elements, DType dtype, std::uint64_t piece) {
  if (elements.empty()) return elements;
  const ByteCount begin = size_of(dtype) * (piece * piece_elements);
  return elements.subspan(begin, std::min(size_of(dtype) * piece_elements, elements.size() - begin));
}

Result<void> process(const kernels::GradientPiece& piece, kernels::GradientWrite write,
                     std::span<double> square_partials) {
  if (!piece.incoming.empty()) PENSTOCK_TRY(kernels::accumulate_gradient(piece, write));
  if (square_partials.empty()) return ok();
  return kernels::square_sums(piece.accumulator, piece.accumulator_dtype, square_partials);
}

}  // namespace

Result<void> accumulate_shard(const kernels::GradientPiece& shard, kernels::GradientWrite write,
                              std::span<double> square_partials, parallel::Workers& workers) {
  const std::uint64_t elements = shard.accumulator.size() / size_of(shard.accumulator_dtype);
  if (!shard.incoming.empty() && shard.incoming.size() != size_of(shard.incoming_dtype) * elements) {
    return kernels::accumulate_gradient(shard, write);  // which says what is wrong
  }
  std::mutex mutex;
  std::optional<Error> failure;
  workers.parallel_blocks(ceil_divide(elements, piece_elements), [&](std::size_t first, std::size_t last) {
    for (std::size_t piece = first; piece < last; ++piece) {
      const std::size_t partial = std::min(piece * blocks_of_piece, square_partials.size());
      const auto processed =
          process({.incoming = piece_of(shard.incoming, shard.incoming_dtype, piece),
                   .incoming_dtype = shard.incoming_dtype,
                   .accumulator = piece_of(shard.accumulator, shard.accumulator_dtype, piece),
                   .accumulator_dtype = shard.accumulator_dtype},
                  write,
                  square_partials.subspan(
                      partial, std::min<std::size_t>(blocks_of_piece, square_partials.size() - partial)));
      if (processed) continue;
      const std::lock_guard lock(mutex);
      failure = processed.error();
    }
  });
  if (failure) return *failure;
  return ok();
}

}  // namespace penstock::zero
