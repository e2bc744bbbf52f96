#include "zero/layout/unit_needs.hpp"

#include "zero/layout/padded.hpp"

#include <algorithm>

namespace penstock::zero {

UnitNeeds unit_needs(const ShardLayout& shards, DType dtype, ByteCount lease_gap) {
  UnitNeeds needs;
  ByteCount before;
  for (std::uint32_t unit = 0; unit < shards.unit_count(); ++unit) {
    ByteCount gathered, gradients;
    for (const std::uint32_t flat : shards.needed_by(unit))
      gathered += padded(shards.flats()[flat].length, dtype) + lease_gap;
    for (const std::uint32_t flat : shards.trained_by(unit))
      gradients += padded(shards.flats()[flat].length, dtype);
    needs.gradients = std::max(needs.gradients, gradients);
    needs.gathered = std::max(needs.gathered, before + gathered);
    before = gathered;
  }
  for (std::uint32_t f = 0; f < shards.flats().size(); ++f) {
    const ByteCount size = padded(shards.flats()[f].length, dtype);
    needs.all_flats += size;
    if (shards.flats()[f].frozen) continue;
    needs.all_gradients += size;
    if (shards.user_count(f) > 1) needs.shared_gradients += size;
  }
  return needs;
}

std::vector<bool> persistent_flats(const ShardLayout& shards, const ResidencyLimits& limits) {
  std::vector<bool> persistent;
  ElementCount sum;
  for (const FlatLayout& flat : shards.flats()) {
    ElementCount of_flat;
    bool small = true;
    for (const FlatSlot& slot : flat.slots) {
      small = small && slot.count <= limits.param_persistence;
      of_flat += slot.count;
    }
    const bool persists =
        small && sum <= limits.model_persistence && of_flat <= limits.model_persistence - sum;
    if (persists) sum += of_flat;
    persistent.push_back(persists);
  }
  return persistent;
}

ByteCount persistent_bytes(const ShardLayout& shards, DType dtype, const ResidencyLimits& limits) {
  const std::vector<bool> persistent = persistent_flats(shards, limits);
  ByteCount bytes;
  for (std::size_t f = 0; f < persistent.size(); ++f) {
    if (persistent[f]) bytes += padded(shards.flats()[f].length, dtype);
  }
  return bytes;
}

GradientShare gradient_share(const ShardLayout& shards, DType dtype, const ResidencyLimits& limits,
                             ByteCount budget, bool with_gathered) {
  const UnitNeeds needs = unit_needs(shards, dtype, {});
  const ByteCount gathered = limits.whole ? needs.all_flats : needs.gathered;
  ByteCount beside = needs.shared_gradients + (with_gathered ? gathered : ByteCount());
  if (with_gathered) {
    const ByteCount persistent = persistent_bytes(shards, dtype, limits);
    const bool fits = beside + persistent + needs.gradients * gradient_rounds(limits) <= budget;
    if (fits) beside += persistent;
  }
  const ByteCount room = budget - std::min(budget, beside), bucket_max = room / gradient_rounds(limits);
  const ByteCount bucket =
      std::min(bucket_max, padded(std::min(limits.reduce_bucket, ReductionQueue::elements_enough), dtype));
  const ByteCount held =
      std::min(room, std::max(bucket, needs.gradients) * gradient_rounds(limits)) + needs.shared_gradients;
  return {.held = std::min(held, needs.all_gradients),
          .bucket_max = {.elements = limits.reduce_bucket, .bytes = bucket_max}};
}

}  // namespace penstock::zero
