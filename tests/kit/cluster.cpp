#include "kit/cluster.hpp"
#include "swap/runtime_internals.hpp"

#include <penstock/base/check.hpp>
#include <penstock/zero/comm/in_process_group.hpp>
#include "kernels/host_compute.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <mutex>
#include <thread>

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

/// Element `i` of a tensor in fp32 or bf16.
float get(const DeviceTensor& tensor, std::size_t i) {
  const HostSpan bytes = HostDevice::bytes(tensor.bytes);
  return tensor.dtype == DType::fp32 ? bytes.as<float>()[i] : widen(bytes.as<std::uint16_t>()[i]);
}
void put(const DeviceTensor& tensor, std::size_t i, float value) {
  const HostSpan bytes = HostDevice::bytes(tensor.bytes);
  if (tensor.dtype == DType::fp32) {
    bytes.as<float>()[i] = value;
  } else {
    bytes.as<std::uint16_t>()[i] = narrow(value);
  }
}

/// One rank with its runtime, device and engine.
class SimulatedRank final : public swap::IdleHandler {
  using Place = RunOptions::ProgramPoint::Place;

 public:
  SimulatedRank(const RunOptions& options, std::uint32_t number, penstock::test::RankScheduler* scheduler,
                tiers::SimClock& clock, std::vector<SimulatedRank*>& all)
      : options_(options), number_(number), scheduler_(scheduler), clock_(clock), all_(all) {}

  Result<void> open(const std::shared_ptr<InProcessGroup>& group, const std::filesystem::path& directory,
                    RunResult& result) {
    Config config = options_.config;
    for (OffloadConfig* offload : {&config.offload_param, &config.offload_optimizer}) {
      if (offload->device == OffloadDevice::nvme) offload->nvme_paths.assign(options_.paths, directory);
    }
    config.gradient_accumulation_steps = options_.configured_micro_batches.value_or(options_.micro_batches);
    workers_ = *parallel::Workers::create({.threads = options_.threads});
    auto created = Rank::create(
        {.config = config,
         .model = options_.model,
         .identity = RankIdentity::local(number_, options_.ranks),
         .make_accelerator = [this](ByteCount engine_budget) { return make_accelerator(engine_budget); },
         .group = in_process_membership(group, number_),
         .workers = &*workers_,
         .hooks = {
             .runtime_options = [this](swap::RuntimeOptions& options) { simulate(options); },
             .engine_options =
                 [this](Engine::Options& options) {
                   if (options_.spoil_engine_config) options_.spoil_engine_config(options.config);
                 },
             .engine_destroyed = [this, &result](swap::Runtime& runtime) { collect(runtime, result); }}});
    if (!created) return created.error();
    rank_ = std::move(*created);
    engine_ = &rank_->engine();
    runtime_ = &rank_->runtime();
    stream_ = *device_->create_stream();
    done_ = *device_->create_event();
    if (options_.before_initialize) options_.before_initialize(*engine_, *stream_);
    const auto fill = [this](ParameterId parameter, std::uint64_t first, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] =
            options_.initial ? options_.initial(parameter, first + i) : initial_value(parameter, first + i);
      }
    };
    return persist(result,
                   [&] { return options_.restore ? options_.restore(*engine_) : engine_->initialize(fill); });
  }

  Result<void> train(RunResult& result) {
    for (std::uint32_t step = options_.first_step; step < options_.steps; ++step) {
      if (options_.before_step) options_.before_step(step, number_, *runtime_);
      auto outcome = try_step(step, result);
      for (attempt_ = 0; !outcome && outcome.error().code() == ErrorCode::interrupted;) {
        result.interruptions.push_back(outcome.error().message());
        PENSTOCK_TRY(engine_->abandon_step(*stream_, "the loss is NaN"));
        ++attempt_;
        outcome = try_step(step, result);
      }
      if (!outcome) return outcome.error();
      result.outcomes.push_back(*outcome);
    }
    if (options_.after_steps) PENSTOCK_TRY(options_.after_steps(*engine_));
    auto digest = persist(result, [&] { return engine_->digest(); });
    if (!digest) return digest.error();
    result.digest = *digest;
    compare_with_prediction(result);
    for (std::uint32_t unit = 0; unit < options_.model.units.size(); ++unit) {
      auto lease = persist(result, [&] { return engine_->acquire(unit, *stream_); });
      if (!lease) return lease.error();
      PENSTOCK_TRY(finish_stream());
      for (const DeviceTensor& parameter : lease->parameters()) {
        std::vector<float> values(parameter.count().value());
        for (std::size_t e = 0; e < values.size(); ++e) values[e] = get(parameter, e);
        result.parameters.push_back(std::move(values));
      }
    }
    return ok();
  }

  void close() {
    if (!rank_) return;
    PENSTOCK_CHECK(finish_stream());
    stream_.reset();
    done_.reset();
    engine_ = nullptr;
    rank_.reset();
    runtime_ = nullptr;
    device_ = nullptr;
    disks_.clear();
    PENSTOCK_CHECK(disk_.open_file_count() == 0);
  }

  void idle() override {
    scheduler_->yield([this](std::uint64_t choice) { return pass_time(choice); });
  }

 private:
  Result<Accelerator> make_accelerator(ByteCount memory) {
    Accelerator made = make_host_accelerator(memory);
    auto device = std::make_unique<HostDevice>(
        HostDevice::Options{.memory = memory + options_.device_memory_of_trainer,
                            .mode = options_.seed ? HostDevice::Mode::deferred : HostDevice::Mode::eager,
                            .seed = options_.seed.value_or(0) * 31 + number_,
                            .location = options_.device_memory});
    device_ = device.get();
    made.device = std::move(device);
    return made;
  }

  /// Sets the options of the runtime's paths. With a seed, replaces them with simulated disks, which this thread drives.
  void simulate(swap::RuntimeOptions& options) {
    for (swap::PathOptions& path : options.paths) {
      path.weight = 1;
      path.request_max = options_.request_max;
      path.engine = options_.engine;
      if (!options_.seed) continue;
      path.file_system = &disk_;
      path.clock = &clock_;
      path.make_engine = [this](const tiers::File::Properties&) -> Result<std::unique_ptr<tiers::IoEngine>> {
        auto engine = std::make_unique<tiers::SimEngine>(disk_, clock_, *options_.seed + number_);
        tiers::SimEngine* const simulated = engine.get();
        auto faulty = std::make_unique<tiers::FaultEngine>(
            std::move(engine), number_ == 0 && disks_.empty() ? options_.faults : tiers::FaultPlan{}, clock_);
        disks_.push_back({simulated, faulty.get()});
        return faulty;
      };
    }
    if (options_.seed) options.idle_handler = this;
  }

  /// Collects the results after the engine was destroyed.
  void collect(swap::Runtime& runtime, RunResult& result) {
    PENSTOCK_CHECK(runtime.tensors().empty());  // the engine removes the tensors that it added
    for (std::string& message : runtime.take_messages()) result.messages.push_back(std::move(message));
    for (const Disk& disk : disks_) {
      result.requests += disk.faults->accepted();
      result.injected += disk.faults->injected();
    }
    const auto traffic = runtime.ledger().traffic();
    result.bytes_read += traffic.read;
    result.bytes_written += traffic.written;
    result.host_peak = std::max(result.host_peak, runtime.ledger().peak(tiers::Tier::host));
    result.device_peak = runtime.ledger().peak(tiers::Tier::device);
    result.host_budget = runtime.host_memory().size();
  }

  /// Repeats a call while it fails and the engine can continue.
  template <class Call>
  auto persist(RunResult& result, const Call& call) -> std::invoke_result_t<Call> {
    auto outcome = call();
    for (std::uint32_t attempt = 1; !outcome && attempt < options_.attempts; ++attempt) {
      if (engine_->status() == Engine::Status::failed) break;
      if (engine_->status() == Engine::Status::step_incomplete && options_.when_incomplete) {
        options_.when_incomplete(*engine_, *stream_);
      }
      ++result.repeated;
      outcome = call();
    }
    return outcome;
  }

  Result<StepOutcome> try_step(std::uint32_t step, RunResult& result) {
    PENSTOCK_TRY(engine_->begin_step({.micro_batches = options_.micro_batches,
                                      .learning_rate = {},
                                      .units_without_gradient = units_without_gradient(step)}));
    for (std::uint32_t micro = 0; micro < options_.micro_batches; ++micro) {
      PENSTOCK_TRY(run(step, micro, result));
      if (options_.after_micro_batch) options_.after_micro_batch(*engine_);
    }
    PENSTOCK_TRY(pass({number_, step, attempt_, options_.micro_batches, 0, Place::before_step}));
    return persist(result, [&] { return engine_->step(); });
  }
  /// Fails as an exception of the trainer's own code would.
  [[nodiscard]] Result<void> pass(const RunOptions::ProgramPoint& point) const {
    const auto code = options_.trainer_error ? options_.trainer_error(point) : std::nullopt;
    if (code) return Error(*code, "the test's trainer");
    return ok();
  }

  /// One forward and backward. Each unit's forward adds a checksum of its weights to `activation`, and the
  /// backward's gradients depend on the weights, read when the stream gets there.
  Result<void> run(std::uint32_t step, std::uint32_t micro, RunResult& result) {
    const ModelLayout& model = options_.model;
    const auto units = static_cast<std::uint32_t>(model.units.size());
    for (std::uint32_t unit = 0; unit < units; ++unit) {
      auto lease = persist(result, [&] { return engine_->acquire(unit, *stream_); });
      if (!lease) return lease.error();
      PENSTOCK_TRY(pass({number_, step, attempt_, micro, unit, Place::forward}));
      for (const DeviceTensor& parameter : lease->parameters()) {
        stream_->handle().host_queue()->enqueue([this, parameter] {
          for (std::size_t e = 0; e < parameter.count().value(); ++e) {
            activation_ = activation_ * 31 + std::bit_cast<std::uint32_t>(get(parameter, e));
          }
        });
      }
    }
    for (std::uint32_t unit = units; unit-- > 0;) {
      auto lease = persist(result, [&] { return engine_->acquire(unit, *stream_); });
      if (!lease) return lease.error();
      PENSTOCK_TRY(pass({number_, step, attempt_, micro, unit, Place::backward}));
      if (has_no_gradient(step, unit)) continue;
      if (options_.gradients != RunOptions::Gradients::of_engine) {
        PENSTOCK_TRY(reduce_own_gradients(step, micro, unit, *lease));
        continue;
      }
      auto gradients = persist(result, [&] { return engine_->gradients(unit, *stream_); });
      if (!gradients) return gradients.error();
      for (std::uint32_t i = 0; i < lease->parameters().size(); ++i) {
        enqueue_backward(step, micro, model.parameters_of(unit)[i], lease->parameters()[i],
                         gradients->slots()[i]);
      }
      PENSTOCK_TRY(pass({number_, step, attempt_, micro, unit, Place::gradients_written}));
      lease->end();
      PENSTOCK_TRY(engine_->reduce(std::move(*gradients), *stream_));
    }
    return ok();
  }

  [[nodiscard]] std::vector<std::uint32_t> units_without_gradient(std::uint32_t step) const {
    return options_.units_without_gradient ? options_.units_without_gradient(step)
                                           : std::vector<std::uint32_t>();
  }
  [[nodiscard]] bool has_no_gradient(std::uint32_t step, std::uint32_t unit) const {
    const auto units = units_without_gradient(step);
    return std::find(units.begin(), units.end(), unit) != units.end();
  }

  void enqueue_backward(std::uint32_t step, std::uint32_t micro, ParameterId id, const DeviceTensor& weights,
                        const GradientSlot& slot) {
    const float scale = options_.gradient_scale ? options_.gradient_scale(step, number_) : 1.0f;
    stream_->handle().host_queue()->enqueue([this, step, micro, id, scale, weights, slot] {
      for (std::size_t e = 0; e < weights.count().value(); ++e) {
        const float value = scale * fake_gradient(get(weights, e), number_, step, micro, id, e);
        put(slot.tensor, e, slot.accumulate ? get(slot.tensor, e) + value : value);
      }
    });
  }

  /// The backward of a unit into memory of the trainer.
  Result<void> reduce_own_gradients(std::uint32_t step, std::uint32_t micro, std::uint32_t unit,
                                    UnitLease& lease) {
    std::vector<GradientSource> sources;
    for (std::uint32_t i = 0; i < lease.parameters().size(); ++i) {
      const DeviceTensor weights = lease.parameters()[i];
      const HostSpan bytes(std::span(own_gradients_.emplace_back(weights.count().value())));
      const DeviceTensor mine{
          DeviceSpan(DeviceAddress(reinterpret_cast<std::uintptr_t>(bytes.data())), bytes.size()),
          DType::fp32};
      enqueue_backward(step, micro, options_.model.parameters_of(unit)[i], weights, {.tensor = mine});
      if (options_.gradients == RunOptions::Gradients::on_host) {
        sources.emplace_back(HostTensor{bytes, DType::fp32});
      } else {
        sources.emplace_back(mine);
      }
    }
    lease.end();
    return engine_->reduce(unit, sources, *stream_);
  }

  /// Waits until the stream has run; other ranks run meanwhile.
  Result<void> finish_stream() {
    PENSTOCK_TRY(stream_->record(*done_));
    return swap::RuntimeInternals(*runtime_).wait_for(*done_);
  }

  void compare_with_prediction(RunResult& result) const {
    const tiers::Ledger& ledger = runtime_->ledger();
    for (std::size_t p = 0; p < tiers::purpose_count; ++p) {
      const auto purpose = tiers::Purpose(p);
      for (const auto tier : {tiers::Tier::device, tiers::Tier::host, tiers::Tier::nvme}) {
        const auto line = ledger.line(tier, purpose);
        if (line.peak > line.predicted) {
          result.above_prediction.push_back(std::string(to_string(tier)) + " " +
                                            std::string(to_string(purpose)) + " " + to_string(line.peak) +
                                            " of " + to_string(line.predicted));
        }
      }
      const auto traffic = ledger.traffic(purpose);
      if (traffic.read > traffic.predicted_read || traffic.written > traffic.predicted_written) {
        result.above_prediction.push_back(
            "traffic of " + std::string(to_string(purpose)) + " " + to_string(traffic.read) + " of " +
            to_string(traffic.predicted_read) + " read, " + to_string(traffic.written) + " of " +
            to_string(traffic.predicted_written) + " written");
      }
    }
  }

  /// Executes one due event: an operation of a stream or a completion of a disk.
  bool pass_time(std::uint64_t choice) {
    const bool stream_first = choice % 2 == 0;
    for (int attempt = 0; attempt < 2; ++attempt) {
      if ((attempt == 0) == stream_first) {
        for (std::size_t i = 0; i < all_.size(); ++i) {
          SimulatedRank& rank = *all_[(choice / 2 + i) % all_.size()];
          if (rank.device_ && rank.device_->run_one()) return true;
        }
      } else {
        TimePoint due = forever;
        for (const SimulatedRank* rank : all_) {
          for (const Disk& disk : rank->disks_) {
            due = std::min({due, disk.engine->next_due(), disk.faults->next_due()});
          }
          if (!rank->runtime_) continue;
          due = std::min(due, rank->runtime_->next_deadline());
        }
        if (due != forever && due > clock_.now()) {
          clock_.advance_to(due);
          return true;
        }
      }
    }
    return false;
  }

  const RunOptions& options_;
  const std::uint32_t number_;
  penstock::test::RankScheduler* scheduler_;
  tiers::SimClock& clock_;
  std::vector<SimulatedRank*>& all_;
  tiers::SimDisk disk_{{}};
  struct Disk {
    tiers::SimEngine* engine;
    tiers::FaultEngine* faults;
  };
  std::vector<Disk> disks_;
  std::optional<parallel::Workers> workers_;
  std::unique_ptr<Rank> rank_;
  // The rank's, also while it is made and destroyed: this thread drives them then too.
  HostDevice* device_ = nullptr;
  std::deque<std::vector<float>> own_gradients_;  // of the trainer, until the stream has run
  swap::Runtime* runtime_ = nullptr;
  Engine* engine_ = nullptr;
  std::unique_ptr<tiers::Stream> stream_;
  std::unique_ptr<tiers::Event> done_;
  std::uint64_t activation_ = 0;
  std::uint32_t attempt_ = 0;
};

}  // namespace

ModelLayout small_model() {
  ModelLayout model;
  model.groups = {{.weight_decay = true}, {.weight_decay = false}};
  model.units = {
      {.name = "embed",
       .parameters = {{"table", ElementCount(5000), 0}, {"positions", ElementCount(777), 0}}},
      {.name = "block",
       .parameters = {{"weight", ElementCount(40'001), 0},
                      {"bias", ElementCount(130), 1},
                      {"out", ElementCount(9'000), 0}}},
      {.name = "head", .parameters = {{"gain", ElementCount(1), 1}}, .shared = {{0, 0}}},
  };
  return model;
}

ModelLayout deep_model() {
  ModelLayout model;
  model.groups = {{.weight_decay = true}, {.weight_decay = false}};
  for (int i = 0; i < 8; ++i) {
    model.units.push_back(
        {.name = "layer" + std::to_string(i),
         .parameters = {{"weight", ElementCount(20'000), 0}, {"bias", ElementCount(200), 1}}});
  }
  model.units.back().shared = {{0, 0}};
  return model;
}

Config RunOptions::default_config() {
  Config config;
  config.dtype = config.grad_accum_dtype = DType::bf16;
  config.optimizer.learning_rate = 0.01f;
  config.optimizer.weight_decay = 0.1f;
  config.penstock.tile_elements = ElementCount(16'384);
  config.penstock.tiles_in_flight = 2;
  return config;
}

float initial_value(ParameterId parameter, std::uint64_t element) {
  const std::uint64_t hash = (element + 1) * 0x9e3779b97f4a7c15u + parameter.unit * 77 + parameter.index;
  return static_cast<float>(static_cast<std::int64_t>(hash) >> 40) * 0x1p-24f;
}

float fake_gradient(float weight, std::uint32_t rank, std::uint32_t step, std::uint32_t micro_batch,
                    ParameterId parameter, std::uint64_t element) {
  const std::uint64_t key =
      ((rank * 131 + step) * 131 + micro_batch) * 131 + parameter.unit * 7 + parameter.index;
  const std::uint64_t hash = (element + 1) * 0xbf58476d1ce4e5b9u + key * 0x94d049bb133111ebu;
  return 0.25f * weight + static_cast<float>(static_cast<std::int64_t>(hash) >> 40) * 0x1p-26f;
}

RunResult train(const RunOptions& options) {
  penstock::test::ScratchDirectory directory;
  tiers::SimClock clock;
  penstock::test::RankScheduler scheduler(options.seed.value_or(0));
  auto group = InProcessGroup::create(options.ranks).value();
  std::vector<SimulatedRank*> all;
  std::vector<std::unique_ptr<SimulatedRank>> ranks;
  for (std::uint32_t r = 0; r < options.ranks; ++r) {
    ranks.push_back(std::make_unique<SimulatedRank>(options, r, &scheduler, clock, all));
    all.push_back(ranks.back().get());
  }

  RunResult result;
  std::vector<RunResult> results(options.ranks);
  const auto body = [&](std::size_t r) {
    Result<void> outcome = ranks[r]->open(group, directory.path(), results[r]);
    if (outcome) outcome = ranks[r]->train(results[r]);
    if (!outcome) {
      results[r].error = outcome.error();
      group->abort(static_cast<std::uint32_t>(r), outcome.error());
    }
    ranks[r]->close();
  };
  if (options.seed) {
    scheduler.run(options.ranks, body);
  } else {
    std::vector<std::thread> threads;
    for (std::uint32_t r = 0; r < options.ranks; ++r) threads.emplace_back(body, r);
    for (std::thread& thread : threads) thread.join();
  }
  result = results[0];
  for (std::uint32_t r = 1; r < options.ranks; ++r) {
    if (!result.error || (results[r].error && result.error->code() == ErrorCode::peer_failed)) {
      if (results[r].error) result.error = results[r].error;
    }
    for (const std::string& line : results[r].above_prediction) result.above_prediction.push_back(line);
    result.bytes_read += results[r].bytes_read;
    result.bytes_written += results[r].bytes_written;
    result.repeated += results[r].repeated;
    result.interruptions.insert(result.interruptions.end(), results[r].interruptions.begin(),
                                results[r].interruptions.end());
    result.host_peak = std::max(result.host_peak, results[r].host_peak);
  }
  PENSTOCK_CHECK(directory.entry_count() == 0);  // no file is left, even after an error
  return result;
}

}  // namespace penstock::zero::test
