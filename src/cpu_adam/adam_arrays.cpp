#include "cpu_adam/block_view.hpp"
#include "cpu_adam/check_tile.hpp"
#include "cpu_adam/step_coefficients.hpp"
#include "cpu_adam/update_blocks.hpp"
#include "cpu_adam/update_tile.hpp"
#include "kernels/operands.hpp"

#include <penstock/base/check.hpp>
#include <penstock/cpu_adam/adam.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

namespace penstock::cpu_adam {

namespace {

using kernels::ByteRange;

constexpr const char* operation = "adam_step_in_arrays";
constexpr std::size_t block_max = block_elements.value();

struct NamedArray {
  const char* name;
  ConstHostSpan bytes;
  DType dtype;
};

Result<void> check_arrays(const AdamArrays& arrays, ElementCount elements) {
  const std::array<NamedArray, 4> all{{{"parameter", arrays.parameter, arrays.parameter_dtype},
                                       {"gradient", arrays.gradient, arrays.gradient_dtype},
                                       {"first_moment", arrays.first_moment, arrays.moment_dtype},
                                       {"second_moment", arrays.second_moment, arrays.moment_dtype}}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [name, bytes, dtype] = all[i];
    PENSTOCK_TRY(kernels::check_operand(operation, name, ByteRange::of(bytes), dtype));
    PENSTOCK_TRY(
        kernels::check_same_count(operation, name, elements, ElementCount(bytes.size() / size_of(dtype))));
    for (std::size_t j = 0; j < i; ++j) {
      const std::string both = std::string(name) + " and " + all[j].name;
      PENSTOCK_TRY(
          kernels::check_apart(operation, both.c_str(), ByteRange::of(bytes), ByteRange::of(all[j].bytes)));
    }
  }
  return ok();
}

/// Of 16-bit values; those of fp32 are the update's, which has examined them.
bool are_finite(ConstHostSpan values, DType dtype) {
  if (dtype == DType::fp32) return true;
  const unsigned exponent = dtype == DType::bf16 ? 0x7f80 : 0x7c00;
  bool finite = true;
  for (std::size_t at = 0; at < values.size().value(); at += sizeof(std::uint16_t)) {
    std::uint16_t word = 0;
    std::memcpy(&word, values.data() + at, sizeof(word));
    finite &= (word & exponent) != exponent;
  }
  return finite;
}

/// One block as a tile in format moments, in L2.
class BlockTile {
 public:
  /// Loads block `index` of the arrays.
  BlockTile(const AdamArrays& arrays, std::size_t index, std::size_t elements)
      : arrays_(arrays), first_(index * block_max), count_(std::min(block_max, elements - first_)) {
    tile_ = {
        .state = HostSpan(std::span(state_)).subspan(ByteCount(0), ByteCount(2 * sizeof(float) * count_)),
        .gradient = part(arrays.gradient, arrays.gradient_dtype),
        .parameter = part(arrays.parameter, arrays.parameter_dtype),
        .elements = ElementCount(count_),
        .gradient_dtype = arrays.gradient_dtype,
        .parameter_dtype = DType::fp32,
        .format = StateFormat::moments};
    detail::convert(part(arrays.first_moment, arrays.moment_dtype), arrays.moment_dtype, moment(0),
                    DType::fp32);
    detail::convert(part(arrays.second_moment, arrays.moment_dtype), arrays.moment_dtype, moment(1),
                    DType::fp32);
    if (arrays.parameter_dtype == DType::fp32) return;
    const HostSpan stored = std::exchange(
        tile_.parameter,
        HostSpan(std::span(parameter_)).subspan(ByteCount(0), ByteCount(sizeof(float) * count_)));
    detail::convert(stored, arrays.parameter_dtype, tile_.parameter, DType::fp32);
  }
  [[nodiscard]] const OptimizerTile& tile() const { return tile_; }
  /// Returns whether each parameter and second moment is finite as it is stored: rounding may make it infinite.
  [[nodiscard]] bool store() const {
    detail::convert(moment(0), DType::fp32, part(arrays_.first_moment, arrays_.moment_dtype),
                    arrays_.moment_dtype);
    detail::convert(moment(1), DType::fp32, part(arrays_.second_moment, arrays_.moment_dtype),
                    arrays_.moment_dtype);
    const HostSpan second_moment = part(arrays_.second_moment, arrays_.moment_dtype);
    if (arrays_.parameter_dtype == DType::fp32) return are_finite(second_moment, arrays_.moment_dtype);
    const HostSpan parameter = part(arrays_.parameter, arrays_.parameter_dtype);
    detail::convert(tile_.parameter, DType::fp32, parameter, arrays_.parameter_dtype);
    return are_finite(second_moment, arrays_.moment_dtype) & are_finite(parameter, arrays_.parameter_dtype);
  }

 private:
  template <class Span>
  [[nodiscard]] Span part(Span array, DType dtype) const {
    return array.subspan(size_of(dtype) * first_, size_of(dtype) * count_);
  }
  [[nodiscard]] HostSpan moment(std::size_t number) const {
    return tile_.state.subspan(ByteCount(sizeof(float) * count_ * number), ByteCount(sizeof(float) * count_));
  }

  const AdamArrays& arrays_;
  std::size_t first_, count_;
  OptimizerTile tile_;
  alignas(64) std::array<float, 2 * block_max> state_;
  alignas(64) std::array<float, block_max> parameter_;
};

}  // namespace

Result<AdamOutcome> adam_step_in_arrays(const AdamConfig& config, std::uint64_t step, float gradient_factor,
                                        const AdamArrays& arrays, const AdamExecution& execution) {
  const ElementCount elements(arrays.parameter.size() / size_of(arrays.parameter_dtype));
  PENSTOCK_TRY(check_arrays(arrays, elements));
  PENSTOCK_TRY(detail::check_isa(operation, execution.isa));
  PENSTOCK_TRY_ASSIGN(const auto coefficients, step_coefficients(config, step, gradient_factor));
  const std::size_t blocks = ceil_divide(elements.value(), block_elements.value());
  detail::SharedOutcome outcome;
  detail::parallel_blocks(execution.workers, blocks, [&](std::size_t first, std::size_t last) noexcept {
    const kernels::DefaultFloatingPointMode mode;
    std::size_t first_non_finite = detail::SharedOutcome::none;
    for (std::size_t index = first; index < last; ++index) {
      const BlockTile block(arrays, index, elements.value());
      const detail::Piece whole{block.tile().elements.value(), coefficients};
      const auto updated =
          detail::update_tile(operation, std::span(&whole, 1), step, block.tile(), {.isa = execution.isa});
      PENSTOCK_CHECK(updated.has_value());
      const bool is_stored_finite = block.store();
      if (updated->first_non_finite_block || !is_stored_finite)
        first_non_finite = std::min(first_non_finite, index);
    }
    outcome.add(last - first, detail::SharedOutcome::none, first_non_finite);
  });
  return outcome.get();
}

}  // namespace penstock::cpu_adam
