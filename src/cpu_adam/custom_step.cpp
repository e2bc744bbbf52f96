#include "cpu_adam/custom_step.hpp"

#include <string>

namespace penstock::cpu_adam {

Result<UpdateOutcome> custom_step(const BlockFunction& update, float gradient_factor,
                                  const OptimizerTile& tile, const UpdateExecution& execution) {
  constexpr const char* operation = "custom_step";
  if (!is_custom(tile.optimizer)) {
    return Error::invalid_argument(operation)
        .object("optimizer")
        .wanted("a custom one")
        .got(std::string(to_string(tile.optimizer)));
  }
  PENSTOCK_TRY(check_fp32_tile(operation, tile));
  return update_fp32_blocks(update, gradient_factor, tile, execution);
}

}  // namespace penstock::cpu_adam
