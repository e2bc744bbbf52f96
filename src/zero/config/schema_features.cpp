#include "zero/config/schema_parts.hpp"

namespace penstock::zero::config {

namespace {

using enum Kind;
using enum Status;
using enum Consumer;

constexpr std::string_view no_monitor = "csv_monitor and tensorboard are the monitors that are written here";
constexpr std::string_view no_logger = "no communication is logged here: the ledger counts the bytes";
constexpr std::string_view no_hybrid = "only used when hybrid_engine is enabled";
constexpr std::string_view no_compile = "only used when deepcompile is enabled";
constexpr std::string_view no_timer = "concerns DeepSpeed's own reports only";

/// The key that turns on a feature that Penstock does not have: only `false` is accepted.
constexpr Key feature_switch(std::string_view path) {
  return {.path = path, .kind = flag, .status = only_default, .fallback = "false"};
}

/// A key without effect while its feature is off.
constexpr Key unused(std::string_view path, Kind kind, std::string_view help, bool nullable = false) {
  return {.path = path, .kind = kind, .status = no_effect, .help = help, .nullable = nullable};
}

/// The block of a feature that Penstock does not have. DeepSpeed refuses members that are not listed.
constexpr Key feature_block(std::string_view path, std::string_view members) {
  return {.path = path, .kind = feature, .status = only_default, .choices = members};
}

/// A block whose members have no effect.
constexpr Key unused_block(std::string_view path, std::string_view help, std::string_view members) {
  return {.path = path, .kind = feature, .status = no_effect, .help = help, .choices = members};
}

constexpr Key gone(std::string_view path, std::string_view help) {
  return {.path = path, .status = removed, .help = help};
}

constexpr Key keys[] = {
    // DeepSpeed checks the keys of these blocks even if the feature is off, so they are listed.
    {.path = "tensorboard", .kind = block},
    {.path = "tensorboard.enabled",
     .kind = flag,
     .help = "rank 0 writes figures of each step to a file of events",
     .field = field<&Draft::config, &Config::tensorboard, &MonitorConfig::enabled>,
     .read_by = rank},
    {.path = "tensorboard.output_path",
     .kind = text,
     .help = "directory, which is made; empty: that in which the process runs",
     .field = field<&Draft::config, &Config::tensorboard, &MonitorConfig::output_path>,
     .read_by = rank},
    {.path = "tensorboard.job_name",
     .kind = text,
     .help = "directory in output_path",
     .field = field<&Draft::config, &Config::tensorboard, &MonitorConfig::job_name>,
     .read_by = rank},
    {.path = "csv_monitor", .kind = block},
    {.path = "csv_monitor.enabled",
     .kind = flag,
     .help = "rank 0 writes figures of each step to a CSV file each",
     .field = field<&Draft::config, &Config::csv_monitor, &MonitorConfig::enabled>,
     .read_by = rank},
    {.path = "csv_monitor.output_path",
     .kind = text,
     .help = "directory, which is made; empty: that in which the process runs",
     .field = field<&Draft::config, &Config::csv_monitor, &MonitorConfig::output_path>,
     .read_by = rank},
    {.path = "csv_monitor.job_name",
     .kind = text,
     .help = "directory in output_path",
     .field = field<&Draft::config, &Config::csv_monitor, &MonitorConfig::job_name>,
     .read_by = rank},
    {.path = "wandb", .kind = block},
    unused("wandb.enabled", flag, no_monitor),
    unused("wandb.group", text, no_monitor, /*nullable=*/true),
    unused("wandb.team", text, no_monitor, /*nullable=*/true),
    unused("wandb.project", text, no_monitor),
    {.path = "comet", .kind = block},
    unused("comet.enabled", flag, no_monitor),
    unused("comet.samples_log_interval", count, no_monitor),
    unused("comet.project", text, no_monitor, /*nullable=*/true),
    unused("comet.workspace", text, no_monitor, /*nullable=*/true),
    unused("comet.api_key", text, no_monitor, /*nullable=*/true),
    unused("comet.experiment_name", text, no_monitor, /*nullable=*/true),
    unused("comet.experiment_key", text, no_monitor, /*nullable=*/true),
    unused("comet.online", flag, no_monitor, /*nullable=*/true),
    unused("comet.mode", text, no_monitor, /*nullable=*/true),
    {.path = "comms_logger", .kind = block},
    unused("comms_logger.enabled", flag, no_logger),
    unused("comms_logger.prof_all", flag, no_logger),
    unused("comms_logger.prof_ops", list, no_logger),
    unused("comms_logger.verbose", flag, no_logger),
    unused("comms_logger.debug", flag, no_logger),
    {.path = "hybrid_engine", .kind = block},
    feature_switch("hybrid_engine.enabled"),
    {.path = "hybrid_engine.max_out_tokens",
     .kind = count,
     .status = no_effect,
     .help = no_hybrid,
     .least = 1},
    unused("hybrid_engine.inference_tp_size", count, no_hybrid),
    unused("hybrid_engine.release_inference_cache", flag, no_hybrid),
    unused("hybrid_engine.pin_parameters", flag, no_hybrid),
    unused("hybrid_engine.tp_gather_partition_size", count, no_hybrid),
    unused("hybrid_engine.enable_cuda_graph", flag, no_hybrid),
    {.path = "compile", .kind = block},
    feature_switch("compile.deepcompile"),
    unused("compile.autoep_non_moe", flag, no_compile),
    unused("compile.free_activation", flag, no_compile),
    unused("compile.free_activation_threshold", count, no_compile),
    unused("compile.offload_activation", flag, no_compile),
    unused("compile.offload_activation_pin_memory", flag, no_compile),
    unused("compile.offload_opt_states", flag, no_compile),
    unused("compile.double_buffer", flag, no_compile),
    unused("compile.symmetric_memory", flag, no_compile),
    unused("compile.debug_log", flag, no_compile),
    unused("compile.offload_parameters", flag, no_compile),
    unused("compile.sync_before_reduce", flag, no_compile),
    unused("compile.sync_after_reduce", flag, no_compile),
    unused("compile.sync_before_allgather", flag, no_compile),
    unused("compile.sync_after_allgather", flag, no_compile),
    unused("compile.keep_int_input_tensors", flag, no_compile),
    unused("compile.keep_all_input_tensors", flag, no_compile),
    unused("compile.passes", list, no_compile, /*nullable=*/true),
    {.path = "timers", .kind = block},
    {.path = "timers.throughput", .kind = block, .has_default = false},
    unused("timers.throughput.enabled", flag, no_timer),
    unused("timers.throughput.synchronized", flag, no_timer),

    unused_block("flops_profiler", "the trainer's arithmetic is not seen here",
                 "enabled|recompute_fwd_factor|profile_step|module_depth|top_modules|detailed|output_file"),
    feature_block("torch_autocast", "enabled|dtype|lower_precision_safe_modules"),
    feature_block(
        "tensor_parallel",
        "dtype|autotp_size|tp_overlap_comm|vocab_parallel_lm_head|vocab_parallel_ce_backend|"
        "tensor_parallel|tp|injection_policy_tuple|partition_config|preset_model|keep_module_on_host|"
        "replace_with_kernel_inject|kernel_inject"),
    feature_block("pipeline",
                  "stages|partition|seed_layers|activation_checkpoint_interval|pipe_partitioned|"
                  "grad_partitioned|use_reentrant"),
    unused_block("autotuning", "is done by DeepSpeed's launcher; `penstock tune` measures the disks",
                 "enabled|fast|results_dir|exps_dir|overwrite|start_profile_step|end_profile_step|metric|"
                 "metric_path|tuner_type|tuner_early_stopping|tuner_num_trials|arg_mappings|model_info|"
                 "model_info_path|mp_size|max_train_batch_size|min_train_batch_size|"
                 "max_train_micro_batch_size_per_gpu|min_train_micro_batch_size_per_gpu|"
                 "num_tuning_micro_batch_sizes"),
    feature_block("data_efficiency", "enabled|seed|data_sampling|data_routing"),
    feature_block("weight_quantization",
                  "enabled|num_bits|q_type|q_groups|quantized_initialization|post_init_quant"),

    feature_block(
        "expert_parallel",
        "enabled|autoep_size|expert_tensor_parallel_size|validate_folding_routing|async_split_plan|"
        "preset_model|moe_layer_pattern|expert_pattern|router_pattern|use_grouped_mm|"
        "disable_triton_grouped_mm|route_norm|route_scale|score_apply|combine_impl|row_weighting_impl|"
        "gate_up_impl|comm_backend|comm_num_sm|comm_qp_margin|comm_max_tokens_per_rank|num_expert_groups|"
        "num_limited_groups|score_func|top_k|load_balance_coeff|routed_scaling_factor|expert_w1|expert_w2|"
        "expert_w3|num_experts_attr|top_k_attr|has_shared_experts|shared_experts_pattern|"
        "shared_experts_gate_pattern|expert_activation"),
    feature_switch("use_data_before_expert_parallelism"),
    unused_block("datastates_ckpt", "chooses DeepSpeed's writer of checkpoints", any_member),
    unused("managed_gradient_accumulation", flag, "the trainer calls step() after the last micro-batch"),
    unused("vocabulary_size", count, "DeepSpeed only warns of sizes that are no multiple of 8",
           /*nullable=*/true),
    unused("log_level", text, "concerns DeepSpeed's own reports only", /*nullable=*/true),
    unused("disable_python_gc", flag, "no Python runs here"),

    unused("origins", list, "where the values come from, as `penstock config check --json` prints it"),
    unused("notes", list, "on the file, as `penstock config check --json` prints them"),

    gone("curriculum_learning", "removed in DeepSpeed 0.19; the trainer makes its own batches"),
    gone("progressive_layer_drop", "removed in DeepSpeed 0.19; the trainer decides which layers run"),
    gone("nebula", "removed in DeepSpeed 0.19; leave it out"),
    gone("compression_training", "removed in DeepSpeed 0.19; leave it out"),
    gone("quantize_training", "removed in DeepSpeed 0.19; leave it out"),
    gone("eigenvalue", "removed in DeepSpeed 0.19; leave it out"),
    gone("sparse_attention", "removed in DeepSpeed 0.19; the trainer implements attention"),
    gone("graph_harvesting", "removed in DeepSpeed 0.19; leave it out"),
    gone("elasticity",
         "removed in DeepSpeed 0.19; set train_batch_size, train_micro_batch_size_per_gpu and "
         "gradient_accumulation_steps"),
    gone("amp", "removed in DeepSpeed 0.19; set bf16 or fp16"),
    gone("sparse_gradients", "removed in DeepSpeed 0.19; leave it out"),
};

}  // namespace

std::span<const Key> feature_keys() {
  return keys;
}

}  // namespace penstock::zero::config
