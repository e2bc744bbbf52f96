#include "cpu_adam/fp32_blocks.hpp"

#include "cpu_adam/check_tile.hpp"
#include "cpu_adam/update_blocks.hpp"
#include "kernels/adam_formula.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace penstock::cpu_adam {

using detail::BlockResult;
using detail::BlockView;

namespace {

/// The block's states, which are all in fp32, and side by side.
Fp32Block states_of_block(const BlockView& view) {
  Fp32Block block{.first = ElementCount(view.first)};
  std::span<float> rest = view.state.as<float>();
  const auto take = [&] { return std::exchange(rest, rest.subspan(view.count)).first(view.count); };
  block.master = view.format == StateFormat::fp32 ? take() : view.parameter.as<float>();
  if (keeps(view.optimizer, StateKind::first_moment)) block.first_moment = take();
  if (keeps(view.optimizer, StateKind::second_moment)) block.second_moment = take();
  return block;
}

bool all_finite(std::span<const float> values) {
  kernels::Largest<kernels::ScalarLane> largest;
  for (const float value : values) largest.add(value);
  return largest.most < kernels::not_finite;
}

/// The error of the first block that failed.
class FirstError {
 public:
  void add(ElementCount block, Error error) {
    const std::scoped_lock lock(mutex_);
    if (error_ && block_ <= block) return;
    block_ = block;
    error_ = std::move(error);
  }
  [[nodiscard]] const std::optional<Error>& get() const { return error_; }

 private:
  std::mutex mutex_;
  ElementCount block_;
  std::optional<Error> error_;
};

}  // namespace

Result<void> check_fp32_tile(const char* operation, const OptimizerTile& tile) {
  PENSTOCK_TRY(detail::check_tile(operation, tile));
  PENSTOCK_TRY(detail::check_gradient(operation, tile));
  if (tile.format == StateFormat::fp32 || tile.parameter_dtype == DType::fp32) return ok();
  return Error::unsupported(operation)
      .object("parameter_dtype")
      .reason("the optimizer updates masters in fp32, and these are the parameters")
      .wanted("fp32")
      .got(std::string(to_string(tile.parameter_dtype)));
}

Result<UpdateOutcome> update_fp32_blocks(const BlockFunction& update, float gradient_factor,
                                         const OptimizerTile& tile, const UpdateExecution& execution) {
  FirstError error;
  const UpdateOutcome outcome = detail::update_blocks(tile, execution, [&](const BlockView& view) noexcept {
    std::array<float, block_elements.value()> scaled;
    const auto gradient = std::span(scaled).first(view.count);
    detail::convert(view.gradient, tile.gradient_dtype, HostSpan(gradient), DType::fp32);
    for (float& value : gradient) value *= gradient_factor;
    Fp32Block block = states_of_block(view);
    block.gradient = gradient;
    if (auto updated = update(block); !updated) {
      error.add(block.first, std::move(updated).error());
      return BlockResult::failed;
    }
    if (view.format == StateFormat::fp32) {
      detail::convert(ConstHostSpan(block.master), DType::fp32, view.parameter, view.parameter_dtype);
    }
    const bool finite =
        all_finite(block.master) && all_finite(block.first_moment) && all_finite(block.second_moment);
    return finite ? BlockResult::finite : BlockResult::non_finite;
  });
  if (error.get()) return *error.get();
  return outcome;
}

}  // namespace penstock::cpu_adam
