#include "zero/engine/step_settings.hpp"

#include "base/number_text.hpp"
#include "base/splitmix64.hpp"

#include <string_view>

namespace penstock::zero {

namespace {

struct Setting {
  std::string_view name;
  bool hashed = false;  ///< its number says nothing to a reader
  std::string_view advice = "give every rank the same configuration, layout and StepOptions";
};

constexpr std::array<Setting, StepSettings::count> settings = {{
    {"step"},
    {"StepOptions::micro_batches"},
    {"StepOptions::units_without_gradient", true},
    {"StepOptions::learning_rate, scheduler or optimizer.params.lr"},
    {"scheduler or optimizer.params.betas[0]"},
    {"scheduler or optimizer.params.betas[1]"},
    {"optimizer.type", true},
    {"optimizer.params.eps"},
    {"optimizer.params.weight_decay"},
    {"optimizer.params.momentum"},
    {"optimizer.params.muon_lr / lr"},
    {"optimizer.params.adam_lr / lr"},
    {"optimizer.params.adam_w_mode"},
    {"optimizer.params.bias_correction"},
    {"gradient_clipping"},
    {"penstock.non_finite_gradients, bf16.check_grad_overflow or zero_optimization.stage", true},
    {"penstock.update_in_backward"},
    {"gradient_allreduce_op", true},
    {"the loss scale, of fp16.loss_scale and the steps that overflowed"},
    {"penstock.state_format, *_master_weights_and_grads or bf16_optimizer_states", true},
    {"the data type of parameters and gradients", true},
    {"data_types.grad_accum_dtype", true},
    {"the model layout's optimizer groups", true},
    {"the model layout", true,
     "compare the ModelLayout of the ranks: order of units and parameters, names, counts, shapes, groups and "
     "shared "
     "parameters"},
    {"the order of their collectives", true,
     "call acquire, gradients, reduce, step, digest, park and unpark in the same order on every rank"},
}};

/// The part of a hash that a double represents exactly.
double as_double(std::uint64_t hash) {
  return static_cast<double>(hash >> 12);
}

/// A hash of a set of units.
double hash_of(std::span<const std::uint32_t> units) {
  std::uint64_t sum = units.size();
  for (const std::uint32_t unit : units) sum += splitmix64_mix(unit + 1);
  return as_double(sum);
}

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  return splitmix64_mix(hash ^ splitmix64_mix(value + splitmix64_step));
}

/// A hash of the groups' settings.
double hash_of(std::span<const OptimizerGroup> groups) {
  std::uint64_t hash = groups.size();
  for (const OptimizerGroup& group : groups) {
    for (const char letter : to_string(group)) hash = mix(hash, static_cast<unsigned char>(letter));
    hash = mix(hash, 0);
  }
  return as_double(hash);
}

}  // namespace

std::uint64_t layout_hash(const ModelLayout& model) {
  std::uint64_t hash = model.units.size();
  for (const UnitLayout& unit : model.units) {
    hash = mix(hash, unit.parameters.size());
    for (const ParameterLayout& parameter : unit.parameters) {
      for (const char letter : parameter.name) hash = mix(hash, static_cast<unsigned char>(letter));
      hash = mix(mix(mix(hash, parameter.count.value()), parameter.group), parameter.shape.size());
      for (const std::uint64_t length : parameter.shape) hash = mix(hash, length);
    }
    hash = mix(hash, unit.shared.size());
    for (const ParameterId shared : unit.shared) hash = mix(mix(hash, shared.unit), shared.index);
  }
  return hash;
}

StepSettings step_settings(const Config& config, const StepGiven& step) {
  const OptimizerConfig& optimizer = config.optimizer;
  const auto ratio = [&](const std::optional<double>& own) {
    return own ? *own / optimizer.learning_rate : 1.0;
  };
  return {{static_cast<double>(step.number),
           static_cast<double>(step.micro_batches),
           hash_of(step.units_without_gradient),
           step.learning_rate.rate,
           step.learning_rate.betas[0],
           step.learning_rate.betas[1],
           static_cast<double>(optimizer.type),
           optimizer.epsilon,
           optimizer.weight_decay,
           optimizer.momentum,
           ratio(optimizer.muon_learning_rate),
           ratio(optimizer.adam_learning_rate),
           static_cast<double>(optimizer.decay_mode),
           optimizer.bias_correction ? 1.0 : 0.0,
           config.gradient_clipping,
           config.skips_non_finite_gradients() ? 1.0 : 0.0,
           config.penstock.update_in_backward ? 1.0 : 0.0,
           static_cast<double>(config.gradient_allreduce_op),
           step.loss_scale,
           static_cast<double>(config.penstock.state_format),
           static_cast<double>(config.dtype),
           static_cast<double>(config.grad_accum_dtype),
           hash_of(step.groups),
           as_double(step.layout_hash),
           as_double(step.collectives_hash)}};
}

Result<void> check_same_settings(const StepSettings& of_rank_0, const StepSettings& of_rank,
                                 std::size_t rank) {
  for (std::size_t i = 0; i < StepSettings::count; ++i) {
    if (of_rank.values[i] == of_rank_0.values[i]) continue;
    Error error = Error(ErrorCode::invalid_config, "Engine::step")
                      .reason("ranks 0 and " + std::to_string(rank) + " have different settings")
                      .object(std::string(settings[i].name));
    if (!settings[i].hashed) {
      error = std::move(error)
                  .wanted(number_text(of_rank_0.values[i]) + ", as rank 0")
                  .got(number_text(of_rank.values[i]) + " on rank " + std::to_string(rank));
    }
    return std::move(error).advice(std::string(settings[i].advice));
  }
  return ok();
}

}  // namespace penstock::zero
