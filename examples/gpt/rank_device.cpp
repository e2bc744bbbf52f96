#include "gpt/rank_device.hpp"

#include "gpt/host_ops.hpp"
#include "gpt/model_description.hpp"

#if GPT_HAS_CUDA
#include "gpt/cuda_ops.hpp"
#endif

namespace gpt {

using penstock::ByteCount;
using penstock::Error;
using penstock::Result;

namespace {

/// The fp32 scratch of the model's arithmetic, kept alive by the device.
Result<DeviceBuffer> allocate_scratch(const ModelConfig& model, penstock::tiers::Device& device) {
  auto size = bytes_of(ModelDescription(model).scratch_count(), penstock::DType::fp32);
  if (!size) return size.error();
  auto span = device.allocate(*size);
  if (!span) return span.error();
  return DeviceBuffer{*span, nullptr};
}

}  // namespace

MakeDevice on_host(const ModelConfig& model) {
  return [model](ByteCount budget) -> Result<RankDevice> {
    auto scratch_size = bytes_of(ModelDescription(model).scratch_count(), penstock::DType::fp32);
    if (!scratch_size) return scratch_size.error();
    RankDevice made{.accelerator = penstock::zero::make_host_accelerator(budget + *scratch_size)};
    auto scratch = allocate_scratch(model, *made.accelerator.device);
    if (!scratch) return scratch.error();
    made.ops = make_host_ops(*scratch);
    return made;
  };
}

MakeDevice on_cuda([[maybe_unused]] const ModelConfig& model) {
  return [=](ByteCount) -> Result<RankDevice> {
    auto accelerator = penstock::zero::make_cuda_accelerator(0);
    if (!accelerator) return accelerator.error();
    RankDevice made{.accelerator = std::move(*accelerator)};
#if GPT_HAS_CUDA
    auto scratch = allocate_scratch(model, *made.accelerator.device);
    if (!scratch) return scratch.error();
    auto ops = make_cuda_ops(*scratch);
    if (!ops) return ops.error();
    made.ops = std::move(*ops);
#endif
    return made;
  };
}

}  // namespace gpt
