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

/// Of the fp32 scratch of the model's arithmetic on the host.
Result<ByteCount> scratch_size(const ModelConfig& model) {
  return bytes_of(ModelDescription(model).scratch_count(), penstock::DType::fp32);
}

}  // namespace

MakeDevice on_host(const ModelConfig& model) {
  return [model](ByteCount budget) -> Result<RankDevice> {
    PENSTOCK_TRY_ASSIGN(const ByteCount size, scratch_size(model));
    RankDevice made{.accelerator = penstock::zero::make_host_accelerator(budget + size)};
    PENSTOCK_TRY_ASSIGN(const auto scratch, made.accelerator.device->allocate(size));
    PENSTOCK_TRY_ASSIGN(made.ops, make_host_ops({scratch, nullptr}));  // the device keeps it alive
    return made;
  };
}

MakeDevice on_cuda([[maybe_unused]] const ModelConfig& model, [[maybe_unused]] std::uint32_t process) {
  return [=](ByteCount) -> Result<RankDevice> {
    int device = 0;
#if GPT_HAS_CUDA
    if (const int devices = cuda_device_count(); devices > 0)
      device = static_cast<int>(process % static_cast<std::uint32_t>(devices));
#endif
    PENSTOCK_TRY_ASSIGN(auto accelerator, penstock::zero::make_cuda_accelerator(device));
    RankDevice made{.accelerator = std::move(accelerator)};
#if GPT_HAS_CUDA
    PENSTOCK_TRY_ASSIGN(made.ops, make_cuda_ops(cuda_scratch_size(model)));
#endif
    return made;
  };
}

Result<void> check_dtype(const penstock::zero::Config& config, const Ops& ops) {
  if (ops.supports(config.dtype)) return penstock::ok();
  return Error(penstock::ErrorCode::unsupported, "gpt_train")
      .reason("the example's CUDA kernels have no parameters of this dtype")
      .where("fp16.enabled")
      .wanted("bf16 or fp32")
      .got(std::string(to_string(config.dtype)))
      .advice("set bf16.enabled instead, or train on the host: its arithmetic has fp16");
}

Result<DeviceBuffer> OnDevice::allocate(ByteCount size) {
  PENSTOCK_TRY_ASSIGN(const penstock::DeviceSpan span, device_.allocate(size));
  penstock::tiers::Device* device = &device_;
  return DeviceBuffer{span, std::shared_ptr<void>(nullptr, [device, span](void*) { device->release(span); })};
}

}  // namespace gpt
