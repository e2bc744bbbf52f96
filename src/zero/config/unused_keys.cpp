#include "zero/config/unused_keys.hpp"

#include "zero/config/rules.hpp"
#include "zero/config/value.hpp"

#include <optional>
#include <string>
#include <variant>

namespace penstock::zero::config {

namespace {

/// Why a key has no effect, if that is so.
struct Rule {
  std::string_view key;
  bool (*is_unused)(const Draft&);
  const char* reason;
};

bool has_no_fp16(const Draft& draft) {
  return !draft.fp16;
}
bool has_static_scale(const Draft& draft) {
  return draft.fp16 && draft.static_loss_scale != 0;
}
bool is_below_stage_3(const Draft& draft) {
  return !draft.config.shards_parameters();
}
bool keeps_parameters(const Draft& draft) {
  return draft.config.offload_param.device != OffloadDevice::nvme;
}
bool keeps_states(const Draft& draft) {
  return draft.config.offload_optimizer.device != OffloadDevice::nvme;
}
bool has_no_swap_files(const Draft& draft) {
  return keeps_parameters(draft) && keeps_states(draft);
}
bool has_no_disk(const Draft& draft) {
  return has_no_swap_files(draft) && !draft.config.is_durable();
}
bool has_no_endurance(const Draft& draft) {
  return draft.config.penstock.path_endurance.empty();
}
bool is_durable(const Draft& draft) {
  return draft.config.is_durable();
}
bool updates_on_device(const Draft& draft) {
  return draft.config.offload_optimizer.device == OffloadDevice::none;
}
bool offloads_only_states(const Draft& draft) {
  return draft.config.offload_param.device == OffloadDevice::none && !updates_on_device(draft);
}
bool offloads_only_parameters(const Draft& draft) {
  return draft.config.offload_param.device != OffloadDevice::none && updates_on_device(draft);
}
bool needs_no_reuse_distance(const Draft& draft) {
  return draft.config.penstock.release != Release::reuse_distance &&
         draft.config.penstock.eviction != swap::Eviction::reuse_distance;
}
bool has_adam_w(const Draft& draft) {
  return draft.optimizer_type.value_or("AdamW") == "AdamW" && !draft.adam_w_mode;
}
const OneCycle* cycle_of(const Draft& draft) {
  return std::get_if<OneCycle>(&draft.config.scheduler);
}
bool has_scheduled_betas(const Draft& draft) {
  return cycle_of(draft) != nullptr && cycle_of(draft)->cycle_momentum;
}
bool has_constant_betas(const Draft& draft) {
  return cycle_of(draft) != nullptr && !cycle_of(draft)->cycle_momentum;
}
bool has_no_betas(const Draft& draft) {
  return cycle_of(draft) != nullptr && draft.config.optimizer.type == cpu_adam::Optimizer::adagrad;
}
bool has_no_decay(const Draft& draft) {
  return cycle_of(draft) != nullptr && cycle_of(draft)->decay_step_size == 0;
}
bool has_no_tensorboard(const Draft& draft) {
  return !draft.config.tensorboard.enabled;
}
bool has_no_csv_monitor(const Draft& draft) {
  return !draft.config.csv_monitor.enabled;
}
/// A rate that the scheduler repeats surprises no reader of the file. Muon's rates keep their ratio to this one.
bool has_scheduled_rate(const Draft& draft) {
  const Config& config = draft.config;
  if (config.optimizer.type == cpu_adam::Optimizer::muon) return false;
  std::optional<double> most;
  if (const auto* warmup = std::get_if<WarmupLR>(&config.scheduler)) most = warmup->warmup_max_lr;
  if (const auto* decay = std::get_if<WarmupDecayLR>(&config.scheduler)) most = decay->warmup_max_lr;
  if (cycle_of(draft) != nullptr) most = cycle_of(draft)->cycle_max_lr;
  if (const auto* test = std::get_if<LRRangeTest>(&config.scheduler)) most = test->lr_range_test_min_lr;
  return most && *most != config.optimizer.learning_rate;
}

constexpr const char *no_fp16 = "fp16 is not enabled", *static_scale = "fp16.loss_scale is a static one",
                     *whole = "below stage 3 the device holds all parameters",
                     *no_disk = "nothing is offloaded to nvme",
                     *durable = "penstock.durable_directory replaces it",
                     *on_device = "offload_optimizer.device is none",
                     *constant_betas = "cycle_momentum is false", *no_betas = "Adagrad has no betas",
                     *no_decay = "decay_step_size is 0";

constexpr Rule rules[] = {
    {"fp16.loss_scale", has_no_fp16, no_fp16},
    {"fp16.initial_scale_power", has_no_fp16, no_fp16},
    {"fp16.loss_scale_window", has_no_fp16, no_fp16},
    {"fp16.hysteresis", has_no_fp16, no_fp16},
    {"fp16.consecutive_hysteresis", has_no_fp16, no_fp16},
    {"fp16.min_loss_scale", has_no_fp16, no_fp16},
    {"fp16.initial_scale_power", has_static_scale, static_scale},
    {"fp16.loss_scale_window", has_static_scale, static_scale},
    {"fp16.hysteresis", has_static_scale, static_scale},
    {"fp16.consecutive_hysteresis", has_static_scale, static_scale},
    {"fp16.min_loss_scale", has_static_scale, static_scale},

    {"optimizer.params.lr", has_scheduled_rate, "the scheduler gives the rate of each step"},
    {"optimizer.params.betas", has_scheduled_betas, "OneCycle gives the betas of each step"},
    {"optimizer.params.adam_w_mode", has_adam_w, "AdamW decouples the decay; type \"Adam\" does as it says"},
    {"scheduler.params.cycle_min_mom", has_constant_betas, constant_betas},
    {"scheduler.params.cycle_min_mom", has_no_betas, no_betas},
    {"scheduler.params.cycle_max_mom", has_constant_betas, constant_betas},
    {"scheduler.params.cycle_max_mom", has_no_betas, no_betas},
    {"scheduler.params.decay_mom_rate", has_constant_betas, constant_betas},
    {"scheduler.params.decay_mom_rate", has_no_betas, no_betas},
    {"scheduler.params.decay_mom_rate", has_no_decay, no_decay},
    {"scheduler.params.decay_lr_rate", has_no_decay, no_decay},

    {"tensorboard.output_path", has_no_tensorboard, "tensorboard is not enabled"},
    {"tensorboard.job_name", has_no_tensorboard, "tensorboard is not enabled"},
    {"csv_monitor.output_path", has_no_csv_monitor, "csv_monitor is not enabled"},
    {"csv_monitor.job_name", has_no_csv_monitor, "csv_monitor is not enabled"},

    {"zero_optimization.max_live_parameters", is_below_stage_3, whole},
    {"zero_optimization.max_reuse_distance", is_below_stage_3, whole},
    {"zero_optimization.max_reuse_distance", needs_no_reuse_distance,
     "neither penstock.release nor penstock.eviction is reuse_distance, so parameters are kept while there "
     "is room"},
    {"zero_optimization.prefetch_bucket_size", is_below_stage_3, whole},
    {"zero_optimization.param_persistence_threshold", is_below_stage_3, whole},
    {"zero_optimization.model_persistence_threshold", is_below_stage_3, whole},
    {"zero_optimization.offload_param.nvme_path", keeps_parameters, "offload_param.device is not nvme"},
    {"zero_optimization.offload_param.nvme_path", is_durable, durable},
    {"zero_optimization.offload_param.max_in_cpu", keeps_parameters, "offload_param.device is not nvme"},
    {"zero_optimization.offload_param.pin_memory", offloads_only_states,
     "offload_optimizer.pin_memory decides: offload_param.device is none"},
    {"zero_optimization.offload_optimizer.nvme_path", keeps_states, "offload_optimizer.device is not nvme"},
    {"zero_optimization.offload_optimizer.nvme_path", is_durable, durable},
    {"zero_optimization.offload_optimizer.buffer_count", keeps_states,
     "offload_optimizer.device is not nvme"},
    {"zero_optimization.offload_optimizer.pin_memory", offloads_only_parameters,
     "offload_param.pin_memory decides: offload_optimizer.device is none"},
    {"zero_optimization.offload_optimizer.ratio", updates_on_device, on_device},

    {"aio.block_size", has_no_disk, no_disk},
    {"aio.queue_depth", has_no_disk, no_disk},
    {"penstock.io_deadline_seconds", has_no_disk, no_disk},
    {"penstock.io_engine", has_no_disk, no_disk},
    {"penstock.integrity", has_no_disk, no_disk},
    {"penstock.tiles_in_flight", keeps_states, "offload_optimizer.device is not nvme"},
    {"penstock.path_weights", has_no_swap_files, no_disk},
    {"penstock.path_nodes", has_no_swap_files, no_disk},
    {"penstock.path_limits", has_no_swap_files, no_disk},
    {"penstock.path_endurance", has_no_swap_files, no_disk},
    {"penstock.endurance_warning", has_no_endurance, "path_endurance is not given"},
    {"penstock.eviction", has_no_disk, no_disk},
    {"penstock.release", is_below_stage_3, whole},
    {"penstock.update_split", updates_on_device, on_device},
    {"penstock.device_states", updates_on_device,
     "offload_optimizer.device is none: all states are on the device"},
};

/// Whether the file says what is true without it.
bool is_default(const Key& key, const Draft& draft) {
  static const Draft initial = draft_of({});
  return write_value(key, key.field.get(draft)) == write_value(key, key.field.get(initial));
}

/// A file that asks DeepSpeed for no check gets one here.
void note_unused_overflow_check(const Config& config, Reader& reader) {
  if (config.check_grad_overflow || !config.skips_non_finite_gradients()) return;
  reader.note("bf16.check_grad_overflow",
              "has no effect: steps with gradients that are not finite are skipped; set "
              "penstock.non_finite_gradients to \"as_deepspeed\" for DeepSpeed's behaviour");
}

}  // namespace

const char* why_unused(std::string_view path, const Draft& draft) {
  for (const Rule& rule : rules) {
    if (rule.key == path && rule.is_unused(draft)) return rule.reason;
  }
  return nullptr;
}

void note_unused_keys(const Draft& draft, Reader& reader) {
  std::string_view noted;  // once for each key
  for (const Rule& rule : rules) {
    const Reader::Given* const given = reader.given(rule.key);
    if (given == nullptr || given->automatic || rule.key == noted) continue;
    const char* const reason = why_unused(rule.key, draft);
    if (reason == nullptr || is_default(*find_key(rule.key), draft)) continue;
    reader.note(rule.key, std::string("has no effect: ") + reason);
    noted = rule.key;
  }
  note_unused_overflow_check(draft.config, reader);
}

}  // namespace penstock::zero::config
