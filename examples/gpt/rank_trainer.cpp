#include "gpt/rank_trainer.hpp"

#include "gpt/initial_values.hpp"
#include "gpt/timed_device.hpp"

#include <penstock/base/time.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

namespace gpt {

using namespace penstock;  // NOLINT: an example reads better so

namespace {

double seconds(TimePoint time) {
  return std::chrono::duration<double>(time).count();
}

/// Adds the time since its creation, or the last end(), to a phase.
class PhaseTimer {
 public:
  void end(StepReport& report, double StepReport::Phases::*phase) {
    const TimePoint now = Clock::steady().now();
    report.took.*phase += seconds(now - std::exchange(began_, now));
  }

 private:
  TimePoint began_ = Clock::steady().now();
};

/// What a call of the engine waited for that ended with this activity.
double StepReport::Stalls::*cause_of(Activity activity) {
  switch (activity) {
    case Activity::wait_for_gradients: return &StepReport::Stalls::gradients;
    case Activity::wait_for_checkpoint: return &StepReport::Stalls::checkpoints;
    case Activity::wait_for_step: return &StepReport::Stalls::step;
    default: return &StepReport::Stalls::parameters;
  }
}

/// Makes a track of each path.
void time_disks(const std::shared_ptr<Timeline>& timeline, swap::RuntimeOptions& runtime) {
  for (std::size_t i = 0; i < runtime.paths.size(); ++i) {
    runtime.paths[i].decorate = [timeline, track = timeline->add_track("disk " + std::to_string(i + 1))](
                                    std::unique_ptr<tiers::IoEngine> engine) {
      return time_requests(std::move(engine), timeline, track);
    };
  }
}

}  // namespace

zero::ModelLayout layout_of(const ModelConfig& config, const TrainingConfig& training,
                            cpu_adam::Optimizer optimizer) {
  const ModelDescription model(config);
  zero::ModelLayout layout;
  layout.checkpoints = ResidualLeases::layout(config, training);
  layout.groups = {{}, {.weight_decay = 0}};
  if (config.lora) layout.groups.push_back({.frozen = true});
  const bool has_muon = optimizer == cpu_adam::Optimizer::muon;
  const auto of_matrices = static_cast<std::uint32_t>(layout.groups.size());
  if (has_muon) layout.groups.push_back({.use_muon = true});
  for (const UnitDescription& unit : model.units()) {
    zero::UnitLayout& out = layout.units.emplace_back();
    out.name = unit.name;
    for (const ParameterDescription& parameter : unit.parameters) {
      const std::uint32_t group = parameter.frozen                         ? 2
                                  : has_muon && parameter.is_hidden_matrix ? of_matrices
                                  : parameter.weight_decay                 ? 0
                                                                           : 1;
      out.parameters.push_back({parameter.name, parameter.count, group, parameter.shape});
    }
    for (const ParameterId& used : unit.uses) {
      out.shared.push_back({static_cast<std::uint32_t>(used.unit), static_cast<std::uint32_t>(used.index)});
    }
  }
  return layout;
}

Result<std::unique_ptr<RankTrainer>> RankTrainer::create(const Options& options) {
  std::unique_ptr<RankTrainer> trainer(new RankTrainer(options));
  PENSTOCK_TRY(trainer->open());
  return trainer;
}

RankTrainer::~RankTrainer() {
  // The engine may be destroyed only after the stream has finished using its tensors.
  if (stream_) (void)stream_->synchronize();
}

Result<void> RankTrainer::open() {
  const ByteCount activation_bytes = training_memory(options_.model, options_.training);
  auto rank = zero::Rank::create(
      {.config = options_.config,
       .model = layout_of(options_.model, options_.training, options_.config.optimizer.type),
       .identity = options_.identity,
       .make_accelerator = [&](ByteCount engine_budget) -> Result<zero::Accelerator> {
         auto made = options_.make_device(engine_budget + activation_bytes);
         if (!made) return made.error();
         ops_ = std::move(made->ops);
         PENSTOCK_TRY(check_dtype(options_.config, *ops_));
         device_free_at_start_ = made->accelerator.device->free_memory();
         if (options_.timed) {
           PENSTOCK_TRY_ASSIGN(auto clock, made->accelerator.device->create_clock());
           timeline_ = std::make_shared<Timeline>(std::move(clock));
           return time_operations(std::move(made->accelerator), timeline_);
         }
         return std::move(made->accelerator);
       },
       .group = options_.group,
       .hooks = {.runtime_options = [&](swap::RuntimeOptions& runtime) {
         if (timeline_) time_disks(timeline_, runtime);
         if (options_.adjust_runtime) options_.adjust_runtime(runtime);
       }}});
  if (!rank) return rank.error();
  rank_ = std::move(*rank);
  auto stream = rank_->device().create_stream();
  if (!stream) return stream.error();
  stream_ = std::move(*stream);
  auto model = Model::create(options_.model, *ops_);
  if (!model) return model.error();
  model_ = std::move(*model);
  PENSTOCK_TRY(open_training_memory());
  PENSTOCK_TRY(set_parameters());
  if (timeline_) {
    (void)timeline_->take();  // what it cost to initialize is no part of the training
    timeline_->name_stream(stream_->handle(), "compute");
    timeline_->begin(stream_->handle());
  }
  return ok();
}

/// Whether the durable directory has a commit, which the run continues then.
Result<bool> RankTrainer::continue_commit() {
  if (!options_.config.is_durable() || options_.resumed != nullptr) return false;
  PENSTOCK_TRY_ASSIGN(const auto resumed, rank_->engine().resume());
  if (!resumed) return false;
  std::uint64_t steps = 0;
  if (resumed->client.size() != sizeof steps) {
    return Error::invalid_argument("RankTrainer::create")
        .object(options_.config.penstock.durable_directories.front().string())
        .reason("another program has committed there")
        .advice("name another durable directory");
  }
  std::memcpy(&steps, resumed->client.data(), sizeof steps);
  committed_steps_ = steps;
  return true;
}

Result<void> RankTrainer::begin_commit(std::uint64_t steps) {
  PENSTOCK_TRY(finish_commit());
  PENSTOCK_TRY(rank_->engine().begin_commit(std::as_bytes(std::span(&steps, 1))));
  commit_in_progress_ = true;
  return ok();
}

Result<void> RankTrainer::finish_commit() {
  if (!std::exchange(commit_in_progress_, false)) return ok();
  PENSTOCK_TRY(rank_->engine().finish_commit());
  return ok();
}

Result<void> RankTrainer::write_loss(std::uint64_t steps, double loss) {
  return rank_->write_events(std::vector<zero::MonitorEvent>{
      {"Train/Samples/train_loss", loss, steps * rank_->config().train_batch_size}});
}

Result<void> RankTrainer::set_parameters() {
  PENSTOCK_TRY_ASSIGN(const bool continued, continue_commit());
  if (continued) return ok();
  const std::uint64_t updates = options_.resumed ? options_.resumed->progress().updates : 0;
  return rank_->engine().restore(
      updates, [&](zero::ParameterId parameter, cpu_adam::StateKind kind, std::uint64_t first,
                   std::span<float> values) { return first_state(parameter, kind, first, values); });
}

Result<void> RankTrainer::first_state(zero::ParameterId id, cpu_adam::StateKind kind, std::uint64_t first,
                                      std::span<float> values) const {
  const ParameterId parameter{id.unit, id.index};
  const ParameterDescription& described = model_->description().parameter(parameter);
  if (options_.resumed && !described.frozen) return options_.resumed->read(described, kind, first, values);
  if (kind != cpu_adam::StateKind::master) return ok();  // zeros
  const bool is_of_base = described.frozen || !options_.model.lora;
  if (options_.base && is_of_base) return options_.base->read(described, kind, first, values);
  initial_values(model_->description(), parameter, first, values, rank_->workers());
  return ok();
}

Result<void> RankTrainer::save(StateFile& file) {
  return rank_->engine().read_states([&](zero::ParameterId id, cpu_adam::StateKind kind, std::uint64_t first,
                                         std::span<const float> values) -> Result<void> {
    const ParameterDescription& described = model_->description().parameter({id.unit, id.index});
    return described.frozen ? ok() : file.write(described, kind, first, values);
  });
}

StateFile::Progress RankTrainer::progress(std::uint64_t steps) const {
  return {.steps = steps, .updates = rank_->engine().completed_steps()};
}

Result<void> RankTrainer::open_training_memory() {
  const ModelDescription& description = model_->description();
  OnDevice allocator(rank_->device());
  const auto options = activation_options(options_.training, ops_->operand_dtype());
  activation_bytes_ = training_memory(options_.model, options_.training, options.operands);
  PENSTOCK_TRY_ASSIGN(activations_, Activations::allocate(options_.model, options, allocator));
  if (activations_.size() > 1) {
    PENSTOCK_TRY_ASSIGN(sums_, GradientSums::allocate(description, allocator));
  }
  for (std::uint32_t i = 0; options.offload && i < activations_.size(); ++i) {
    residuals_.emplace_back(description, rank_->engine(), *stream_, activations_[i], options_.training, i);
  }
  backward_visits_ = description.backward_visits(options.checkpoint);
  const std::size_t rows = activations_.front().tokens.size().value() * options_.training.micro_batches;
  tokens_.resize(rows);
  targets_.resize(rows);
  losses_.resize(rows);
  return ok();
}

DeviceMemoryUse RankTrainer::device_memory() {
  return {.free_at_start = device_free_at_start_,
          .free_now = rank_->device().free_memory(),
          .activations = activation_bytes_};
}

Result<StepReport> RankTrainer::step(std::uint32_t step) {
  return ++begun_steps_ == 2 && options_.take_uses ? train_recorded(step) : train(step);
}

// Updates run beside the next step: the recorded step has its own only.
Result<StepReport> RankTrainer::train_recorded(std::uint32_t step) {
  PENSTOCK_TRY(finish_update());
  runtime().begin_trace();
  auto report = train(step);
  const auto updated = report ? finish_update() : ok();
  PENSTOCK_TRY_ASSIGN(const auto trace, runtime().end_trace("gpt_train"));
  if (!report) return report;
  PENSTOCK_TRY(updated);
  options_.take_uses(trace);
  return report;
}

Result<StepReport> RankTrainer::train(std::uint32_t step) {
  StepReport report;
  stalls_ = {};
  stall_time_ = rank_->runtime().stall_time();
  const TrainingConfig& training = options_.training;
  const std::uint32_t at_a_time = training.micro_batches_at_a_time();
  // The engine sees one micro-batch for each sum of gradients that it gets.
  PENSTOCK_TRY(rank_->engine().begin_step({.micro_batches = training.micro_batches / at_a_time,
                                           .learning_rate = training.learning_rate(options_.config, step)}));
  for (std::uint32_t first = 0; first < training.micro_batches; first += at_a_time) {
    PENSTOCK_TRY(micro_batches(step, first, report));
  }
  PhaseTimer timer;
  auto outcome = rank_->engine().step();
  if (!outcome) return outcome.error();
  note_stall(&StepReport::Stalls::step);
  report.outcome = *outcome;
  auto loss = read_loss();
  if (!loss) return loss.error();
  report.loss = *loss;
  timer.end(report, &StepReport::Phases::step);
  report.stalled = stalls_;
  report.messages = rank_->runtime().take_messages();
  return report;
}

Result<void> RankTrainer::micro_batches(std::uint32_t step, std::uint32_t first, StepReport& report) {
  PhaseTimer timer;
  did(Activity::wait_for_step);
  for (std::uint32_t i = 0; i < activations_.size(); ++i)
    PENSTOCK_TRY(copy_tokens(step, first + i, activations_[i]));
  const auto units = static_cast<std::uint32_t>(model_->description().units().size());
  for (std::uint32_t unit = 0; unit < units; ++unit) PENSTOCK_TRY(forward(unit));
  timer.end(report, &StepReport::Phases::forward);
  for (const BackwardVisit& visit : backward_visits_) PENSTOCK_TRY(backward(visit));
  for (std::uint32_t i = 0; i < activations_.size(); ++i) {
    PENSTOCK_TRY(rank_->device().copy_to_host(stream_->handle(), activations_[i].losses.bytes,
                                              HostSpan(of_micro_batch(losses_, first + i))));
  }
  timer.end(report, &StepReport::Phases::backward);
  return ok();
}

Result<void> RankTrainer::copy_tokens(std::uint32_t step, std::uint32_t micro_batch,
                                      Activations& activations) {
  // Each micro-batch has its own host memory, because its copies run when the stream gets there.
  const std::span<std::uint8_t> tokens = of_micro_batch(tokens_, micro_batch),
                                targets = of_micro_batch(targets_, micro_batch);
  options_.text->batch(options_.training.data_seed, {step, micro_batch, options_.identity.rank},
                       {options_.training.sequences, options_.model.context}, tokens, targets);
  const StreamHandle stream = stream_->handle();
  PENSTOCK_TRY(rank_->device().copy_to_device(stream, ConstHostSpan(tokens), activations.tokens));
  return rank_->device().copy_to_device(stream, ConstHostSpan(targets), activations.targets);
}

Result<void> RankTrainer::forward(std::uint32_t unit) {
  auto weights = rank_->engine().acquire(unit, *stream_);
  if (!weights) return weights.error();
  did(Activity::wait_for_parameters, unit);
  for (std::size_t i = 0; i < activations_.size(); ++i) {
    if (!residuals_.empty()) {
      PENSTOCK_TRY(residuals_[i].begin_forward(unit));
      did(Activity::wait_for_checkpoint, unit);
    }
    PENSTOCK_TRY(model_->forward(stream_->handle(), unit, weights->parameters(), activations_[i]));
    did(Activity::forward, unit);
    if (!residuals_.empty()) residuals_[i].end_forward(unit);
  }
  return ok();
}

Result<void> RankTrainer::backward(const BackwardVisit& visit) {
  auto weights = rank_->engine().acquire(visit.unit, *stream_);
  if (!weights) return weights.error();
  did(Activity::wait_for_parameters, visit.unit);
  const StreamHandle stream = stream_->handle();
  std::optional<zero::UnitGradients> room;
  std::vector<Gradient> gradients;
  const UnitDescription& described = model_->description().units()[visit.unit];
  const bool reduces = visit.backward && !described.trained_count().is_zero();
  if (!reduces) {
    gradients.resize(described.tensor_count());
  } else if (sums_) {
    gradients = sums_->of_unit(model_->description(), visit.unit);
  } else {
    PENSTOCK_TRY_ASSIGN(room, rank_->engine().gradients(visit.unit, *stream_));
    did(Activity::wait_for_gradients, visit.unit);
    for (const zero::GradientSlot& slot : room->slots()) {
      gradients.push_back(
          {slot.tensor, slot.accumulate ? GradientWrite::accumulate : GradientWrite::overwrite});
    }
  }
  const float share = static_cast<float>(rank_->engine().loss_scaler().scale()) /
                      static_cast<float>(options_.training.micro_batches);
  for (std::size_t i = 0; i < activations_.size(); ++i) {
    Activations& activations = activations_[i];
    if (!residuals_.empty()) {
      PENSTOCK_TRY(residuals_[i].begin_backward(visit.unit));
      did(Activity::wait_for_checkpoint, visit.unit);
    }
    if (visit.recompute)
      PENSTOCK_TRY(model_->recompute(stream, visit.unit, weights->parameters(), activations));
    if (visit.backward)
      PENSTOCK_TRY(
          model_->backward(stream, visit.unit, weights->parameters(), gradients, activations, share));
    for (Gradient& gradient : gradients)
      gradient.write = GradientWrite::accumulate;  // of the next micro-batch
    did(Activity::backward, visit.unit);
    if (!residuals_.empty()) residuals_[i].end_backward(visit);
  }
  weights->end();
  if (room) return rank_->engine().reduce(std::move(*room), *stream_);
  if (!reduces) return ok();
  const std::vector<zero::GradientSource> sums = [&] {
    std::vector<zero::GradientSource> sources;
    for (const Gradient& gradient : gradients) sources.emplace_back(gradient.tensor);
    return sources;
  }();
  PENSTOCK_TRY(rank_->engine().reduce(visit.unit, sums, *stream_));
  did(Activity::wait_for_gradients, visit.unit);
  return ok();
}

void RankTrainer::note_stall(double StepReport::Stalls::*cause) {
  const TimePoint now = rank_->runtime().stall_time();
  stalls_.*cause += seconds(now - std::exchange(stall_time_, now));
}

void RankTrainer::did(Activity activity, std::uint32_t unit) {
  note_stall(cause_of(activity));
  if (timeline_) timeline_->end(stream_->handle(), {.activity = activity, .unit = unit});
}

/// Waits for the stream, once a step: a device that waits for its trainer in between is idle.
Result<double> RankTrainer::read_loss() {
  PENSTOCK_TRY(stream_->synchronize());
  PENSTOCK_TRY(ops_->status());
  if (timeline_) PENSTOCK_TRY(timeline_->status());
  double sum = 0;
  for (const float loss : losses_) sum += loss;
  return sum / static_cast<double>(losses_.size());
}

}  // namespace gpt
