#include "zero/config/rules.hpp"

#include <algorithm>

namespace penstock::zero::config {

namespace {

constexpr std::uint64_t batch_max = 0xffffffff;

/// DeepSpeed's rule: train_batch_size = micro × accumulation × world; two give the third by integer
/// division, train alone sets accumulation to 1, and so does micro alone.
/// https://www.deepspeed.ai/docs/config-json/#batch-size-related-parameters
void apply_batch_sizes(Draft& draft, Reader& reader, std::uint32_t world_size) {
  static constexpr std::string_view names[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                               "gradient_accumulation_steps"};
  auto &train = draft.train_batch_size, &micro = draft.micro_batch_size,
       &steps = draft.gradient_accumulation_steps;
  if (!train && !micro) {
    // One whose value cannot be used is reported already.
    if (!reader.has_problem(names[0]) && !reader.has_problem(names[1])) {
      reader.report(names[0], "this or train_micro_batch_size_per_gpu must be given");
    }
    return;
  }
  if (reader.has_problem(names[0]) || reader.has_problem(names[1]) || reader.has_problem(names[2])) return;
  if (train && micro && !steps) steps = *train / world_size / *micro;
  if (!steps) steps = 1;
  if (train && !micro) micro = *train / world_size / *steps;
  if (!train) train = *micro * world_size > batch_max ? batch_max + 1 : *micro * *steps * world_size;

  const std::string product = std::to_string(*micro) + " (train_micro_batch_size_per_gpu) * " +
                              std::to_string(*steps) + " (gradient_accumulation_steps) * " +
                              std::to_string(world_size) + " (ranks)";
  const bool fits = *micro <= batch_max && *steps <= batch_max && *train <= batch_max;
  // Each factor is below 2^32, so that the product of two cannot overflow.
  const bool equal = fits && *micro > 0 && *steps > 0 && *micro * *steps <= batch_max &&
                     *micro * *steps * world_size == *train;
  if (!equal) {
    const auto first_given =
        std::find_if(names, names + 3, [&](auto name) { return reader.was_given(name); });
    return reader.report(*first_given, "train_batch_size is not the product of its parts: " +
                                           (fits ? std::to_string(*train) : "more than 4294967295") +
                                           " is not " + product);
  }
  draft.config.train_batch_size = static_cast<std::uint32_t>(*train);
  draft.config.micro_batch_size = static_cast<std::uint32_t>(*micro);
  draft.config.gradient_accumulation_steps = static_cast<std::uint32_t>(*steps);
}

void apply_stage(Draft& draft, Reader& reader) {
  constexpr std::string_view path = "zero_optimization.stage";
  if (!draft.stage) {
    if (!reader.was_given(path)) reader.note(path, "not given: 3 is used here (DeepSpeed: 0)");
  } else if (*draft.stage != 3) {
    reader.report(path, "stage " + std::to_string(*draft.stage) + " is not supported yet; only 3 is");
  }
  draft.config.stage = 3;
}

void apply_precision(Draft& draft, Reader& reader) {
  Config& config = draft.config;
  if (draft.bf16 && draft.fp16) reader.report("fp16.enabled", "bf16 and fp16 cannot both be enabled");
  config.dtype = draft.bf16 ? DType::bf16 : draft.fp16 ? DType::fp16 : DType::fp32;
  config.loss_scale = 1.0f;
  if (draft.fp16 && draft.static_loss_scale == 0) {
    reader.report(
        "fp16.loss_scale",
        "a dynamic loss scale (0, the default) is not supported yet; give a static one, such as 1024");
  } else if (draft.fp16) {
    config.loss_scale = static_cast<float>(draft.static_loss_scale);
  }

  const cpu_adam::StateFormat format = config.penstock.state_format;
  if (cpu_adam::is_split(format) && config.dtype != DType::bf16) {
    reader.report("penstock.state_format",
                  std::string(to_string(format)) +
                      " takes bf16 parameters, which are the upper halves of the masters; "
                      "enable bf16, or use fp32");
  }

  if (draft.communication_dtype && *draft.communication_dtype != config.dtype) {
    reader.report("communication_data_type", "not supported yet; only the type of the parameters is, " +
                                                 std::string(to_string(config.dtype)));
  }
  config.grad_accum_dtype = draft.grad_accum_dtype.value_or(config.dtype);
  if (config.grad_accum_dtype != config.dtype && config.grad_accum_dtype != DType::fp32) {
    reader.report("data_types.grad_accum_dtype",
                  "not supported yet; only fp32 and the type of the parameters are, " +
                      std::string(to_string(config.dtype)));
  }
}

void apply_optimizer(Draft& draft, Reader& reader) {
  std::string type = draft.optimizer_type;
  for (char& c : type) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  if (type.empty()) {
    reader.note("optimizer", "no type is given: AdamW is used here");
  } else if (type != "adam" && type != "adamw") {
    reader.report("optimizer.type", "not supported yet; only Adam and AdamW are");
  }
  OptimizerConfig& optimizer = draft.config.optimizer;
  optimizer.decay_mode =
      type != "adam" || draft.adam_w_mode ? cpu_adam::AdamDecay::decoupled : cpu_adam::AdamDecay::l2;
  if (optimizer.beta1 >= 1.0f || optimizer.beta2 >= 1.0f) {
    reader.report("optimizer.params.betas",
                  "wanted two numbers of at least 0 and, in single precision, below 1");
  }
}

void apply_offload(const OffloadConfig& offload, const std::string& block, std::string_view deprecated,
                   Reader& reader) {
  if (reader.was_given(deprecated) && reader.was_given(block)) {
    reader.report(deprecated, "deprecated, and " + block + " is given too; keep that one");
  }
  if (offload.device == OffloadDevice::nvme && offload.nvme_paths.empty() &&
      !reader.was_given(block + ".nvme_path")) {
    reader.report(block + ".device", "\"nvme\" needs nvme_path, a directory or a list of directories");
  }
}

void apply_machine(Draft& draft, Reader& reader) {
  Config& config = draft.config;
  if (config.penstock.tile().value() % cpu_adam::block_elements.value() != 0) {
    reader.report("penstock.tile_elements", "wanted a multiple of " +
                                                std::to_string(cpu_adam::block_elements.value()) + ", got " +
                                                std::to_string(config.penstock.tile().value()));
  }
  // What saturates a drive is bytes in flight: short requests need more of them.
  config.aio_queue_depth = draft.aio_queue_depth.value_or(static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(ceil_divide((16_MiB).value(), config.aio_block_size.value()), 1, 4096)));
  const std::size_t paths = config.swap_directories().size();
  const auto one_for_each_path = [&](std::string_view path, std::size_t count) {
    if (count == 0 || paths == 0 || count == paths) return;
    reader.report(path, "wanted one number for each directory of nvme_path, " + std::to_string(paths) +
                            ", got " + std::to_string(count));
  };
  one_for_each_path("penstock.path_weights", config.penstock.path_weights.size());
  one_for_each_path("penstock.path_nodes", config.penstock.path_nodes.size());
  if (!is_aligned(config.aio_block_size, Alignment(4096))) {
    reader.report("aio.block_size",
                  "wanted a multiple of 4096 bytes, got " + std::to_string(config.aio_block_size.value()));
  }
}

}  // namespace

void apply_rules(Draft& draft, Reader& reader, std::uint32_t world_size) {
  apply_batch_sizes(draft, reader, world_size);
  apply_stage(draft, reader);
  apply_precision(draft, reader);
  apply_optimizer(draft, reader);
  apply_offload(draft.config.offload_param, "zero_optimization.offload_param",
                "zero_optimization.cpu_offload_param", reader);
  apply_offload(draft.config.offload_optimizer, "zero_optimization.offload_optimizer",
                "zero_optimization.cpu_offload", reader);
  apply_machine(draft, reader);
}

}  // namespace penstock::zero::config
