#include "kernels/host_gradient.hpp"

#include "kernels/host_kernels.hpp"
#include "kernels/operands.hpp"

namespace penstock::kernels {

Result<void> accumulate_gradient(const GradientPiece& piece, GradientWrite write) noexcept {
  constexpr const char* operation = "accumulate_gradient";
  const ByteRange incoming = ByteRange::of(piece.incoming);
  const ByteRange accumulator = ByteRange::of(piece.accumulator);
  PENSTOCK_TRY(check_operand(operation, "incoming", incoming, piece.incoming_dtype));
  PENSTOCK_TRY(check_operand(operation, "accumulator", accumulator, piece.accumulator_dtype));
  const ElementCount count(piece.incoming.size() / size_of(piece.incoming_dtype));
  PENSTOCK_TRY(check_same_count(operation, "accumulator", count,
                                ElementCount(piece.accumulator.size() / size_of(piece.accumulator_dtype))));
  PENSTOCK_TRY(check_apart(operation, "accumulator", incoming, accumulator));

  const ConstElements from{piece.incoming.data(), piece.incoming_dtype};
  const Elements to{piece.accumulator.data(), piece.accumulator_dtype};
  if (write == GradientWrite::overwrite) {
    cast_elements(from, to, count.value());
  } else {
    accumulate_elements(from, to, count.value());
  }
  return ok();
}

Result<void> square_sums(ConstHostSpan x, DType dtype, std::span<double> partials) noexcept {
  constexpr const char* operation = "square_sums";
  PENSTOCK_TRY(check_operand(operation, "x", ByteRange::of(x), dtype));
  const ElementCount count(x.size() / size_of(dtype));
  PENSTOCK_TRY(check_partials(operation, count, ByteRange::of(HostSpan(partials))));
  square_sums_of_elements({x.data(), dtype}, count.value(), partials.data());
  return ok();
}

}  // namespace penstock::kernels
