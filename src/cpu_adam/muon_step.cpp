#include "cpu_adam/muon_step.hpp"

#include "cpu_adam/check_hyperparameters.hpp"
#include "cpu_adam/fp32_blocks.hpp"
#include "cpu_adam/orthogonalize.hpp"

#include <penstock/base/compute.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace penstock::cpu_adam {

namespace {

constexpr const char* operation = "muon_step";

Result<void> check_matrix(MatrixShape shape, const OptimizerTile& tile, HostSpan scratch) {
  if (tile.optimizer != Optimizer::muon) {
    return Error::invalid_argument(operation)
        .object("optimizer")
        .wanted("muon")
        .got(std::string(to_string(tile.optimizer)));
  }
  constexpr std::uint64_t side_max = (std::uint64_t{1} << 31) - 1;
  if (std::max(shape.rows, shape.columns) > side_max) {
    return Error::invalid_argument(operation)
        .object("shape")
        .wanted("sides below 2^31")
        .got(std::to_string(shape.rows) + " x " + std::to_string(shape.columns));
  }
  if (shape.elements() > tile.elements) {
    return Error::invalid_argument(operation)
        .object("elements")
        .reason("the tile does not hold the whole matrix")
        .wanted("at least " + to_string(shape.elements()))
        .got(tile.elements);
  }
  const ByteCount needed = muon_scratch_bytes(shape);
  if (scratch.size() >= needed && is_aligned(scratch.data(), Alignment(64))) return ok();
  return Error::invalid_argument(operation)
      .object("scratch")
      .wanted("at least " + to_exact_string(needed) + ", aligned to 64 bytes")
      .got(scratch.size());
}

/// Passes one of the two calls on.
class ObserverOfPass final : public BlockObserver {
 public:
  enum class Pass : std::uint8_t { first, last };
  ObserverOfPass(BlockObserver& observer, Pass pass) : observer_(observer), pass_(pass) {}
  bool before_update(std::size_t block, ConstHostSpan bytes) noexcept override {
    return pass_ == Pass::last || observer_.before_update(block, bytes);
  }
  void after_update(std::size_t block, ConstHostSpan bytes) noexcept override {
    if (pass_ == Pass::last) observer_.after_update(block, bytes);
  }

 private:
  BlockObserver& observer_;
  const Pass pass_;
};

class MuonStep {
 public:
  MuonStep(const MuonConfig& config, MatrixShape shape, float gradient_factor, const OptimizerTile& tile,
           const UpdateExecution& execution)
      : config_(config),
        shape_(shape),
        gradient_factor_(gradient_factor),
        tile_(tile),
        execution_(execution) {}

  Result<UpdateOutcome> run(const MatrixProduct& product, const MuonScratch& scratch) const {
    std::vector<double> squares(ceil_divide(tile_.elements.value(), block_elements.value()));
    PENSTOCK_TRY_ASSIGN(const UpdateOutcome moved,
                        pass(ObserverOfPass::Pass::first, [&](const Fp32Block& block) {
                          squares[block.first / block_elements] = move_momentum(block, scratch.matrix);
                          return ok();
                        }));
    if (moved.first_rejected_block) return moved;
    const double norm = std::sqrt(sum_tree(squares));
    const auto direction = orthogonalize(product, shape_, norm, scratch, execution_.workers);
    return pass(ObserverOfPass::Pass::last, [&](const Fp32Block& block) {
      move_masters(block, direction);
      return ok();
    });
  }

 private:
  Result<UpdateOutcome> pass(ObserverOfPass::Pass which, const BlockFunction& update) const {
    UpdateExecution execution = execution_;
    if (execution_.observer == nullptr) return update_fp32_blocks(update, gradient_factor_, tile_, execution);
    ObserverOfPass observer(*execution_.observer, which);
    execution.observer = &observer;
    return update_fp32_blocks(update, gradient_factor_, tile_, execution);
  }

  /// The elements of the block that are the matrix's; those after it are padding.
  [[nodiscard]] std::size_t count(const Fp32Block& block) const {
    const ElementCount rest = shape_.elements() - std::min(shape_.elements(), block.first);
    return std::min<std::size_t>(block.master.size(), rest.value());
  }

  /// Writes Nesterov's momentum to `matrix`; returns the sum of its squares.
  double move_momentum(const Fp32Block& block, std::span<float> matrix) const {
    const float rest = 1 - config_.momentum;
    double squares = 0;
    for (std::size_t i = 0; i < count(block); ++i) {
      float& momentum = block.first_moment[i];
      const float gradient = block.gradient[i];
      momentum += rest * (gradient - momentum);
      const float ahead = momentum + rest * (gradient - momentum);
      matrix[block.first.value() + i] = ahead;
      squares += double{ahead} * ahead;
    }
    return squares;
  }

  void move_masters(const Fp32Block& block, std::span<const float> direction) const {
    const double ratio = double(shape_.rows) / double(std::max<std::uint64_t>(1, shape_.columns));
    const auto scale = static_cast<float>(double{config_.learning_rate} * std::sqrt(std::max(1.0, ratio)));
    const float keep = 1 - config_.learning_rate * config_.weight_decay;
    for (std::size_t i = 0; i < count(block); ++i) {
      block.master[i] = keep * block.master[i] - scale * direction[block.first.value() + i];
    }
  }

  const MuonConfig& config_;
  const MatrixShape shape_;
  const float gradient_factor_;
  const OptimizerTile& tile_;
  const UpdateExecution& execution_;
};

}  // namespace

Result<UpdateOutcome> muon_step(const MuonConfig& config, MatrixShape shape, float gradient_factor,
                                const OptimizerTile& tile, HostSpan scratch, const MatrixProduct& product,
                                const UpdateExecution& execution) {
  PENSTOCK_TRY(check_matrix(shape, tile, scratch));
  PENSTOCK_TRY(check_fp32_tile(operation, tile));
  PENSTOCK_TRY(detail::check_not_negative(operation, "learning_rate", config.learning_rate));
  PENSTOCK_TRY(detail::check_beta(operation, "momentum", config.momentum));
  PENSTOCK_TRY(detail::check_not_negative(operation, "weight_decay", config.weight_decay));
  PENSTOCK_TRY(detail::check_not_negative(operation, "gradient_factor", gradient_factor));
  return MuonStep(config, shape, gradient_factor, tile, execution)
      .run(product, MuonScratch::of(shape, scratch));
}

}  // namespace penstock::cpu_adam
