#include "zero/config/schema_parts.hpp"

namespace penstock::zero::config {

namespace {

using enum Kind;
using enum Status;

// DeepSpeed refuses unknown keys of monitors even if they are disabled, so their keys are listed.
#define PENSTOCK_MONITOR(name)                                                                \
  {.path = name, .kind = block},                                                              \
      {.path = name ".enabled", .kind = flag, .status = only_default, .fallback = "false"},   \
      {.path = name ".output_path", .kind = text, .status = no_effect, .help = no_monitor}, { \
    .path = name ".job_name", .kind = text, .status = no_effect, .help = no_monitor           \
  }

constexpr std::string_view no_monitor = "acts with this monitor enabled only";

constexpr Key keys[] = {
    PENSTOCK_MONITOR("tensorboard"),
    PENSTOCK_MONITOR("csv_monitor"),
    {.path = "wandb", .kind = feature, .status = only_default},
    {.path = "comet", .kind = feature, .status = only_default},
    {.path = "monitor_config", .kind = feature, .status = only_default},

    {.path = "scheduler", .kind = feature, .status = only_default},
    {.path = "flops_profiler", .kind = feature, .status = only_default},
    {.path = "comms_logger", .kind = feature, .status = only_default},
    {.path = "timers", .kind = feature, .status = only_default},
    {.path = "hybrid_engine", .kind = feature, .status = only_default},
    {.path = "compile", .kind = feature, .status = only_default},
    {.path = "torch_autocast", .kind = feature, .status = only_default},
    {.path = "tensor_parallel", .kind = feature, .status = only_default},
    {.path = "pipeline", .kind = feature, .status = only_default},
    {.path = "autotuning", .kind = feature, .status = only_default},
    {.path = "nebula", .kind = feature, .status = only_default},
    {.path = "compression_training", .kind = feature, .status = only_default},
    {.path = "data_efficiency", .kind = feature, .status = only_default},
    {.path = "curriculum_learning", .kind = feature, .status = only_default},
    {.path = "progressive_layer_drop", .kind = feature, .status = only_default},
    {.path = "eigenvalue", .kind = feature, .status = only_default},
    {.path = "quantize_training", .kind = feature, .status = only_default},
    {.path = "weight_quantization", .kind = feature, .status = only_default},
    {.path = "sparse_attention", .kind = feature, .status = only_default},

    {.path = "elasticity",
     .status = removed,
     .help = "elastic training was removed from DeepSpeed 0.19 and is not supported"},
    {.path = "amp",
     .status = removed,
     .help = "Apex AMP was removed from DeepSpeed 0.19 and is not supported; set bf16 or fp16"},
    {.path = "sparse_gradients",
     .status = removed,
     .help = "sparse gradients were removed from DeepSpeed 0.19 and are not supported"},
};

#undef PENSTOCK_MONITOR

}  // namespace

std::span<const Key> feature_keys() {
  return keys;
}

}  // namespace penstock::zero::config
