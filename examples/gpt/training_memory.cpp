#include "gpt/training_memory.hpp"

#include <algorithm>

namespace gpt {

using penstock::ByteCount;
using penstock::DeviceTensor;
using penstock::DType;
using penstock::Result;

namespace {

constexpr penstock::Alignment alignment{256};

/// Calls visit(first byte, bytes) for each of the unit's tensors; frozen ones have none. Returns the size of all.
template <class Visit>
ByteCount for_each_tensor(const ModelDescription& model, std::size_t unit, const Visit& visit) {
  ByteCount end;
  const auto add = [&](const ParameterDescription& parameter) {
    const ByteCount bytes = size_of(DType::fp32) * (parameter.frozen ? 0 : parameter.count.value());
    visit(end, bytes);
    end += round_up(bytes, alignment);
  };
  for (const ParameterDescription& parameter : model.units()[unit].parameters) add(parameter);
  for (const ParameterId id : model.units()[unit].uses) add(model.parameter(id));
  return end;
}

}  // namespace

ByteCount GradientSums::size(const ModelDescription& model) {
  ByteCount most;
  for (std::size_t unit = 0; unit < model.units().size(); ++unit)
    most = std::max(most, for_each_tensor(model, unit, [](ByteCount, ByteCount) {}));
  return most;
}

Result<GradientSums> GradientSums::allocate(const ModelDescription& model, DeviceAllocator& allocator) {
  PENSTOCK_TRY_ASSIGN(auto buffer, allocator.allocate(size(model)));
  return GradientSums(std::move(buffer));
}

std::vector<Gradient> GradientSums::of_unit(const ModelDescription& model, std::size_t unit) const {
  std::vector<Gradient> sums;
  for_each_tensor(model, unit, [&](ByteCount first, ByteCount bytes) {
    sums.push_back({.tensor = {buffer_.bytes.subspan(first, bytes), DType::fp32}});
  });
  return sums;
}

ByteCount training_memory(const ModelConfig& model, const TrainingConfig& training, DType operands) {
  const ByteCount activations = Activations::size(model, activation_options(training, operands));
  if (training.micro_batches_at_a_time() == 1) return activations;
  return activations + GradientSums::size(ModelDescription(model));
}

}  // namespace gpt
