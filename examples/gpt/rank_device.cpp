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
  PENSTOCK_TRY_ASSIGN(auto size, bytes_of(ModelDescription(model).scratch_count(), penstock::DType::fp32));
  PENSTOCK_TRY_ASSIGN(auto span, device.allocate(size));
  return DeviceBuffer{span, nullptr};
}

}  // namespace

MakeDevice on_host(const ModelConfig& model) {
  return [model](ByteCount budget) -> Result<RankDevice> {
    PENSTOCK_TRY_ASSIGN(auto scratch_size,
                        bytes_of(ModelDescription(model).scratch_count(), penstock::DType::fp32));
    RankDevice made{.accelerator = penstock::zero::make_host_accelerator(budget + scratch_size)};
    PENSTOCK_TRY_ASSIGN(auto scratch, allocate_scratch(model, *made.accelerator.device));
    made.ops = make_host_ops(scratch);
    return made;
  };
}

MakeDevice on_cuda([[maybe_unused]] const ModelConfig& model) {
  return [=](ByteCount) -> Result<RankDevice> {
    PENSTOCK_TRY_ASSIGN(auto accelerator, penstock::zero::make_cuda_accelerator(0));
    RankDevice made{.accelerator = std::move(accelerator)};
#if GPT_HAS_CUDA
    PENSTOCK_TRY_ASSIGN(auto scratch, allocate_scratch(model, *made.accelerator.device));
    PENSTOCK_TRY_ASSIGN(made.ops, make_cuda_ops(scratch));
#endif
    return made;
  };
}

}  // namespace gpt
