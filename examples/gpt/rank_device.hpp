#pragma once

#include "gpt/device_memory.hpp"
#include "gpt/model_config.hpp"
#include "gpt/ops.hpp"

#include <penstock/zero/rank.hpp>

#include <cstdint>
#include <functional>
#include <memory>

namespace gpt {

/// The accelerator of one rank and the model's arithmetic on it.
struct RankDevice {
  penstock::zero::Accelerator accelerator;
  std::unique_ptr<Ops> ops;  ///< the model's arithmetic; its scratch is memory of the device
};

/// Creates the device of one rank, with `budget` bytes in addition to the scratch of the model's arithmetic.
using MakeDevice = std::function<penstock::Result<RankDevice>(penstock::ByteCount budget)>;

/// Creates a HostDevice, which uses host memory as the accelerator.
[[nodiscard]] MakeDevice on_host(const ModelConfig& model);

/// The CUDA device of process number `process` of this machine. Ranks that are threads use one device and read each
/// other's memory. A launcher may show each process only its own device, which is then number 0.
///
/// The returned function's errors: unsupported, if this build has no CUDA or the machine has no device.
[[nodiscard]] MakeDevice on_cuda(const ModelConfig& model, std::uint32_t process = 0);

/// Errors: unsupported, where the arithmetic has no parameters of the configured dtype.
[[nodiscard]] penstock::Result<void> check_dtype(const penstock::zero::Config& config, const Ops& ops);

/// Memory of a rank's device. Ranks and other processes on the same device count too.
struct DeviceMemoryUse {
  penstock::ByteCount
      free_at_start;  ///< before the engine's memory and the activations; after cuBLAS and scratch
  penstock::ByteCount free_now;
  penstock::ByteCount activations;  ///< see training_memory()
};

/// Memory of a penstock device, which outlives the buffers.
class OnDevice final : public DeviceAllocator {
 public:
  explicit OnDevice(penstock::tiers::Device& device) : device_(device) {}
  penstock::Result<DeviceBuffer> allocate(penstock::ByteCount size) override;

 private:
  penstock::tiers::Device& device_;
};

}  // namespace gpt
