#include "cpu_adam/check_tile.hpp"

#include "kernels/operands.hpp"

#include <string>

namespace penstock::cpu_adam::detail {

namespace {

using kernels::ByteRange;

Result<void> check_elements(const char* operation, const char* name, ConstHostSpan span, DType dtype,
                            ElementCount elements) {
  PENSTOCK_TRY(kernels::check_operand(operation, name, ByteRange::of(span), dtype));
  return kernels::check_same_count(operation, name, elements, ElementCount(span.size() / size_of(dtype)));
}

}  // namespace

Result<void> check_state(const char* operation, const OptimizerTile& tile) {
  PENSTOCK_TRY_ASSIGN(const auto state_bytes, tile_bytes(tile.layout(), tile.elements));
  if (tile.state.size() != state_bytes) {
    return Error::invalid_argument(operation).object("state").wanted(state_bytes).got(tile.state.size());
  }
  if (tile.state.data() == nullptr && !tile.state.empty()) {
    return Error::invalid_argument(operation).object("state").reason("its address is null").got(state_bytes);
  }
  const Alignment alignment = state_alignment(tile.format);
  if (!is_aligned(tile.state.data(), alignment)) {
    return Error::invalid_argument(operation)
        .object("state")
        .reason("its address is not aligned")
        .wanted("a multiple of " + to_string(ByteCount(alignment.bytes())))
        .got(reinterpret_cast<std::uintptr_t>(tile.state.data()) % alignment.bytes());
  }
  return ok();
}

Result<void> check_tile(const char* operation, const OptimizerTile& tile) {
  PENSTOCK_TRY(check_state(operation, tile));
  if (!takes_parameter(tile.format, tile.parameter_dtype)) {
    return Error::invalid_argument(operation)
        .object("parameter_dtype")
        .reason("the parameter is a part of the master in state format " +
                std::string(to_string(tile.format)))
        .wanted("bf16")
        .got(std::string(to_string(tile.parameter_dtype)));
  }
  PENSTOCK_TRY(check_elements(operation, "parameter", tile.parameter, tile.parameter_dtype, tile.elements));
  return kernels::check_apart(operation, "parameter and state", ByteRange::of(tile.parameter),
                              ByteRange::of(tile.state));
}

Result<void> check_gradient(const char* operation, const OptimizerTile& tile) {
  const ByteRange gradient = ByteRange::of(tile.gradient);
  PENSTOCK_TRY(check_elements(operation, "gradient", tile.gradient, tile.gradient_dtype, tile.elements));
  PENSTOCK_TRY(kernels::check_apart(operation, "gradient and state", gradient, ByteRange::of(tile.state)));
  return kernels::check_apart(operation, "gradient and parameter", gradient, ByteRange::of(tile.parameter));
}

Result<void> check_initial(const char* operation, ConstHostSpan initial, DType dtype,
                           const OptimizerTile& tile) {
  const ByteRange range = ByteRange::of(initial);
  PENSTOCK_TRY(check_elements(operation, "initial", initial, dtype, tile.elements));
  PENSTOCK_TRY(kernels::check_apart(operation, "initial and state", range, ByteRange::of(tile.state)));
  return kernels::check_apart(operation, "initial and parameter", range, ByteRange::of(tile.parameter));
}

Result<void> check_isa(const char* operation, Isa isa) {
  if (is_runnable(isa)) return ok();
  return Error::unsupported(operation)
      .object("isa")
      .reason("this machine cannot run the instruction set")
      .wanted(std::string(to_string(best_isa().isa)) + " or one that it includes")
      .got(std::string(to_string(isa)));
}

}  // namespace penstock::cpu_adam::detail
