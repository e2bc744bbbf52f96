#include "zero/config/schema_parts.hpp"

namespace penstock::zero::config {

namespace {

using enum Kind;
using enum Status;

constexpr double uint32_max = 4294967295.0;
constexpr double float_max = std::numeric_limits<float>::max();
constexpr std::string_view no_report = "concerns DeepSpeed's own reports only";
constexpr std::string_view dynamic_only = "acts with a dynamic loss scale only";
constexpr std::string_view no_client_optimizer = "there is no other optimizer here";

DType dtype_of(const std::string& name) {
  return name == "fp32" ? DType::fp32 : name == "fp16" ? DType::fp16 : DType::bf16;
}

constexpr Key keys[] = {
    {.path = "train_batch_size",
     .kind = count,
     .least = 1,
     .most = uint32_max,
     .nullable = true,
     .has_default = false,
     .set = [](Draft& d, const Value& v) { d.train_batch_size = v.count; }},
    {.path = "train_micro_batch_size_per_gpu",
     .kind = count,
     .least = 1,
     .most = uint32_max,
     .nullable = true,
     .has_default = false,
     .set = [](Draft& d, const Value& v) { d.micro_batch_size = v.count; }},
    {.path = "gradient_accumulation_steps",
     .kind = count,
     .least = 1,
     .most = uint32_max,
     .nullable = true,
     .has_default = false,
     .set = [](Draft& d, const Value& v) { d.gradient_accumulation_steps = v.count; }},
    {.path = "gradient_clipping",
     .kind = real,
     .most = float_max,
     .set = [](Draft& d, const Value& v) { d.config.gradient_clipping = static_cast<float>(v.real); }},

    {.path = "bf16", .kind = block},
    {.path = "bf16.enabled", .kind = flag, .set = [](Draft& d, const Value& v) { d.bf16 = v.flag; }},
    {.path = "bf16.immediate_grad_update", .kind = flag, .status = only_default, .fallback = "false"},
    {.path = "bf16.check_grad_overflow", .kind = flag, .status = only_default, .fallback = "true"},
    {.path = "bf16.bf16_master_weights_and_grads", .kind = flag, .status = only_default, .fallback = "false"},
    {.path = "bf16.bf16_optimizer_states", .kind = flag, .status = only_default, .fallback = "false"},

    {.path = "fp16", .kind = block},
    {.path = "fp16.enabled", .kind = flag, .set = [](Draft& d, const Value& v) { d.fp16 = v.flag; }},
    {.path = "fp16.loss_scale",
     .kind = real,
     .most = float_max,
     .set = [](Draft& d, const Value& v) { d.static_loss_scale = v.real; }},
    {.path = "fp16.initial_scale_power", .kind = count, .status = no_effect, .why = dynamic_only},
    {.path = "fp16.loss_scale_window", .kind = count, .status = no_effect, .why = dynamic_only, .least = 1},
    {.path = "fp16.hysteresis", .kind = count, .status = no_effect, .why = dynamic_only},
    {.path = "fp16.consecutive_hysteresis", .kind = flag, .status = no_effect, .why = dynamic_only},
    {.path = "fp16.min_loss_scale", .kind = real, .status = no_effect, .why = dynamic_only},
    {.path = "fp16.auto_cast", .kind = flag, .status = only_default, .fallback = "false"},
    {.path = "fp16.fp16_master_weights_and_grads", .kind = flag, .status = only_default, .fallback = "false"},

    {.path = "data_types", .kind = block},
    {.path = "data_types.grad_accum_dtype",
     .kind = text,
     .choices = "fp32|fp16|bf16",
     .nullable = true,
     .set = [](Draft& d, const Value& v) { d.grad_accum_dtype = dtype_of(v.text); }},
    {.path = "communication_data_type",
     .kind = text,
     .choices = "fp32|fp16|bf16",
     .nullable = true,
     .has_default = false,
     .set = [](Draft& d, const Value& v) { d.communication_dtype = dtype_of(v.text); }},

    {.path = "optimizer", .kind = block},
    // Read by the rules, which know the optimizers of DeepSpeed.
    {.path = "optimizer.type",
     .kind = text,
     .nullable = true,
     .set = [](Draft& d, const Value& v) { d.optimizer_type = v.text; }},
    {.path = "optimizer.legacy_fusion", .kind = flag, .status = only_default, .fallback = "false"},
    {.path = "optimizer.params", .kind = block, .nullable = true},
    {.path = "optimizer.params.lr",
     .kind = real,
     .most = float_max,
     .set = [](Draft& d, const Value& v) { d.config.optimizer.learning_rate = static_cast<float>(v.real); }},
    {.path = "optimizer.params.betas",
     .kind = numbers,
     .most = 1,
     .length = 2,
     .set =
         [](Draft& d, const Value& v) {
           d.config.optimizer.beta1 = static_cast<float>(v.numbers[0]);
           d.config.optimizer.beta2 = static_cast<float>(v.numbers[1]);
         }},
    {.path = "optimizer.params.eps",
     .kind = real,
     .most = float_max,
     .set = [](Draft& d, const Value& v) { d.config.optimizer.epsilon = static_cast<float>(v.real); }},
    {.path = "optimizer.params.weight_decay",
     .kind = real,
     .most = float_max,
     .set = [](Draft& d, const Value& v) { d.config.optimizer.weight_decay = static_cast<float>(v.real); }},
    {.path = "optimizer.params.bias_correction",
     .kind = flag,
     .set = [](Draft& d, const Value& v) { d.config.optimizer.bias_correction = v.flag; }},
    {.path = "optimizer.params.adam_w_mode",
     .kind = flag,
     .set = [](Draft& d, const Value& v) { d.adam_w_mode = v.flag; }},
    {.path = "optimizer.params.torch_adam", .kind = flag, .status = only_default, .fallback = "false"},
    {.path = "optimizer.params.amsgrad", .kind = flag, .status = only_default, .fallback = "false"},
    {.path = "optimizer.params.fp32_optimizer_states",
     .kind = flag,
     .status = only_default,
     .fallback = "true"},
    {.path = "optimizer.params.max_grad_norm",
     .status = removed,
     .why = "DeepSpeed refuses it too; set gradient_clipping at the top level"},
    {.path = "zero_allow_untested_optimizer", .kind = flag, .status = no_effect, .why = no_client_optimizer},
    {.path = "zero_force_ds_cpu_optimizer", .kind = flag, .status = no_effect, .why = no_client_optimizer},

    {.path = "prescale_gradients", .kind = flag, .status = only_default, .fallback = "false"},
    {.path = "gradient_predivide_factor", .kind = real, .status = only_default, .fallback = "1.0"},
    {.path = "gradient_allreduce_op",
     .kind = text,
     .status = only_default,
     .fallback = "\"mean\"",
     .choices = "mean|sum",
     .has_default = false},
    {.path = "seq_parallel_communication_data_type",
     .kind = text,
     .status = only_default,
     .fallback = "\"fp32\"",
     .choices = "fp32|fp16|bf16",
     .has_default = false},
    {.path = "sequence_parallel_size", .kind = count, .status = only_default, .fallback = "1"},
    {.path = "disable_allgather", .kind = flag, .status = only_default, .fallback = "false"},

    {.path = "steps_per_print", .kind = count, .status = no_effect, .why = no_report, .nullable = true},
    {.path = "wall_clock_breakdown", .kind = flag, .status = no_effect, .why = no_report},
    {.path = "memory_breakdown", .kind = flag, .status = no_effect, .why = no_report},
    {.path = "dump_state", .kind = flag, .status = no_effect, .why = no_report},
    {.path = "dataloader_drop_last",
     .kind = flag,
     .status = no_effect,
     .why = "the trainer deals out its own batches"},

    {.path = "checkpoint", .kind = block},
    {.path = "checkpoint.tag_validation",
     .kind = text,
     .status = only_default,
     .fallback = "\"WARN\"",
     .choices = "WARN|IGNORE|FAIL",
     .has_default = false},
    {.path = "checkpoint.load_universal", .kind = flag, .status = only_default, .fallback = "false"},
    {.path = "checkpoint.use_node_local_storage", .kind = flag, .status = only_default, .fallback = "false"},
    {.path = "checkpoint.parallel_write", .kind = feature, .status = only_default},
    {.path = "checkpoint.writer", .kind = feature, .status = only_default},

    {.path = "activation_checkpointing", .kind = block},
    {.path = "activation_checkpointing.partition_activations",
     .kind = flag,
     .status = only_default,
     .fallback = "false"},
    {.path = "activation_checkpointing.contiguous_memory_optimization",
     .kind = flag,
     .status = only_default,
     .fallback = "false"},
    {.path = "activation_checkpointing.cpu_checkpointing",
     .kind = flag,
     .status = only_default,
     .fallback = "false"},
    {.path = "activation_checkpointing.number_checkpoints",
     .kind = count,
     .status = only_default,
     .fallback = "null",
     .nullable = true},
    {.path = "activation_checkpointing.synchronize_checkpoint_boundary",
     .kind = flag,
     .status = only_default,
     .fallback = "false"},
    {.path = "activation_checkpointing.profile", .kind = flag, .status = only_default, .fallback = "false"},
};

}  // namespace

std::span<const Key> training_keys() {
  return keys;
}

}  // namespace penstock::zero::config
