#include "zero/engine/shard_reads.hpp"

#include "zero/layout/order_of_use.hpp"

#include <algorithm>
#include <utility>

namespace penstock::zero {

void ShardReads::begin_step() {
  if (std::exchange(acquired_, 0) > 0) other_order_ = true;
}

void ShardReads::acquire(std::uint32_t unit) {
  if (unit != unit_at(acquired_++, units_)) other_order_ = true;
}

ByteCount ShardReads::gather(ByteCount size) {
  gathered_ += size;
  const bool evicts = plan_.gradients_on_disk || other_order_ || after_other_order_;
  return grow_to(gathered_ * (evicts ? 2 : 1));
}

ByteCount ShardReads::end_step(std::uint32_t micro_batches) {
  const ByteCount rest = grow_to(plan_.shard_reads_max * micro_batches);
  acquired_ = 0;
  gathered_ = predicted_ = {};
  after_other_order_ = std::exchange(other_order_, false);
  return rest;
}

ByteCount ShardReads::grow_to(ByteCount reads) {
  const ByteCount more = reads - std::min(reads, predicted_);
  predicted_ += more;
  return more;
}

}  // namespace penstock::zero
