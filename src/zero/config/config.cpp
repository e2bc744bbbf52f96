#include <penstock/zero/config/config.hpp>

#include "zero/config/check.hpp"
#include "zero/config/config_error.hpp"
#include "zero/config/scheduled.hpp"

namespace penstock::zero {

std::string_view to_string(OffloadDevice device) {
  switch (device) {
    case OffloadDevice::none: return "none";
    case OffloadDevice::cpu: return "cpu";
    case OffloadDevice::nvme: return "nvme";
  }
  return "unknown";
}

std::string_view to_string(AllreduceOp op) {
  switch (op) {
    case AllreduceOp::mean: return "mean";
    case AllreduceOp::sum: return "sum";
  }
  return "unknown";
}

std::string_view to_string(Integrity integrity) {
  switch (integrity) {
    case Integrity::off: return "off";
    case Integrity::checksum: return "checksum";
  }
  return "unknown";
}

std::string_view to_string(Release release) {
  switch (release) {
    case Release::planned: return "planned";
    case Release::reuse_distance: return "reuse_distance";
  }
  return "unknown";
}

std::string_view to_string(UpdateSplit split) {
  switch (split) {
    case UpdateSplit::ratio: return "ratio";
    case UpdateSplit::automatic: return "automatic";
  }
  return "unknown";
}

std::string_view to_string(NonFiniteGradients policy) {
  switch (policy) {
    case NonFiniteGradients::skip: return "skip";
    case NonFiniteGradients::as_deepspeed: return "as_deepspeed";
  }
  return "unknown";
}

std::string_view to_string(WarmupType type) {
  switch (type) {
    case WarmupType::log: return "log";
    case WarmupType::linear: return "linear";
  }
  return "unknown";
}

LearningRate Config::learning_rate_of(std::uint64_t step) const {
  return config::scheduled(scheduler, {optimizer.learning_rate, optimizer.betas}, step);
}

LossScaler Config::loss_scaler() const {
  return loss_scale > 0 ? LossScaler(loss_scale) : LossScaler(dynamic_loss_scale);
}

Result<void> Config::validate() const {
  std::vector<config::Problem> problems;
  for (const config::Violation& violation : config::check(*this)) {
    problems.push_back({.path = std::string(violation.keys.front()), .text = violation.text});
  }
  if (problems.empty()) return ok();
  return config::to_error("Config::validate", {}, std::move(problems));
}

const std::vector<std::filesystem::path>& Config::swap_directories() const {
  static const std::vector<std::filesystem::path> none;
  const bool uses_disk =
      offload_param.device == OffloadDevice::nvme || offload_optimizer.device == OffloadDevice::nvme;
  if (is_durable()) return uses_disk ? penstock.durable_directories : none;
  if (offload_param.device == OffloadDevice::nvme) return offload_param.nvme_paths;
  return offload_optimizer.device == OffloadDevice::nvme ? offload_optimizer.nvme_paths : none;
}

bool Config::skips_non_finite_gradients() const {
  if (penstock.non_finite_gradients == NonFiniteGradients::skip) return true;
  if (dtype == DType::fp16) return true;
  return dtype == DType::bf16 && check_grad_overflow && (stage == 1 || stage == 2);
}

bool Config::pins_host_memory() const {
  const bool none_in_use =
      offload_param.device == OffloadDevice::none && offload_optimizer.device == OffloadDevice::none;
  const auto asks = [&](const OffloadConfig& offload) {
    return offload.pin_memory && (none_in_use || offload.device != OffloadDevice::none);
  };
  return asks(offload_param) || asks(offload_optimizer);
}

}  // namespace penstock::zero
