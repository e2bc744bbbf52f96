#include "kit/trainer.hpp"
#include "kernels/element.hpp"
#include "kernels/host_compute.hpp"
#include "swap/runtime_internals.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

namespace penstock::zero::test {

namespace {

using tiers::HostDevice;

float widen(std::uint16_t bf16) {
  return std::bit_cast<float>(std::uint32_t{bf16} << 16);
}
/// Rounds to nearest, ties to even; every NaN becomes 0x7fc0.
std::uint16_t narrow(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// Calls `operation` with the type of the tensor's elements, so that loops do not decide for each of them.
template <class Operation>
decltype(auto) for_type(DType dtype, Operation operation) {
  if (dtype == DType::fp32) return operation(std::integral_constant<DType, DType::fp32>());
  if (dtype == DType::fp16) return operation(std::integral_constant<DType, DType::fp16>());
  return operation(std::integral_constant<DType, DType::bf16>());
}

/// Element `i` of a tensor.
template <DType dtype>
float get(HostSpan tensor, std::size_t i) {
  if constexpr (dtype == DType::fp32) return tensor.as<float>()[i];
  const std::uint16_t bits = tensor.as<std::uint16_t>()[i];
  return dtype == DType::fp16 ? kernels::widen(kernels::Fp16{bits}) : widen(bits);
}
template <DType dtype>
void put(HostSpan tensor, std::size_t i, float value) {
  if constexpr (dtype == DType::fp32) {
    tensor.as<float>()[i] = value;
  } else {
    tensor.as<std::uint16_t>()[i] =
        dtype == DType::fp16 ? kernels::narrow<kernels::Fp16>(value).bits : narrow(value);
  }
}
float get(const Elements& tensor, std::size_t i) {
  return for_type(tensor.dtype, [&](auto dtype) { return get<dtype>(tensor.bytes, i); });
}

/// 24 bits of a hash, as a number from -0.5 to 0.5.
float fraction(std::uint64_t hash) {
  return static_cast<float>(static_cast<std::int64_t>(hash) >> 40) * 0x1p-24f;
}

/// What fake_gradient() has alike for all elements, and the rest of it.
std::uint64_t gradient_key(std::uint32_t rank, std::uint32_t step, std::uint32_t micro_batch,
                           ParameterId parameter) {
  return ((rank * 131 + step) * 131 + micro_batch) * 131 + parameter.unit * 7 + parameter.index;
}
float gradient_of(float weight, std::uint64_t key, std::uint64_t element) {
  const std::uint64_t hash = (element + 1) * 0xbf58476d1ce4e5b9u + key * 0x94d049bb133111ebu;
  return 0.25f * weight + 0.25f * fraction(hash);
}

}  // namespace

Trainer::Trainer(const RunOptions& options, std::uint32_t rank, Engine& engine, swap::Runtime& runtime,
                 tiers::Device& device)
    : options_(options),
      rank_(rank),
      engine_(engine),
      runtime_(runtime),
      stream_(*device.create_stream()),
      done_(*device.create_event()) {
  if (options.model.checkpoints.count == 0) return;
  reader_ = *device.create_stream();
  read_ = *device.create_event();
}

Result<void> Trainer::open(RunResult& result) {
  if (options_.before_initialize) options_.before_initialize(engine_, *stream_);
  const auto fill = [this](ParameterId parameter, std::uint64_t first, std::span<float> values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] =
          options_.initial ? options_.initial(parameter, first + i) : initial_value(parameter, first + i);
    }
  };
  return persist(result,
                 [&] { return options_.restore ? options_.restore(engine_) : engine_.initialize(fill); });
}

Result<void> Trainer::train(RunResult& result) {
  for (std::uint32_t step = first_step_of(options_, engine_); step < options_.steps; ++step)
    PENSTOCK_TRY(train_step(step, result));
  return finish(result);
}

Result<void> Trainer::train_step(std::uint32_t step, RunResult& result) {
  if (options_.before_step) {
    PENSTOCK_TRY(engine_.finish_update());
    options_.before_step(step, rank_, runtime_);
  }
  auto outcome = try_step(step, result);
  for (attempt_ = 0; !outcome && outcome.error().code() == ErrorCode::interrupted;) {
    result.interruptions.push_back(outcome.error().message());
    PENSTOCK_TRY(engine_.abandon_step(*stream_, "the loss is NaN"));
    ++attempt_;
    outcome = try_step(step, result);
  }
  if (!outcome) return outcome.error();
  result.outcomes.push_back(*outcome);
  return ok();
}

Result<void> Trainer::finish(RunResult& result) {
  held_.end();
  if (options_.after_steps) PENSTOCK_TRY(options_.after_steps(engine_));
  auto digest = persist(result, [&] { return engine_.digest(); });
  if (!digest) return digest.error();
  result.digest = *digest;
  return ok();
}

Result<void> Trainer::evaluate(RunResult& result) {
  for (const std::uint32_t unit : order_of_use(evaluations_++, 0)) {
    held_.end();
    auto lease = persist(result, [&] { return engine_.acquire(unit, *stream_); });
    if (!lease) return lease.error();
    for (std::uint32_t i = 0; i < lease->parameters().size(); ++i) {
      const ParameterId id = options_.model.parameters_of(unit)[i];
      enqueue([this, id, &result, values = on_host(lease->parameters()[i])] {
        for (std::size_t e = 0; e < values.count().value(); ++e) {
          if (get(values, e) != options_.initial(id, e)) ++result.wrong_values;
        }
        ++result.parameters_read;
      });
    }
    held_ = std::move(*lease);
  }
  return ok();
}

Result<void> Trainer::finish_stream() {
  PENSTOCK_TRY(stream_->record(*done_));
  return swap::RuntimeInternals(runtime_).wait_for(*done_, "the trainer", forever);
}

/// Repeats a call while it fails and the engine can continue.
template <class Call>
auto Trainer::persist(RunResult& result, const Call& call) -> std::invoke_result_t<Call> {
  auto outcome = call();
  for (std::uint32_t attempt = 1; !outcome && attempt < options_.attempts; ++attempt) {
    if (engine_.status() == Engine::Status::failed) break;
    ++result.repeated;
    outcome = call();
  }
  return outcome;
}

Result<StepOutcome> Trainer::try_step(std::uint32_t step, RunResult& result) {
  PENSTOCK_TRY(engine_.begin_step({.micro_batches = options_.micro_batches,
                                   .learning_rate = {},
                                   .units_without_gradient = units_without_gradient(step)}));
  for (std::uint32_t micro = 0; micro < options_.micro_batches; ++micro) {
    PENSTOCK_TRY(run(step, micro, result));
    if (options_.after_micro_batch) options_.after_micro_batch(engine_);
  }
  PENSTOCK_TRY(pass({rank_, step, attempt_, options_.micro_batches, 0, Place::before_step}));
  PENSTOCK_TRY(pass_without_leases({rank_, step, attempt_, options_.micro_batches, 0, Place::before_step}));
  return persist(result, [&] { return engine_.step(); });
}

/// Fails as an exception of the trainer's own code would.
Result<void> Trainer::pass(const RunOptions::ProgramPoint& point) const {
  const auto code = options_.trainer_error ? options_.trainer_error(point) : std::nullopt;
  if (code) return Error(*code, "the test's trainer");
  return ok();
}

Result<void> Trainer::pass_without_leases(const RunOptions::ProgramPoint& point) {
  return options_.without_leases ? options_.without_leases(engine_, point) : ok();
}

/// Computes the forward of the units again whose last one's backward is next.
Result<void> Trainer::recompute_before(std::uint32_t last, RunResult& result) {
  const std::uint32_t together = options_.recomputed_together;
  const bool is_last = (last + 1) % together == 0 || last + 1 == options_.model.units.size();
  if (!is_last) return ok();
  for (std::uint32_t unit = last / together * together; unit < last; ++unit) {
    auto lease = persist(result, [&] { return engine_.acquire(unit, *stream_); });
    if (!lease) return lease.error();
    enqueue_forward(*lease);
  }
  return ok();
}

/// One forward and backward.
Result<void> Trainer::run(std::uint32_t step, std::uint32_t micro, RunResult& result) {
  const ModelLayout& model = options_.model;
  const auto order = order_of_use(step, micro);
  const auto without = units_without_gradient(step);
  for (const std::uint32_t unit : order) {
    PENSTOCK_TRY(pass_without_leases({rank_, step, attempt_, micro, unit, Place::forward}));
    auto lease = persist(result, [&] { return engine_.acquire(unit, *stream_); });
    if (!lease) return lease.error();
    PENSTOCK_TRY(pass({rank_, step, attempt_, micro, unit, Place::forward}));
    enqueue_forward(*lease);
    PENSTOCK_TRY(write_checkpoint(step, micro, unit, result));
    if (unit > 0) PENSTOCK_TRY(read_checkpoint(unit - 1, CheckpointUse::read, result));
  }
  for (auto use = order.rbegin(); use != order.rend(); ++use) {
    const std::uint32_t unit = *use;
    PENSTOCK_TRY(recompute_before(unit, result));
    PENSTOCK_TRY(pass_without_leases({rank_, step, attempt_, micro, unit, Place::backward}));
    auto lease = persist(result, [&] { return engine_.acquire(unit, *stream_); });
    if (!lease) return lease.error();
    PENSTOCK_TRY(pass({rank_, step, attempt_, micro, unit, Place::backward}));
    PENSTOCK_TRY(read_checkpoint(unit, CheckpointUse::last_read, result));
    if (std::find(use + 1, order.rend(), unit) != order.rend()) continue;
    if (std::find(without.begin(), without.end(), unit) != without.end() || is_frozen(unit)) continue;
    if (options_.gradients != RunOptions::Gradients::of_engine) {
      PENSTOCK_TRY(reduce_own_gradients(step, micro, unit, *lease));
      continue;
    }
    auto gradients = persist(result, [&] { return engine_.gradients(unit, *stream_); });
    if (!gradients) return gradients.error();
    for (std::uint32_t i = 0; i < lease->parameters().size(); ++i) {
      if (is_frozen(model.parameters_of(unit)[i])) continue;
      enqueue_backward(step, micro, model.parameters_of(unit)[i], lease->parameters()[i],
                       gradients->slots()[i]);
    }
    PENSTOCK_TRY(pass({rank_, step, attempt_, micro, unit, Place::gradients_written}));
    lease->end();
    PENSTOCK_TRY(engine_.reduce(std::move(*gradients), *stream_));
  }
  return ok();
}

namespace {
std::byte checkpoint_byte(std::uint64_t seed, std::size_t at) {
  return static_cast<std::byte>((seed + at / 8 * 0x9e3779b97f4a7c15u) >> (at % 8 * 8));
}
}  // namespace

Result<void> Trainer::write_checkpoint(std::uint32_t step, std::uint32_t micro, std::uint32_t unit,
                                       RunResult& result) {
  if (options_.model.checkpoints.count == 0) return ok();
  checkpoints_.resize(options_.model.checkpoints.count);
  auto lease = persist(result, [&] { return engine_.checkpoint(unit, CheckpointUse::write, *stream_); });
  if (!lease) return lease.error();
  const std::uint64_t seed = (std::uint64_t{step} * 1009 + micro) * 1013 + unit + 1;
  enqueue([this, unit, seed, to = on_host({lease->bytes(), DType::fp32}).bytes] {
    checkpoints_[unit] = seed * 0xbf58476d1ce4e5b9u ^ activation_;
    for (std::size_t i = 0; i < to.size().value(); ++i) to.data()[i] = checkpoint_byte(checkpoints_[unit], i);
  });
  return ok();
}

Result<void> Trainer::read_checkpoint(std::uint32_t unit, CheckpointUse use, RunResult& result) {
  if (options_.model.checkpoints.count == 0) return ok();
  tiers::Stream& stream = use == CheckpointUse::read ? *reader_ : *stream_;
  auto lease = persist(result, [&] { return engine_.checkpoint(unit, use, stream); });
  if (!lease) return lease.error();
  enqueue(stream, [this, unit, &result, from = on_host({lease->bytes(), DType::fp32}).bytes] {
    for (std::size_t i = 0; i < from.size().value(); ++i) {
      if (from.data()[i] == checkpoint_byte(checkpoints_[unit], i)) continue;
      ++result.wrong_checkpoints;
      return;
    }
  });
  lease->end();
  if (use != CheckpointUse::read) return ok();
  PENSTOCK_TRY(reader_->record(*read_));
  return stream_->wait(*read_);
}

/// Adds a checksum of the unit's weights to `activation_`.
void Trainer::enqueue_forward(const UnitLease& lease) {
  for (const DeviceTensor& tensor : lease.parameters()) {
    enqueue([this, parameter = on_host(tensor)] {
      activation_ = for_type(parameter.dtype, [&, sum = activation_](auto dtype) mutable {
        for (std::size_t e = 0; e < parameter.count().value(); ++e)
          sum = sum * 31 + std::bit_cast<std::uint32_t>(get<dtype>(parameter.bytes, e));
        return sum;
      });
    });
  }
}

/// Reads the weights when the stream gets there.
void Trainer::enqueue_backward(std::uint32_t step, std::uint32_t micro, ParameterId id,
                               const DeviceTensor& parameter, const GradientSlot& slot) {
  const bool zero = options_.group_without_gradients == options_.model.parameter(id).group;
  const bool scaled = options_.gradient_scale && options_.scaled_parameter.value_or(id) == id;
  const float scale = zero ? 0.0f : scaled ? options_.gradient_scale(step, rank_) : 1.0f;
  enqueue(
      [=, this, weights = on_host(parameter), gradient = on_host(slot.tensor), accumulate = slot.accumulate] {
        const std::uint64_t key = gradient_key(rank_, step, micro, id);
        for_type(weights.dtype, [&](auto from) {
          for_type(gradient.dtype, [&](auto to) {
            for (std::size_t e = 0; e < weights.count().value(); ++e) {
              const float value = scale * gradient_of(get<from>(weights.bytes, e), key, e);
              put<to>(gradient.bytes, e, accumulate ? get<to>(gradient.bytes, e) + value : value);
            }
          });
        });
      });
}

void Trainer::enqueue(tiers::Stream& stream, std::function<void()> operation) {
  if (options_.accelerator) return options_.accelerator->enqueue(stream.handle(), std::move(operation));
  stream.handle().host_queue()->enqueue(std::move(operation));
}

Elements Trainer::on_host(const DeviceTensor& tensor) const {
  return {options_.accelerator ? options_.accelerator->bytes(tensor.bytes) : HostDevice::bytes(tensor.bytes),
          tensor.dtype};
}

/// The backward of a unit into memory of the trainer.
Result<void> Trainer::reduce_own_gradients(std::uint32_t step, std::uint32_t micro, std::uint32_t unit,
                                           UnitLease& lease) {
  std::vector<GradientSource> sources;
  for (std::uint32_t i = 0; i < lease.parameters().size(); ++i) {
    if (is_frozen(options_.model.parameters_of(unit)[i])) {
      sources.emplace_back();
      continue;
    }
    const DeviceTensor weights = lease.parameters()[i];
    const HostSpan bytes(std::span(own_gradients_.emplace_back(weights.count().value())));
    const DeviceTensor mine{
        DeviceSpan(DeviceAddress(reinterpret_cast<std::uintptr_t>(bytes.data())), bytes.size()), DType::fp32};
    enqueue_backward(step, micro, options_.model.parameters_of(unit)[i], weights, {.tensor = mine});
    if (options_.gradients == RunOptions::Gradients::on_host) {
      sources.emplace_back(HostTensor{bytes, DType::fp32});
    } else {
      sources.emplace_back(mine);
    }
  }
  lease.end();
  return engine_.reduce(unit, sources, *stream_);
}

Result<void> Trainer::gather_parameters(RunResult& result) {
  for (std::uint32_t unit = 0; unit < options_.model.units.size(); ++unit) {
    auto lease = persist(result, [&] { return engine_.acquire(unit, *stream_); });
    if (!lease) return lease.error();
    PENSTOCK_TRY(finish_stream());
    for (const DeviceTensor& parameter : lease->parameters()) {
      std::vector<float> values(parameter.count().value());
      for (std::size_t e = 0; e < values.size(); ++e) values[e] = get(on_host(parameter), e);
      result.parameters.push_back(std::move(values));
    }
  }
  return ok();
}

std::vector<std::uint32_t> Trainer::units_without_gradient(std::uint32_t step) const {
  return options_.units_without_gradient ? options_.units_without_gradient(step)
                                         : std::vector<std::uint32_t>();
}

bool Trainer::is_frozen(std::uint32_t unit) const {
  const auto ids = options_.model.parameters_of(unit);
  return std::all_of(ids.begin(), ids.end(), [this](ParameterId id) { return is_frozen(id); });
}

std::vector<std::uint32_t> Trainer::order_of_use(std::uint32_t step, std::uint32_t micro) const {
  if (options_.order_of_use) return options_.order_of_use(step, micro);
  std::vector<std::uint32_t> order(options_.model.units.size());
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

void make_durable(RunOptions& options, std::vector<std::filesystem::path> directories, Commits commits) {
  options.begins_where_restored = true;
  options.config.penstock.durable_directories = std::move(directories);
  options.restore = [](Engine& engine) -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto resumed, engine.resume());
    if (resumed) return ok();
    return engine.initialize([](ParameterId parameter, std::uint64_t first, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = initial_value(parameter, first + i);
    });
  };
  const auto in_progress = std::make_shared<std::vector<char>>(options.ranks);  // each rank's own
  options.without_leases = [=](Engine& engine, const RunOptions::ProgramPoint& point) -> Result<void> {
    if (point.unit != 0 || point.micro_batch != 0 || point.place != RunOptions::ProgramPoint::Place::forward)
      return ok();
    if (commits == Commits::at_once) {
      PENSTOCK_TRY(engine.commit());
      return ok();
    }
    if (std::exchange((*in_progress)[point.rank], 1) != 0) PENSTOCK_TRY(engine.finish_commit());
    return engine.begin_commit();
  };
}

float initial_value(ParameterId parameter, std::uint64_t element) {
  return fraction((element + 1) * 0x9e3779b97f4a7c15u + parameter.unit * 77 + parameter.index);
}

float fake_gradient(float weight, std::uint32_t rank, std::uint32_t step, std::uint32_t micro_batch,
                    ParameterId parameter, std::uint64_t element) {
  return gradient_of(weight, gradient_key(rank, step, micro_batch, parameter), element);
}

}  // namespace penstock::zero::test
