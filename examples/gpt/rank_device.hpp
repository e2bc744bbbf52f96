#pragma once

#include "gpt/model_config.hpp"
#include "gpt/ops.hpp"

#include <penstock/zero/rank.hpp>

#include <functional>
#include <memory>

namespace gpt {

/// The accelerator of one rank and the model's arithmetic on it.
struct RankDevice {
  penstock::zero::Accelerator accelerator;
  std::unique_ptr<Ops> ops;  ///< the model's; its scratch is memory of that device
};

/// Makes the device of one rank, with `budget` bytes beside what the model's arithmetic itself needs.
using MakeDevice = std::function<penstock::Result<RankDevice>(penstock::ByteCount budget)>;

/// A share of the host's memory, playing the accelerator.
[[nodiscard]] MakeDevice on_host(const ModelConfig& model);

/// CUDA device 0, for every rank of the process: ranks in one process read each other's memory.
///
/// The function's errors: unsupported, where this build has no CUDA or the machine no device.
[[nodiscard]] MakeDevice on_cuda(const ModelConfig& model);

}  // namespace gpt
