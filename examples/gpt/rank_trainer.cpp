#include "gpt/rank_trainer.hpp"

#include "gpt/initial_values.hpp"
#include "gpt/timed_device.hpp"

#include <penstock/base/time.hpp>

#include <algorithm>
#include <chrono>
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
  explicit PhaseTimer(const swap::Runtime& runtime) : runtime_(runtime) {}

  void end(StepReport& report, double StepReport::Phases::*phase) {
    const TimePoint now = Clock::steady().now(), stalled = runtime_.stall_time();
    report.took.*phase += seconds(now - std::exchange(began_, now));
    report.stalled.*phase += seconds(stalled - std::exchange(stalled_, stalled));
  }

 private:
  const swap::Runtime& runtime_;
  TimePoint began_ = Clock::steady().now(), stalled_ = runtime_.stall_time();
};

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

zero::ModelLayout layout_of(const ModelDescription& model) {
  zero::ModelLayout layout;
  layout.groups = {{.weight_decay = true}, {.weight_decay = false}};
  for (const UnitDescription& unit : model.units()) {
    zero::UnitLayout& out = layout.units.emplace_back();
    out.name = unit.name;
    for (const ParameterDescription& parameter : unit.parameters) {
      out.parameters.push_back({parameter.name, parameter.count, parameter.weight_decay ? 0u : 1u});
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
  const std::uint32_t ranks = options_.training.ranks;
  const ByteCount activation_bytes = Activations::size(options_.model, activation_options(options_.training));
  auto rank =
      zero::Rank::create({.config = options_.config,
                          .model = layout_of(ModelDescription(options_.model)),
                          .identity = zero::RankIdentity::local(options_.rank, ranks),
                          .make_accelerator = [&](ByteCount engine_budget) -> Result<zero::Accelerator> {
                            auto made = options_.make_device(engine_budget + activation_bytes);
                            if (!made) return made.error();
                            ops_ = std::move(made->ops);
                            device_free_at_start_ = made->accelerator.device->free_memory();
                            if (options_.timed) {
                              PENSTOCK_TRY_ASSIGN(auto clock, made->make_clock());
                              timeline_ = std::make_shared<Timeline>(std::move(clock));
                              return time_operations(std::move(made->accelerator), timeline_);
                            }
                            return std::move(made->accelerator);
                          },
                          .group = zero::in_process_membership(options_.group, options_.rank),
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
  OnDevice allocator(rank_->device());
  const auto kept = activation_options(options_.training, ops_->operand_dtype());
  activation_bytes_ = Activations::size(options_.model, kept);
  auto activations = Activations::allocate(options_.model, kept, allocator);
  if (!activations) return activations.error();
  activations_ = std::move(*activations);
  const std::size_t rows = activations_->tokens.size().value() * options_.training.micro_batches;
  tokens_.resize(rows);
  targets_.resize(rows);
  losses_.resize(rows);

  const auto initialized = rank_->engine().initialize([&](zero::ParameterId parameter, std::uint64_t first,
                                                          std::span<float> values) {
    initial_values(model_->description(), {parameter.unit, parameter.index}, first, values, rank_->workers());
  });
  if (initialized && timeline_) {
    (void)timeline_->take();  // what it cost to initialize is no part of the training
    timeline_->name_stream(stream_->handle(), "compute");
    timeline_->begin(stream_->handle());
  }
  return initialized;
}

DeviceMemoryUse RankTrainer::device_memory() {
  return {.free_at_start = device_free_at_start_,
          .free_now = rank_->device().free_memory(),
          .activations = activation_bytes_};
}

Result<StepReport> RankTrainer::step(std::uint32_t step) {
  StepReport report;
  PENSTOCK_TRY(rank_->engine().begin_step(
      {.micro_batches = options_.training.micro_batches,
       .learning_rate = options_.training.learning_rate(options_.config.optimizer.learning_rate, step)}));
  for (std::uint32_t micro = 0; micro < options_.training.micro_batches; ++micro) {
    PENSTOCK_TRY(micro_batch(step, micro, report));
  }
  PhaseTimer timer(rank_->runtime());
  auto outcome = rank_->engine().step();
  if (!outcome) return outcome.error();
  report.outcome = *outcome;
  auto loss = read_loss();
  if (!loss) return loss.error();
  report.loss = *loss;
  timer.end(report, &StepReport::Phases::step);
  report.messages = rank_->runtime().take_messages();
  return report;
}

Result<void> RankTrainer::micro_batch(std::uint32_t step, std::uint32_t micro, StepReport& report) {
  PhaseTimer timer(rank_->runtime());
  // Each micro-batch has its own host memory, because its copies run when the stream gets there.
  const std::size_t rows = activations_->tokens.size().value();
  const auto of_micro_batch = [&](auto& all) { return std::span(all).subspan(micro * rows, rows); };
  const std::span<std::uint8_t> tokens = of_micro_batch(tokens_), targets = of_micro_batch(targets_);
  options_.text->batch(options_.training.data_seed, {step, micro, options_.rank},
                       {options_.training.sequences, options_.model.context}, tokens, targets);
  const StreamHandle stream = stream_->handle();
  tiers::Device& device = rank_->device();
  did(Activity::wait_for_step);
  PENSTOCK_TRY(device.copy_to_device(stream, ConstHostSpan(tokens), activations_->tokens));
  PENSTOCK_TRY(device.copy_to_device(stream, ConstHostSpan(targets), activations_->targets));

  const auto units = static_cast<std::uint32_t>(model_->description().units().size());
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    auto weights = rank_->engine().acquire(unit, *stream_);
    if (!weights) return weights.error();
    did(Activity::wait_for_parameters, unit);
    PENSTOCK_TRY(model_->forward(stream, unit, weights->parameters(), *activations_));
    did(Activity::forward, unit);
  }
  timer.end(report, &StepReport::Phases::forward);
  for (std::uint32_t unit = units; unit-- > 0;) {
    auto weights = rank_->engine().acquire(unit, *stream_);
    if (!weights) return weights.error();
    did(Activity::wait_for_parameters, unit);
    auto room = rank_->engine().gradients(unit, *stream_);
    if (!room) return room.error();
    did(Activity::wait_for_gradients, unit);
    std::vector<Gradient> gradients;
    for (const zero::GradientSlot& slot : room->slots()) {
      gradients.push_back(
          {slot.tensor, slot.accumulate ? GradientWrite::accumulate : GradientWrite::overwrite});
    }
    const float share = 1.0f / static_cast<float>(options_.training.micro_batches);
    PENSTOCK_TRY(model_->backward(stream, unit, weights->parameters(), gradients, *activations_, share));
    did(Activity::backward, unit);
    weights->end();
    PENSTOCK_TRY(rank_->engine().reduce(std::move(*room), *stream_));
  }
  PENSTOCK_TRY(device.copy_to_host(stream, activations_->losses.bytes, HostSpan(of_micro_batch(losses_))));
  timer.end(report, &StepReport::Phases::backward);
  return ok();
}

void RankTrainer::did(Activity activity, std::uint32_t unit) {
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
