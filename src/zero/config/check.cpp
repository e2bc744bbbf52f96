#include "zero/config/check.hpp"

#include "zero/config/json_text.hpp"
#include "zero/config/rules.hpp"
#include "zero/config/value.hpp"

#include <penstock/cpu_adam/state_format.hpp>

#include <algorithm>
#include <filesystem>
#include <set>
#include <span>

namespace penstock::zero::config {

namespace {

using Violations = std::vector<Violation>;

/// Checks each value separately, with the same rules as for a file.
void check_values(const Draft& draft, Violations& violations) {
  for (const Key& key : schema()) {
    if (!key.field) continue;
    const Json::Value json = write_value(key, key.field.get(draft));
    if (json.isNull()) continue;
    if (const auto value = read_value(key, json); !value) violations.push_back({{key.path}, value.error()});
  }
}

/// As DeepSpeed does, of a scale that is used.
void check_dynamic_loss_scale(const Config& config, Violations& violations) {
  const auto check = [&](std::string_view key, std::uint32_t value) {
    if (value == 0)
      violations.push_back({{key, "fp16.loss_scale"}, "wanted 1 or more for a dynamic loss scale, got 0"});
  };
  check("fp16.loss_scale_window", config.dynamic_loss_scale.loss_scale_window);
  check("fp16.min_loss_scale", config.dynamic_loss_scale.min_loss_scale);
}

void check_precision(const Config& config, Violations& violations) {
  const std::string dtype(to_string(config.dtype));
  if (config.dtype > DType::fp16) {
    violations.push_back({{"bf16.enabled", "fp16.enabled"},
                          "Config::dtype is no DType: " + std::to_string(unsigned(config.dtype))});
    return;
  }
  if (config.dtype != DType::fp16 && config.loss_scale != 1.0f) {
    violations.push_back({{"fp16.loss_scale", "fp16.enabled"},
                          "wanted 1 without fp16, got " + write_json(double{config.loss_scale}) +
                              "; enable fp16, or leave it out"});
  }
  if (config.dtype == DType::fp16 && config.loss_scale == 0) check_dynamic_loss_scale(config, violations);
  const cpu_adam::StateFormat format = config.penstock.state_format;
  if (!cpu_adam::takes_parameter(format, config.dtype)) {
    violations.push_back({{"penstock.state_format", "bf16.enabled", "fp16.enabled"},
                          std::string(to_string(format)) +
                              " takes bf16 parameters, which are the upper halves of the masters, got " +
                              dtype + "; enable bf16, or use fp32"});
  }
  if (config.grad_accum_dtype != config.dtype && config.grad_accum_dtype != DType::fp32) {
    violations.push_back({{"data_types.grad_accum_dtype", "bf16.enabled", "fp16.enabled"},
                          "not supported yet; only fp32 and " + dtype + ", the type of the parameters, are"});
  }
}

void check_optimizer(const Draft& draft, Violations& violations) {
  const OptimizerConfig& optimizer = draft.config.optimizer;
  const bool is_known = optimizer.decay_mode <= cpu_adam::AdamDecay::decoupled;
  if (optimizer.decay_mode == cpu_adam::AdamDecay::none || !is_known) {
    violations.push_back({{"optimizer.params.adam_w_mode"},
                          std::string("wanted decoupled or l2, got ") +
                              (is_known ? "none" : "an unknown mode") +
                              "; for no decay set weight_decay to 0"});
  }
  if (std::any_of(optimizer.betas.begin(), optimizer.betas.end(),
                  [](double beta) { return static_cast<float>(beta) == 1.0f; })) {
    const Key& betas = *find_key("optimizer.params.betas");
    violations.push_back({{betas.path},
                          "wanted two numbers of at least 0 and, in single precision, below 1, got " +
                              write_json(write_value(betas, betas.field.get(draft)))});
  }
}

std::string_view key_of_masters(const Config& config) {
  return config.dtype == DType::bf16 ? "bf16.bf16_master_weights_and_grads"
                                     : "fp16.fp16_master_weights_and_grads";
}

/// What DeepSpeed requires of 16-bit masters. Without an offload it keeps bf16 moments only.
void check_masters(const Config& config, Violations& violations) {
  if (!has_16_bit_masters(config)) return;
  const std::string_view key = key_of_masters(config);
  const auto refuse = [&](std::string_view other, std::string message) {
    violations.push_back({{key, other}, std::move(message)});
  };
  if (config.grad_accum_dtype != config.dtype) {
    refuse("data_types.grad_accum_dtype",
           "gradients are accumulated in " + std::string(to_string(config.dtype)) +
               ", which data_types.grad_accum_dtype " + std::string(to_string(config.grad_accum_dtype)) +
               " contradicts; leave out one of them");
  }
  if (config.stage == 0) refuse("zero_optimization.stage", "needs zero_optimization.stage 1, 2 or 3, got 0");
  if (config.offload_optimizer.device == OffloadDevice::none &&
      config.penstock.state_format == cpu_adam::StateFormat::moments) {
    refuse("zero_optimization.offload_optimizer.device",
           config.dtype == DType::bf16
               ? "needs zero_optimization.offload_optimizer.device cpu or nvme, or bf16.bf16_optimizer_states"
               : "needs zero_optimization.offload_optimizer.device cpu or nvme");
  }
}

/// What only Adam has.
void check_other_optimizer(const Config& config, Violations& violations) {
  const cpu_adam::Optimizer type = config.optimizer.type;
  const std::string name = name_of(config.optimizer);
  const auto refuse = [&](std::string_view key, std::string message) {
    violations.push_back({{key, "optimizer.type"}, std::move(message)});
  };
  if (type != cpu_adam::Optimizer::muon) {
    const std::string of_muon = "it is Muon's, got " + name + "; leave it out";
    if (config.optimizer.muon_learning_rate) refuse("optimizer.params.muon_lr", of_muon);
    if (config.optimizer.adam_learning_rate) refuse("optimizer.params.adam_lr", of_muon);
  }
  if (type == cpu_adam::Optimizer::adam) return;
  if (cpu_adam::states_of(type).empty())
    return refuse("optimizer.type", "OptimizerConfig::type is no Optimizer");
  const cpu_adam::StateFormat format = config.penstock.state_format;
  const bool is_custom = cpu_adam::is_custom(type), is_muon = type == cpu_adam::Optimizer::muon;
  if ((is_custom || is_muon) && has_16_bit_masters(config)) {
    refuse(key_of_masters(config),
           (is_muon ? name : "the function") + " updates masters in fp32; leave it out");
  } else if (has_16_bit_masters(config)) {
    if (format != cpu_adam::StateFormat::moments)
      refuse("bf16.bf16_optimizer_states", name + " keeps its moment in fp32; leave it out");
  } else if (format != cpu_adam::StateFormat::fp32) {
    refuse("penstock.state_format", name + " takes fp32 only, got " + std::string(to_string(format)));
  }
  const std::string by_cpu = "the CPU alone updates by " + name + "; ";
  if (config.cpu_update_ratio != 1.0f)
    refuse("zero_optimization.offload_optimizer.ratio", by_cpu + "leave it out");
  if (config.penstock.update_split == UpdateSplit::automatic)
    refuse("penstock.update_split", by_cpu + "leave it out");
  if (!config.penstock.device_states.is_zero()) refuse("penstock.device_states", by_cpu + "leave it out");
  const bool has_own_rate = config.optimizer.muon_learning_rate || config.optimizer.adam_learning_rate;
  if (is_muon && has_own_rate && config.optimizer.learning_rate == 0)
    refuse("optimizer.params.lr", "0 is in no ratio to muon_lr and adam_lr; set it to one of them");
  if (is_muon && static_cast<float>(config.optimizer.momentum) >= 1)
    refuse("optimizer.params.momentum",
           "wanted a number of at least 0 and, in single precision, below 1, got " +
               write_json(config.optimizer.momentum));
  if (is_muon && config.optimizer.decay_mode != cpu_adam::AdamDecay::decoupled)
    refuse("optimizer.params.adam_w_mode", "groups without use_muon are updated by AdamW; leave it out");
  if (is_muon && !config.optimizer.bias_correction)
    refuse("optimizer.params.bias_correction", "groups without use_muon are updated by AdamW; leave it out");
  if (!is_custom) return;
  const std::string own = "it is Adam's, and the function gets no such setting; leave it out";
  if (!config.optimizer.bias_correction) refuse("optimizer.params.bias_correction", own);
  if (config.optimizer.decay_mode == cpu_adam::AdamDecay::l2) refuse("optimizer.params.adam_w_mode", own);
}

void check_scheduler(const Config& config, Violations& violations) {
  const auto* const cycle = std::get_if<OneCycle>(&config.scheduler);
  if (cycle == nullptr) return;
  if (cycle->cycle_first_step_size <= 0) {
    violations.push_back({{"scheduler.params.cycle_first_step_size"},
                          "wanted a number above 0, got " + write_json(cycle->cycle_first_step_size)});
  }
  const auto check_momentum = [&](std::string_view key, double momentum) {
    if (!cycle->cycle_momentum || static_cast<float>(momentum) < 1) return;
    violations.push_back({{key},
                          "wanted a number of at least 0 and, in single precision, below 1, got " +
                              write_json(momentum) + "; it is the first of Adam's betas"});
  };
  check_momentum("scheduler.params.cycle_min_mom", cycle->cycle_min_mom);
  check_momentum("scheduler.params.cycle_max_mom", cycle->cycle_max_mom);
}

/// What only stage 3 has, and what it has not.
void check_stage(const Config& config, Violations& violations) {
  if (config.shards_parameters()) {
    if (config.gradient_allreduce_op != AllreduceOp::sum) return;
    return violations.push_back(
        {{"gradient_allreduce_op", "zero_optimization.stage"},
         "stage 3 has the mean only, as in DeepSpeed; multiply the loss by the number of "
         "ranks, or choose another stage"});
  }
  const std::string advice = "needs zero_optimization.stage 3, got " + std::to_string(config.stage);
  if (config.offload_param.device != OffloadDevice::none) {
    violations.push_back({{"zero_optimization.offload_param.device", "zero_optimization.stage"},
                          advice + ": below it the device holds all parameters; leave out offload_param"});
  }
  if (config.cpu_update_ratio != 1.0f) {
    violations.push_back({{"zero_optimization.offload_optimizer.ratio", "zero_optimization.stage"},
                          advice + ", as in DeepSpeed"});
  }
}

/// Each directory gets a share of the bytes. One that is named twice would get two, from the same drive.
void check_directories(std::span<const std::filesystem::path> directories, std::string_view key,
                       Violations& violations) {
  std::set<std::filesystem::path> known;
  for (const std::filesystem::path& directory : directories) {
    if (directory.native().find('\0') != std::string::npos) {
      violations.push_back({{key}, "wanted the name of a directory, got a text with a NUL character"});
    } else if (!known.insert((directory / "").lexically_normal()).second) {
      violations.push_back({{key}, "wanted each directory once, got " + directory.string() + " again"});
    }
  }
}

void check_offload(const Config& config, Violations& violations) {
  constexpr std::string_view param_device = "zero_optimization.offload_param.device",
                             param_path = "zero_optimization.offload_param.nvme_path",
                             optimizer_device = "zero_optimization.offload_optimizer.device",
                             optimizer_path = "zero_optimization.offload_optimizer.nvme_path";
  const auto check_given = [&](const OffloadConfig& offload, std::string_view device, std::string_view path) {
    if (offload.device != OffloadDevice::nvme || !offload.nvme_paths.empty() || config.is_durable())
      return true;
    violations.push_back({{device, path}, "\"nvme\" needs nvme_path, a directory or a list of directories"});
    return false;
  };
  check_directories(config.offload_param.nvme_paths, param_path, violations);
  check_directories(config.offload_optimizer.nvme_paths, optimizer_path, violations);
  check_directories(config.penstock.durable_directories, "penstock.durable_directory", violations);
  const bool given = check_given(config.offload_param, param_device, param_path) &
                     check_given(config.offload_optimizer, optimizer_device, optimizer_path);
  const bool both = config.offload_param.device == OffloadDevice::nvme &&
                    config.offload_optimizer.device == OffloadDevice::nvme;
  if (both && given && !config.is_durable() &&
      config.offload_param.nvme_paths != config.offload_optimizer.nvme_paths) {
    violations.push_back(
        {{optimizer_path, param_path},
         "offload_param and offload_optimizer name different directories; give both the same "
         "nvme_path, a list for several directories"});
  }

  if (config.is_durable() && config.penstock.integrity == Integrity::off) {
    violations.push_back(
        {{"penstock.integrity", "penstock.durable_directory"},
         "a run with a durable_directory needs \"checksum\": what a later process reads is verified"});
  }
  const std::size_t paths = config.swap_directories().size();
  const auto one_for_each = [&](std::string_view key, std::size_t count) {
    if (count == 0 || paths == 0 || count == paths) return;
    violations.push_back({{key, param_path, optimizer_path, param_device, optimizer_device},
                          "wanted one number for each directory of swap files, " + std::to_string(paths) +
                              ", got " + std::to_string(count)});
  };
  one_for_each("penstock.path_weights", config.penstock.path_weights.size());
  one_for_each("penstock.path_nodes", config.penstock.path_nodes.size());
  one_for_each("penstock.path_limits", config.penstock.path_limits.size());
  one_for_each("penstock.path_endurance", config.penstock.path_endurance.size());
  if (config.penstock.endurance_cap && config.penstock.path_endurance.empty()) {
    violations.push_back({{"penstock.endurance_cap", "penstock.path_endurance"},
                          "needs path_endurance, of which it is a part"});
  }
}

void check_budgets(const PenstockConfig& penstock, Violations& violations) {
  const std::size_t nodes = penstock.node_budgets.size();
  if (nodes == 0) return;
  if (!penstock.host_budget.is_zero()) {
    violations.push_back({{"penstock.node_budgets", "penstock.host_budget"},
                          "wanted one of both: host_budget is that of all nodes together"});
  }
  if (penstock.rank_nodes.empty()) {
    violations.push_back({{"penstock.node_budgets", "penstock.rank_nodes"},
                          "needs rank_nodes, the node of each rank of the machine"});
  }
  for (const std::uint32_t node : penstock.rank_nodes) {
    if (node < nodes) continue;
    violations.push_back({{"penstock.node_budgets", "penstock.rank_nodes"},
                          "wanted a budget for each node, also number " + std::to_string(node) +
                              " of rank_nodes; got " + std::to_string(nodes)});
    break;
  }
}

/// Of files and directories that are made.
void check_names(const Config& config, Violations& violations) {
  const auto check = [&](std::string_view key, const std::string& name) {
    if (name.find('\0') == std::string::npos) return;
    violations.push_back({{key}, "wanted the name of a file, got a text with a NUL character"});
  };
  check("penstock.report_file", config.penstock.report_file.native());
  check("penstock.timeline_file", config.penstock.timeline_file.native());
  check("csv_monitor.output_path", config.csv_monitor.output_path);
  check("csv_monitor.job_name", config.csv_monitor.job_name);
  check("tensorboard.output_path", config.tensorboard.output_path);
  check("tensorboard.job_name", config.tensorboard.job_name);

  const auto &report = config.penstock.report_file, &timeline = config.penstock.timeline_file;
  if (report.empty() || report.lexically_normal() != timeline.lexically_normal()) return;
  violations.push_back({{"penstock.timeline_file", "penstock.report_file"},
                        "wanted another file than that of penstock.report_file"});
}

void check_update(const Config& config, Violations& violations) {
  if (config.penstock.update_split != UpdateSplit::automatic || config.cpu_update_ratio == 1.0f) return;
  violations.push_back({{"penstock.update_split", "zero_optimization.offload_optimizer.ratio"},
                        "automatic lets the processors take tiles as they get free, and takes no ratio; "
                        "leave out one of them"});
}

/// Stochastic rounding and split formats can make a number of what is none.
void check_non_finite_gradients(const Config& config, Violations& violations) {
  if (config.skips_non_finite_gradients() || config.penstock.state_format == cpu_adam::StateFormat::fp32)
    return;
  const std::string_view other =
      has_16_bit_masters(config) ? key_of_masters(config) : "penstock.state_format";
  violations.push_back({{"penstock.non_finite_gradients", other},
                        "as_deepspeed may update with gradients that are not finite, which only masters and "
                        "moments in fp32 can hold; leave it out, or " +
                            std::string(other)});
}

/// What is known only at the end of a backward decides about an update, but for one that begins before.
void check_update_in_backward(const Config& config, Violations& violations) {
  if (!config.penstock.update_in_backward) return;
  const auto refuse = [&violations](std::string_view key, const std::string& text) {
    violations.push_back({{key, "penstock.update_in_backward"}, text});
  };
  if (config.gradient_clipping > 0) {
    refuse(
        "gradient_clipping",
        "wanted 0 with penstock.update_in_backward, because clipping needs the norm of all gradients before "
        "any is used; got " +
            write_json(double{config.gradient_clipping}) +
            (config.gradient_clipping == Config().gradient_clipping ? ", as where it is not given" : ""));
  }
  if (config.dtype == DType::fp16) {
    refuse(
        "fp16.enabled",
        "wanted bf16 or fp32 with penstock.update_in_backward, because a loss scale needs steps that can be "
        "skipped");
  }
  if (config.penstock.endurance_cap) {
    refuse(
        "penstock.endurance_cap",
        "wanted none with penstock.update_in_backward, because an update that has begun cannot be refused");
  }
}

}  // namespace

std::vector<Violation> check(const Config& config) {
  Violations violations;
  const Draft draft = draft_of(config);
  check_values(draft, violations);
  check_stage(config, violations);
  check_precision(config, violations);
  check_masters(config, violations);
  check_optimizer(draft, violations);
  check_other_optimizer(config, violations);
  check_scheduler(config, violations);
  check_offload(config, violations);
  check_names(config, violations);
  check_budgets(config.penstock, violations);
  check_update(config, violations);
  check_non_finite_gradients(config, violations);
  check_update_in_backward(config, violations);
  return violations;
}

}  // namespace penstock::zero::config
