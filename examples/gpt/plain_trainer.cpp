#include "gpt/plain_trainer.hpp"

#include <penstock/base/compute.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <utility>

namespace gpt {

using namespace penstock;  // NOLINT: an example reads better so

namespace {

constexpr std::uint64_t all_finite = ~std::uint64_t{0};

/// A unit's own parameters, then those that it shares.
std::vector<ParameterId> parameters_of(const ModelDescription& model, std::size_t unit) {
  std::vector<ParameterId> ids;
  for (std::size_t index = 0; index < model.units()[unit].parameters.size(); ++index) {
    ids.push_back({unit, index});
  }
  ids.insert(ids.end(), model.units()[unit].uses.begin(), model.units()[unit].uses.end());
  return ids;
}

}  // namespace

PlainTrainer::PlainTrainer(const Options& options)
    : options_(options),
      description_(options.model),
      memory_(description_, options.config, options.training.micro_batches) {}

Result<std::unique_ptr<PlainTrainer>> PlainTrainer::create(const Options& options) {
  std::unique_ptr<PlainTrainer> trainer(new PlainTrainer(options));
  PENSTOCK_TRY(trainer->open());
  return trainer;
}

PlainTrainer::~PlainTrainer() {
  if (stream_) (void)stream_->synchronize();
}

Result<void> PlainTrainer::open() {
  const ByteCount most_activations = Activations::size(options_.model, activation_options(options_.training));
  PENSTOCK_TRY_ASSIGN(device_, options_.make_device(memory_.size() + most_activations));
  PENSTOCK_TRY(check_dtype(options_.config, *device_.ops));
  tiers::Device& device = *device_.accelerator.device;
  device_free_at_start_ = device.free_memory();
  PENSTOCK_TRY_ASSIGN(stream_, device.create_stream());
  PENSTOCK_TRY_ASSIGN(model_, Model::create(options_.model, *device_.ops));
  OnDevice allocator(device);
  const auto kept = activation_options(options_.training, device_.ops->operand_dtype());
  activation_bytes_ = Activations::size(options_.model, kept);
  PENSTOCK_TRY_ASSIGN(const auto activations, Activations::allocate(options_.model, kept, allocator));
  activations_ = activations.front();
  backward_visits_ = description_.backward_visits(kept.checkpoint);
  PENSTOCK_TRY(memory_.allocate(allocator));
  const std::size_t rows = activations_->tokens.size().value() * options_.training.micro_batches;
  tokens_.resize(rows);
  targets_.resize(rows);
  losses_.resize(rows);
  squares_.resize(memory_.squares().size() / ByteCount(sizeof(double)));
  first_non_finite_blocks_.assign(memory_.flats().size(), all_finite);

  const std::uint32_t threads = options_.config.penstock.threads;
  PENSTOCK_TRY_ASSIGN(
      auto workers,
      parallel::Workers::create(
          {.threads = threads > 0 ? threads : std::max(1u, std::thread::hardware_concurrency())}));
  return memory_.initialize(device, *stream_, workers);
}

DeviceMemoryUse PlainTrainer::device_memory() {
  return {.free_at_start = device_free_at_start_,
          .free_now = device_.accelerator.device->free_memory(),
          .activations = activation_bytes_};
}

Result<PlainTrainer::Outcome> PlainTrainer::step(std::uint32_t step) {
  for (std::uint32_t micro = 0; micro < options_.training.micro_batches; ++micro) {
    PENSTOCK_TRY(micro_batch(step, micro));
  }
  PENSTOCK_TRY(sum_squares());
  PENSTOCK_TRY(stream_->synchronize());
  PENSTOCK_TRY(check_finite());

  const zero::Config& config = options_.config;
  Outcome outcome{.loss = loss(), .gradient_norm = gradient_norm()};
  double factor = 1;
  // DeepSpeed's clipping, as in the engine.
  if (const double clip = config.gradient_clipping; clip > 0) {
    factor = 1.0 / std::max(1.0, (outcome.gradient_norm + 1e-6) / clip);
  }
  const auto gradient_factor = static_cast<float>(factor);
  const double norm = outcome.gradient_norm * gradient_factor;
  outcome.skipped = !(norm * norm <= std::numeric_limits<float>::max());
  if (outcome.skipped) return outcome;
  zero::LearningRate now = config.learning_rate_of(completed_steps_ + 1);
  now.rate = options_.training.learning_rate(config, step).value_or(now.rate);
  PENSTOCK_TRY(update(now, gradient_factor));
  return outcome;
}

Result<void> PlainTrainer::micro_batch(std::uint32_t step, std::uint32_t micro) {
  // Each micro-batch has its own host memory, because its copies run when the stream gets there.
  const std::size_t rows = activations_->tokens.size().value();
  const auto of_micro_batch = [&](auto& all) { return std::span(all).subspan(micro * rows, rows); };
  const std::span<std::uint8_t> tokens = of_micro_batch(tokens_), targets = of_micro_batch(targets_);
  options_.text->batch(options_.training.data_seed, {step, micro, /*rank=*/0},
                       {options_.training.sequences, options_.model.context}, tokens, targets);
  const StreamHandle stream = stream_->handle();
  tiers::Device& device = *device_.accelerator.device;
  PENSTOCK_TRY(device.copy_to_device(stream, ConstHostSpan(tokens), activations_->tokens));
  PENSTOCK_TRY(device.copy_to_device(stream, ConstHostSpan(targets), activations_->targets));

  const std::size_t units = description_.units().size();
  for (std::size_t unit = 0; unit < units; ++unit) {
    PENSTOCK_TRY(model_->forward(stream, unit, parameters(unit), *activations_));
  }
  std::vector<ParameterId> written;
  for (const auto& [unit, recompute, backward] : backward_visits_) {
    if (recompute) PENSTOCK_TRY(model_->recompute(stream, unit, parameters(unit), *activations_));
    if (!backward) continue;
    PENSTOCK_TRY(model_->backward(stream, unit, parameters(unit), gradients(unit, micro == 0, written),
                                  *activations_, 1.0f / static_cast<float>(options_.training.micro_batches)));
  }
  PENSTOCK_TRY(add_gradients(micro == 0));
  return device.copy_to_host(stream, activations_->losses.bytes, HostSpan(of_micro_batch(losses_)));
}

/// The first user of a parameter overwrites its gradient, a later one adds to it.
std::vector<Gradient> PlainTrainer::gradients(std::size_t unit, bool first_micro_batch,
                                              std::vector<ParameterId>& written) const {
  std::vector<Gradient> result;
  for (const ParameterId id : parameters_of(description_, unit)) {
    const bool again = std::find(written.begin(), written.end(), id) != written.end();
    result.push_back({memory_.gradient(id, first_micro_batch),
                      again ? GradientWrite::accumulate : GradientWrite::overwrite});
    written.push_back(id);
  }
  return result;
}

std::vector<DeviceTensor> PlainTrainer::parameters(std::size_t unit) const {
  std::vector<DeviceTensor> tensors;
  for (const ParameterId id : parameters_of(description_, unit)) tensors.push_back(memory_.parameter(id));
  return tensors;
}

Result<void> PlainTrainer::add_gradients(bool first) {
  if (!memory_.is_incoming(first)) return ok();
  Compute& compute = *device_.accelerator.compute;
  for (const PlainMemory::Flat& flat : memory_.flats()) {
    PENSTOCK_TRY(first ? compute.cast(stream_->handle(), flat.incoming, flat.gradients)
                       : compute.accumulate(stream_->handle(), flat.incoming, flat.gradients));
  }
  return ok();
}

Result<void> PlainTrainer::sum_squares() {
  for (const PlainMemory::Flat& flat : memory_.flats()) {
    PENSTOCK_TRY(device_.accelerator.compute->square_sums(stream_->handle(), flat.gradients, flat.squares));
  }
  return device_.accelerator.device->copy_to_host(stream_->handle(), memory_.squares(),
                                                  HostSpan(std::span(squares_)));
}

double PlainTrainer::gradient_norm() const {
  std::vector<double> of_flats;
  std::span<const double> rest = squares_;
  for (const PlainMemory::Flat& flat : memory_.flats()) {
    const std::size_t count = flat.squares.size() / ByteCount(sizeof(double));
    of_flats.push_back(sum_tree(rest.first(count)));
    rest = rest.subspan(count);
  }
  return std::sqrt(sum_tree(of_flats));
}

double PlainTrainer::loss() const {
  double sum = 0;
  for (const float loss : losses_) sum += loss;
  return sum / static_cast<double>(losses_.size());
}

Result<void> PlainTrainer::update(const zero::LearningRate& now, float gradient_factor) {
  const zero::OptimizerConfig& optimizer = options_.config.optimizer;
  ++completed_steps_;
  for (const PlainMemory::Flat& flat : memory_.flats()) {
    const cpu_adam::AdamConfig config{
        .learning_rate = static_cast<float>(now.rate),
        .beta1 = static_cast<float>(now.betas[0]),
        .beta2 = static_cast<float>(now.betas[1]),
        .epsilon = static_cast<float>(optimizer.epsilon),
        .weight_decay = flat.decays ? static_cast<float>(optimizer.weight_decay) : 0.0f,
        .decay_mode = optimizer.decay_mode,
        .bias_correction = optimizer.bias_correction};
    PENSTOCK_TRY(device_.accelerator.adam->step(stream_->handle(), config, completed_steps_, gradient_factor,
                                                memory_.tile(flat)));
  }
  return device_.accelerator.device->copy_to_host(stream_->handle(), memory_.first_non_finite_blocks(),
                                                  HostSpan(std::span(first_non_finite_blocks_)));
}

Result<void> PlainTrainer::check_finite() const {
  for (std::size_t i = 0; i < first_non_finite_blocks_.size(); ++i) {
    if (first_non_finite_blocks_[i] == all_finite) continue;
    return Error(ErrorCode::non_finite, "PlainTrainer::step")
        .reason("a master or a second moment is not finite")
        .object(description_.units()[memory_.flats()[i].slots.front().id.unit].name)
        .got("block " + std::to_string(first_non_finite_blocks_[i]))
        .advice("lower the learning rate");
  }
  return ok();
}

Result<void> PlainTrainer::read_masters(const PlainMemory::MasterSink& sink) {
  return memory_.read_masters(*device_.accelerator.device, *stream_, sink);
}

}  // namespace gpt
