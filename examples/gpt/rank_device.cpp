#include "gpt/rank_device.hpp"

#include "gpt/host_ops.hpp"
#include "gpt/model_description.hpp"

#include <penstock/kernels/host_compute.hpp>
#include <penstock/tiers/device/host_device.hpp>

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
  PENSTOCK_TRY_ASSIGN(auto size, bytes_of(ModelDescription(model).scratch_count(), penstock::DType::fp32));
  PENSTOCK_TRY_ASSIGN(auto span, device.allocate(size));
  return DeviceBuffer{span, nullptr};
}

}  // namespace

MakeDevice on_host(const ModelConfig& model) {
  return [model](ByteCount budget) -> Result<RankDevice> {
    PENSTOCK_TRY_ASSIGN(auto scratch_size,
                        bytes_of(ModelDescription(model).scratch_count(), penstock::DType::fp32));
    RankDevice made;
    made.device = std::make_unique<penstock::tiers::HostDevice>(
        penstock::tiers::HostDevice::Options{.memory = budget + scratch_size});
    PENSTOCK_TRY_ASSIGN(auto scratch, allocate_scratch(model, *made.device));
    made.compute = penstock::kernels::make_host_compute();
    made.ops = make_host_ops(scratch);
    return made;
  };
}

#if GPT_HAS_CUDA

MakeDevice on_cuda(const ModelConfig& model) {
  return [model](ByteCount) -> Result<RankDevice> {
    PENSTOCK_TRY_ASSIGN(auto device, penstock::tiers::create_cuda_device(0));
    RankDevice made{.device = std::move(device)};
    PENSTOCK_TRY_ASSIGN(auto scratch, allocate_scratch(model, *made.device));
    PENSTOCK_TRY_ASSIGN(auto ops, make_cuda_ops(scratch));
    made.ops = std::move(ops);
    made.compute = penstock::kernels::make_cuda_compute(0);
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
