#pragma once

#include "gpt/activations.hpp"
#include "gpt/model_description.hpp"
#include "gpt/ops.hpp"

#include <vector>

namespace gpt {

/// The sums, in fp32, of one unit's gradients over micro-batches. Owned by one rank; each unit uses the same memory.
class GradientSums {
 public:
  /// Errors: those of the allocator.
  [[nodiscard]] static penstock::Result<GradientSums> allocate(const ModelDescription& model,
                                                               DeviceAllocator& allocator);
  [[nodiscard]] static penstock::ByteCount size(const ModelDescription& model);

  /// Where the first micro-batch's gradients of a unit's tensors go; empty for frozen ones.
  [[nodiscard]] std::vector<Gradient> of_unit(const ModelDescription& model, std::size_t unit) const;

 private:
  explicit GradientSums(DeviceBuffer buffer) : buffer_(std::move(buffer)) {}
  DeviceBuffer buffer_;
};

/// What a rank's training needs on the device beside the engine's memory: activations, and sums of gradients if several
/// micro-batches are in progress at a time.
[[nodiscard]] penstock::ByteCount training_memory(const ModelConfig& model, const TrainingConfig& training,
                                                  penstock::DType operands = penstock::DType::fp32);

}  // namespace gpt
