#include "gpt/rank_device.hpp"

#include "gpt/host_ops.hpp"
#include "gpt/model_description.hpp"

#if GPT_HAS_CUDA
#include "gpt/cuda_ops.hpp"

#include <penstock/kernels/cuda_compute.hpp>
#include <penstock/tiers/device/cuda_device.hpp>
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

#if GPT_HAS_CUDA

MakeDevice on_cuda(const ModelConfig& model) {
  return [model](ByteCount) -> Result<RankDevice> {
    auto device = penstock::tiers::create_cuda_device(0);
    if (!device) return device.error();
    RankDevice made{
        .accelerator = {.device = std::move(*device), .compute = penstock::kernels::make_cuda_compute(0)}};
    auto scratch = allocate_scratch(model, *made.accelerator.device);
    if (!scratch) return scratch.error();
    auto ops = make_cuda_ops(*scratch);
    if (!ops) return ops.error();
    made.ops = std::move(*ops);
    return made;
  };
}

#else

MakeDevice on_cuda(const ModelConfig&) {
  return [](ByteCount) -> Result<RankDevice> {
    return Error::unsupported("on_cuda")
        .reason("this build has no CUDA")
        .advice("build with PENSTOCK_CUDA=ON");
  };
}

#endif

}  // namespace gpt
