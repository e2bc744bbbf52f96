#include "zero/config/rules.hpp"

#include "zero/config/device_update.hpp"
#include "zero/config/scheduler_rules.hpp"
#include "zero/config/unused_keys.hpp"

#include <algorithm>
#include <iterator>
#include <string>

namespace penstock::zero::config {

namespace {

constexpr std::uint64_t batch_max = 0xffffffff;
constexpr const char *adam = "Adam", *adam_w = "AdamW", *lion = "Lion", *adagrad = "Adagrad",
                     *custom = "Custom", *muon = "Muon";

}  // namespace

const char* name_of(const OptimizerConfig& optimizer) {
  switch (optimizer.type) {
    case cpu_adam::Optimizer::adam:
      return optimizer.decay_mode == cpu_adam::AdamDecay::decoupled ? adam_w : adam;
    case cpu_adam::Optimizer::lion: return lion;
    case cpu_adam::Optimizer::adagrad: return adagrad;
    case cpu_adam::Optimizer::custom_no_moments:
    case cpu_adam::Optimizer::custom_one_moment:
    case cpu_adam::Optimizer::custom_two_moments: return custom;
    case cpu_adam::Optimizer::muon: return muon;
  }
  return "unknown";
}

namespace {

constexpr std::string_view batch_keys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                           "gradient_accumulation_steps"};

/// `divided` is the key of the part that is a quotient, or empty; its number is in no file.
std::string product_of(std::uint64_t micro, std::uint64_t steps, std::uint32_t world_size,
                       std::string_view divided) {
  const auto part = [&](std::string_view key, std::uint64_t value) {
    return key == divided ? std::string(key) : std::to_string(value) + " (" + std::string(key) + ")";
  };
  return part(batch_keys[1], micro) + " * " + part(batch_keys[2], steps) + " * " +
         std::to_string(world_size) + " (ranks)";
}

/// In which way the parts do not multiply to `total`.
std::string not_product(const std::string& total, std::uint64_t micro, std::uint64_t steps,
                        std::uint32_t world_size, std::string_view divided) {
  const std::string product = product_of(micro, steps, world_size, divided);
  if (divided.empty()) return total + " is not " + product;
  return "no integer " + std::string(divided) + " makes " + product + " equal to " + total;
}

/// DeepSpeed's rule: train_batch_size = micro × accumulation × world; two give the third by integer
/// division, train alone sets accumulation to 1, and so does micro alone.
/// https://www.deepspeed.ai/docs/config-json/#batch-size-related-parameters
void apply_batch_sizes(Draft& draft, Reader& reader, std::uint32_t world_size) {
  auto &train = draft.train_batch_size, &micro = draft.micro_batch_size,
       &steps = draft.gradient_accumulation_steps;
  if (!train && !micro) {
    // A key with an invalid value was already reported.
    if (!reader.has_problem(batch_keys[0]) && !reader.has_problem(batch_keys[1])) {
      reader.report(batch_keys[0],
                    "this or train_micro_batch_size_per_gpu must be given; for the defaults set "
                    "\"train_micro_batch_size_per_gpu\": 1");
    }
    return;
  }
  const auto has_problem = [&](std::string_view key) { return reader.has_problem(key); };
  if (std::any_of(std::begin(batch_keys), std::end(batch_keys), has_problem)) return;
  std::string_view divided;  // the part that is a quotient
  if (train && micro && !steps) {
    steps = *train / world_size / *micro;
    divided = batch_keys[2];
  }
  if (!steps) steps = 1;
  if (train && !micro) {
    micro = *train / world_size / *steps;
    divided = batch_keys[1];
  }
  if (!train) train = *micro * world_size > batch_max ? batch_max + 1 : *micro * *steps * world_size;

  const bool fits = *micro <= batch_max && *steps <= batch_max && *train <= batch_max;
  // Each factor is below 2^32, so that the product of two cannot overflow.
  const bool equal = fits && *micro > 0 && *steps > 0 && *micro * *steps <= batch_max &&
                     *micro * *steps * world_size == *train;
  if (!equal) {
    const std::string total = std::to_string(*train);
    const auto first_given = std::find_if(std::begin(batch_keys), std::end(batch_keys),
                                          [&](auto name) { return reader.was_given(name); });
    return reader.report(
        *first_given, fits ? "train_batch_size is not the product of its parts: " +
                                 not_product(total, *micro, *steps, world_size, divided)
                           : "the batch of a step is too large: wanted at most 4294967295 sequences, got " +
                                 product_of(*micro, *steps, world_size, divided));
  }
  draft.config.train_batch_size = static_cast<std::uint32_t>(*train);
  draft.config.micro_batch_size = static_cast<std::uint32_t>(*micro);
  draft.config.gradient_accumulation_steps = static_cast<std::uint32_t>(*steps);
}

/// DeepSpeed reduces in this type, and rounds to that of the parameters. An exact reduction does that for fp32.
void apply_communication_dtype(Draft& draft, Reader& reader) {
  constexpr std::string_view key = "communication_data_type";
  Config& config = draft.config;
  const DType dtype = draft.communication_dtype.value_or(config.dtype);
  if (dtype == config.dtype) return;
  if (dtype != DType::fp32) {
    return reader.report(key, "not supported; only fp32 and " + std::string(to_string(config.dtype)) +
                                  ", the type of the parameters, are");
  }
  if (config.penstock.reduction == Reduction::native) {
    return reader.report(key,
                         "fp32 sums need penstock.reduction \"exact\"; a native one is in the type of the "
                         "parameters");
  }
  config.penstock.reduction = Reduction::exact;
  reader.note(
      key, "gradients are exchanged in the type of the parameters, which loses nothing, and added in fp32");
}

void apply_precision(Draft& draft, Reader& reader) {
  Config& config = draft.config;
  if (draft.bf16 && draft.fp16) reader.report("fp16.enabled", "bf16 and fp16 cannot both be enabled");
  config.dtype = draft.bf16 ? DType::bf16 : draft.fp16 ? DType::fp16 : DType::fp32;
  config.loss_scale = draft.fp16 ? draft.static_loss_scale : 1.0f;
  config.grad_accum_dtype = draft.grad_accum_dtype.value_or(config.dtype);
  apply_communication_dtype(draft, reader);
}

/// The rules of DeepSpeed's keys; its other ones are in check().
void apply_masters(Draft& draft, Reader& reader) {
  constexpr std::string_view bf16 = "bf16.bf16_master_weights_and_grads",
                             fp16 = "fp16.fp16_master_weights_and_grads",
                             states = "bf16.bf16_optimizer_states",
                             fp32_states = "optimizer.params.fp32_optimizer_states";
  const auto check = [&](std::string_view key, bool enabled, const char* enabling) {
    if (!enabled) reader.report(key, std::string("needs ") + enabling);
    if (!draft.state_format) return;
    reader.report(key, "the parameters are the masters, which penstock.state_format \"" +
                           std::string(to_string(*draft.state_format)) +
                           "\" contradicts; leave out one of them");
  };
  if (draft.bf16_masters) check(bf16, draft.bf16, "bf16.enabled");
  if (draft.fp16_masters) check(fp16, draft.fp16, "fp16.enabled");
  if (draft.bf16_states && !draft.bf16_masters)
    reader.report(states, "needs bf16.bf16_master_weights_and_grads");
  if (!draft.fp32_states && !draft.bf16_states)
    reader.report(fp32_states, "false needs bf16.bf16_optimizer_states, which alone it describes");
  if (draft.fp32_states && draft.bf16_states && reader.has_value(fp32_states))
    reader.note(fp32_states, "true has no effect: bf16.bf16_optimizer_states is given, which comes first");

  using enum cpu_adam::StateFormat;
  const cpu_adam::StateFormat of_parameters = draft.bf16_states ? moments_bf16 : moments;
  const bool masters = (draft.bf16_masters && draft.bf16) || (draft.fp16_masters && draft.fp16);
  draft.config.penstock.state_format = masters ? of_parameters : draft.state_format.value_or(fp32);
}

cpu_adam::Optimizer custom_with(std::uint64_t moments) {
  using enum cpu_adam::Optimizer;
  return moments == 0 ? custom_no_moments : moments == 1 ? custom_one_moment : custom_two_moments;
}

std::optional<std::uint64_t> moments_of(cpu_adam::Optimizer optimizer) {
  if (!cpu_adam::is_custom(optimizer)) return std::nullopt;
  return cpu_adam::states_of(optimizer).size() - 1;  // all but the master
}

/// The defaults, of a key that is "auto" too, are those of DeepSpeed's MuonWithAuxAdam. Its keys lr, muon_lr and
/// adam_lr are what they are here, but that a scheduler gives both kinds of groups one rate there.
void apply_muon(Draft& draft, Reader& reader) {
  OptimizerConfig& optimizer = draft.config.optimizer;
  constexpr std::string_view lr = "optimizer.params.lr", betas = "optimizer.params.betas",
                             eps = "optimizer.params.eps", muon_lr = "optimizer.params.muon_lr",
                             adam_lr = "optimizer.params.adam_lr";
  const auto given = [&](std::string_view key) { return reader.has_value(key); };
  if (optimizer.type != cpu_adam::Optimizer::muon) {
    for (const std::string_view key : {std::string_view("optimizer.params.momentum"), muon_lr, adam_lr}) {
      if (reader.was_given(key))
        reader.report(key, "needs optimizer.type \"Muon\", which alone it describes");
    }
    return;
  }
  optimizer.momentum = draft.momentum.value_or(optimizer.momentum);
  if (!given(lr)) {
    optimizer.learning_rate = 0.02;
    // A scheduler gives all groups its own rates.
    if (!given(adam_lr) && !given("scheduler.type")) {
      optimizer.adam_learning_rate = 3e-4;
      reader.note("optimizer.type",
                  "without lr and adam_lr, Muon's rate is 0.02 and AdamW's 3e-4, in proportion to which "
                  "other rates move "
                  "them");
    }
  }
  if (!given(betas)) optimizer.betas = {0.9, 0.95};
  if (!given(eps)) optimizer.epsilon = 1e-10;
  if (draft.config.stage > 0 && draft.config.gradient_clipping > 0)
    reader.note("gradient_clipping",
                "has little effect on Muon's matrices, whose steps do not depend on the size of the "
                "gradients. DeepSpeed "
                "clips Muon's updates instead, so that its steps are shorter; see docs/optimizer.md");
  if (!optimizer.bias_correction)
    reader.note("optimizer.params.bias_correction",
                "has no effect: groups without use_muon are updated by AdamW");
  // By DeepSpeed they are updated by Adam then, which is another optimizer.
  if (!draft.adam_w_mode)
    reader.report("optimizer.params.adam_w_mode",
                  "false is not supported: groups without use_muon are updated by AdamW; leave it out");
  optimizer.bias_correction = true;
}

/// The defaults of Lion and Adagrad are those of DeepSpeedCPULion, which are Adam's, and DeepSpeedCPUAdagrad.
void apply_other_optimizer(Draft& draft, Reader& reader) {
  using cpu_adam::Optimizer;
  OptimizerConfig& optimizer = draft.config.optimizer;
  const auto given = [&](std::string_view key) { return reader.has_value(key); };
  constexpr std::string_view lr = "optimizer.params.lr", betas = "optimizer.params.betas",
                             eps = "optimizer.params.eps";
  if (optimizer.type == Optimizer::adagrad && !given(lr)) optimizer.learning_rate = 1e-2;
  if (optimizer.type == Optimizer::adagrad && !given(eps)) optimizer.epsilon = 1e-10;
  if (optimizer.type != Optimizer::lion && optimizer.type != Optimizer::adagrad) return;
  // A value that is Adam's default surprises no reader of the file.
  const OptimizerConfig of_adam;
  const auto note = [&](std::string_view key, bool is_default) {
    if (!is_default)
      reader.note(key, std::string("has no effect: ") + name_of(optimizer) + " has no such parameter");
  };
  if (optimizer.type == Optimizer::lion) note(eps, optimizer.epsilon == of_adam.epsilon);
  if (optimizer.type == Optimizer::adagrad) note(betas, optimizer.betas == of_adam.betas);
  note("optimizer.params.bias_correction", optimizer.bias_correction);
  note("optimizer.params.adam_w_mode", draft.adam_w_mode);
}

void apply_optimizer(Draft& draft, Reader& reader) {
  if (!draft.optimizer_type && !reader.has_problem("optimizer.type")) {
    reader.note("optimizer", "no type is given: AdamW is used here");
  }
  OptimizerConfig& optimizer = draft.config.optimizer;
  if (draft.optimizer_type == lion) optimizer.type = cpu_adam::Optimizer::lion;
  if (draft.optimizer_type == adagrad) optimizer.type = cpu_adam::Optimizer::adagrad;
  if (draft.optimizer_type == muon) optimizer.type = cpu_adam::Optimizer::muon;
  const bool is_custom = draft.optimizer_type == custom;
  if (is_custom) optimizer.type = custom_with(draft.custom_moments.value_or(2));
  if (!is_custom && draft.custom_moments)
    reader.report("optimizer.params.moments", "needs optimizer.type \"Custom\", which alone it describes");
  apply_other_optimizer(draft, reader);
  apply_muon(draft, reader);
  const bool decoupled = (draft.optimizer_type != adam && !is_custom) || draft.adam_w_mode;
  draft.config.optimizer.decay_mode = decoupled ? cpu_adam::AdamDecay::decoupled : cpu_adam::AdamDecay::l2;
}

/// What DeepSpeed's sub-groups and their buffers are here: tiles, and how many are in flight.
void apply_tiles(Draft& draft, Reader& reader) {
  PenstockConfig& penstock = draft.config.penstock;
  if (draft.sub_group_size && penstock.tile_elements) {
    reader.note("zero_optimization.sub_group_size", "has no effect: penstock.tile_elements is given");
  } else if (draft.sub_group_size) {
    constexpr std::uint64_t block = cpu_adam::block_elements.value();
    const ElementCount most(std::max(block, *draft.sub_group_size / block * block));
    if (*draft.sub_group_size < block) {
      reader.note("zero_optimization.sub_group_size", std::to_string(*draft.sub_group_size) + " acts as " +
                                                          std::to_string(block) + ", the smallest tile");
    }
    if (most < penstock.tile()) penstock.tile_elements = most;
  }
  if (draft.buffer_count && draft.tiles_in_flight) {
    reader.note("zero_optimization.offload_optimizer.buffer_count",
                "has no effect: penstock.tiles_in_flight is given");
  }
  if (draft.buffer_count == 0u) {
    reader.note("zero_optimization.offload_optimizer.buffer_count", "0 acts as 1");
  }
  const auto buffers =
      static_cast<std::uint32_t>(draft.buffer_count.value_or(usual_tiles_in_flight(draft.config)));
  penstock.tiles_in_flight = draft.tiles_in_flight.value_or(std::max(buffers, 1u));
}

void apply_deprecated_offload(bool asked, OffloadConfig& offload, std::string_view key,
                              std::string_view block, Reader& reader) {
  if (reader.was_given(key) && reader.was_given(block)) {
    reader.report(key, "deprecated, and " + std::string(block) + " is given too; keep that one");
  }
  if (asked) offload.device = OffloadDevice::cpu;
}

/// DeepSpeed drops the block without a word.
void note_offload_without_zero(const Config& config, Reader& reader) {
  if (config.stage > 0 || config.offload_optimizer.device == OffloadDevice::none) return;
  reader.note("zero_optimization.offload_optimizer",
              "is done here; DeepSpeed ignores it at stage 0, which is the default");
}

}  // namespace

void apply_rules(Draft& draft, Reader& reader, std::uint32_t world_size) {
  Config& config = draft.config;
  apply_batch_sizes(draft, reader, world_size);
  apply_precision(draft, reader);
  apply_masters(draft, reader);
  apply_optimizer(draft, reader);
  apply_scheduler(draft, reader);
  apply_tiles(draft, reader);
  apply_deprecated_offload(draft.cpu_offload_param, config.offload_param,
                           "zero_optimization.cpu_offload_param", "zero_optimization.offload_param", reader);
  apply_deprecated_offload(draft.cpu_offload, config.offload_optimizer, "zero_optimization.cpu_offload",
                           "zero_optimization.offload_optimizer", reader);
  note_offload_without_zero(config, reader);
  note_unused_keys(draft, reader);
  // A drive is saturated by bytes in flight, so shorter requests need a deeper queue.
  config.aio_queue_depth = draft.aio_queue_depth.value_or(static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(ceil_divide((16_MiB).value(), config.aio_block_size.value()), 1, 4096)));
}

std::uint32_t usual_tiles_in_flight(const Config& config) {
  constexpr std::size_t most = 4096;
  const std::size_t directories = std::max<std::size_t>(config.swap_directories().size(), 1);
  return static_cast<std::uint32_t>(std::min(PenstockConfig{}.tiles_in_flight * directories, most));
}

bool has_16_bit_masters(const Config& config) {
  using cpu_adam::StateFormat;
  const StateFormat format = config.penstock.state_format;
  return config.dtype == DType::bf16 ? format == StateFormat::moments || format == StateFormat::moments_bf16
                                     : config.dtype == DType::fp16 && format == StateFormat::moments;
}

Draft draft_of(const Config& config) {
  const cpu_adam::StateFormat format = config.penstock.state_format;
  const bool masters = has_16_bit_masters(config),
             bf16_states = masters && format == cpu_adam::StateFormat::moments_bf16;
  return {.config = config,
          .train_batch_size = config.train_batch_size,
          .micro_batch_size = config.micro_batch_size,
          .gradient_accumulation_steps = config.gradient_accumulation_steps,
          .bf16 = config.dtype == DType::bf16,
          .fp16 = config.dtype == DType::fp16,
          .static_loss_scale = config.dtype == DType::fp16 ? config.loss_scale : 0.0f,
          .communication_dtype = config.dtype,
          .grad_accum_dtype = config.grad_accum_dtype,
          .optimizer_type = name_of(config.optimizer),
          .custom_moments = moments_of(config.optimizer.type),
          .momentum = config.optimizer.type == cpu_adam::Optimizer::muon
                          ? std::optional(config.optimizer.momentum)
                          : std::nullopt,
          .adam_w_mode = config.optimizer.decay_mode == cpu_adam::AdamDecay::decoupled,
          .bf16_masters = masters && config.dtype == DType::bf16,
          .fp16_masters = masters && config.dtype == DType::fp16,
          .bf16_states = bf16_states,
          .fp32_states = !bf16_states,
          .state_format = masters ? std::optional<cpu_adam::StateFormat>() : format,
          .scheduler = scheduler_draft_of(config.scheduler),
          .aio_queue_depth = config.aio_queue_depth,
          .tiles_in_flight = config.penstock.tiles_in_flight};
}

Draft effective_draft_of(Config config) {
  if (auto* const warmup = std::get_if<WarmupLR>(&config.scheduler); warmup && !warmup->warmup_max_lr)
    warmup->warmup_max_lr = config.optimizer.learning_rate;
  if (auto* const cycle = std::get_if<OneCycle>(&config.scheduler)) {
    cycle->cycle_second_step_size = cycle->cycle_second_step_size.value_or(cycle->cycle_first_step_size);
    cycle->cycle_second_stair_count =
        cycle->cycle_second_stair_count.value_or(cycle->cycle_first_stair_count);
  }
  config.overlap_comm = config.overlaps_communication();
  // The plan chooses longer tiles of states that a device with memory of its own keeps or updates.
  if (config.offload_optimizer.device != OffloadDevice::none && !asks_device_to_update(config))
    config.penstock.tile_elements = config.penstock.tile();
  return draft_of(config);
}

}  // namespace penstock::zero::config
