#include "gpt/residual_leases.hpp"

namespace gpt {

using penstock::ByteCount;
using penstock::DType;
using penstock::Result;
using penstock::zero::CheckpointUse;
using Kind = BlockPiece::Kind;

penstock::zero::CheckpointLayout ResidualLeases::layout(const ModelConfig& model,
                                                        const TrainingConfig& training) {
  if (!training.offload_activations) return {};
  const std::uint64_t rows = std::uint64_t{training.sequences} * model.context;
  const std::uint32_t micro_batches = training.micro_batches_at_a_time();
  // A block that is several units holds its leases from one visit to the next.
  const bool holds_all = micro_batches > 1 && ModelDescription(model).blocks_are_cut();
  return {.count = (model.layers + 1) * micro_batches,
          .size = ByteCount(rows * model.width * sizeof(float)),
          .leased_max = 2 * (holds_all ? micro_batches : 1),
          .reads = 2};
}

bool ResidualLeases::begins_block(std::uint32_t unit) const {
  return model_.units()[unit].pieces.front().kind == Kind::norm1;
}
bool ResidualLeases::ends_block(std::uint32_t unit) const {
  const BlockPiece& last = model_.units()[unit].pieces.back();
  return last.kind == Kind::down && last.ends_layer();
}

std::size_t ResidualLeases::layer_of(std::uint32_t unit) const {
  return is_head(unit) ? activations_.residual.size() - 1 : model_.units()[unit].layer;
}

Result<void> ResidualLeases::take(Lease& lease, std::size_t layer, CheckpointUse use) {
  const auto number = static_cast<std::uint32_t>(layer) * micro_batches_ + micro_batch_;
  PENSTOCK_TRY_ASSIGN(lease, engine_.checkpoint(number, use, stream_));
  activations_.residual[layer] = {lease.bytes(), DType::fp32};
  return penstock::ok();
}

Result<void> ResidualLeases::begin_forward(std::uint32_t unit) {
  if (is_embed(unit)) return take(out_, 0, CheckpointUse::write);
  if (is_head(unit)) return take(in_, layer_of(unit), CheckpointUse::read);
  if (!begins_block(unit)) return penstock::ok();
  PENSTOCK_TRY(take(in_, layer_of(unit), CheckpointUse::read));
  return take(out_, layer_of(unit) + 1, CheckpointUse::write);
}

void ResidualLeases::end_forward(std::uint32_t unit) {
  if (!is_embed(unit) && !is_head(unit) && !ends_block(unit)) return;
  in_.end();
  out_.end();
}

Result<void> ResidualLeases::begin_backward(std::uint32_t unit) {
  if (is_embed(unit) || !in_.bytes().empty()) return penstock::ok();
  return take(in_, layer_of(unit), CheckpointUse::last_read);
}

void ResidualLeases::end_backward(const BackwardVisit& visit) {
  const bool last = is_head(visit.unit) || (!is_embed(visit.unit) && begins_block(visit.unit));
  if (last && visit.backward) in_.end();
}

}  // namespace gpt
