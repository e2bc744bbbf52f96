#pragma once

#include <penstock/zero/layout/memory_plan.hpp>

#include <cstdint>

namespace penstock::zero {

/// Predicts what gathers read from disk, as upper bounds: a trainer that uses a unit twice or evaluates gathers more
/// than the plan counts for a step.
///
/// A gather reads its shard once. Where the order of use is not the rehearsed one, and in the step after that, a shard
/// may be evicted between its prefetch and its use, and is then read again.
///
/// Owned by one thread.
class ShardReads {
 public:
  /// The plan outlives it.
  ShardReads(const MemoryPlan& plan, std::size_t units) : plan_(plan), units_(units) {}

  /// What was acquired since the last step was an evaluation.
  void begin_step();
  void acquire(std::uint32_t unit);
  /// The flat of a shard of `size` bytes, which is on disk, is gathered. Returns what is added to the prediction.
  [[nodiscard]] ByteCount gather(ByteCount size);
  /// A step ends, or is abandoned in its last micro-batch of `micro_batches`. Returns what is added to the prediction:
  /// what the plan predicts beyond the gathers.
  [[nodiscard]] ByteCount end_step(std::uint32_t micro_batches);

 private:
  [[nodiscard]] ByteCount grow_to(ByteCount reads);

  const MemoryPlan& plan_;
  const std::size_t units_;
  std::uint64_t acquired_ = 0;  // units, since the last step
  ByteCount gathered_;          // shards, since then
  ByteCount predicted_;         // reads, since then
  bool other_order_ = false;    // since then
  bool after_other_order_ = false;
};

}  // namespace penstock::zero
