#include "kit/cluster.hpp"
#include "kit/real_time_engine.hpp"
#include "kit/trainer.hpp"

#include <penstock/base/check.hpp>
#include <penstock/zero/comm/in_process_group.hpp>

#include <algorithm>
#include <numeric>
#include <thread>

namespace penstock::zero::test {

namespace {

using tiers::HostDevice;

/// One rank with its disks, its device and its trainer.
class SimulatedRank final : public swap::IdleHandler {
 public:
  SimulatedRank(const RunOptions& options, std::uint32_t number, penstock::test::RankScheduler* scheduler,
                tiers::SimClock& clock, std::vector<SimulatedRank*>& all)
      : options_(options), number_(number), scheduler_(scheduler), clock_(clock), all_(all) {}

  Result<void> open(const GroupMembership& group, const std::filesystem::path& directory, RunResult& result) {
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
         .group = group,
         .workers = &*workers_,
         .update = options_.update,
         .hooks = {
             .runtime_options = [this](swap::RuntimeOptions& options) { simulate(options); },
             .engine_options =
                 [this](Engine::Options& options) {
                   if (options_.spoil_engine_config) options_.spoil_engine_config(options.config);
                 },
             .engine_destroyed = [this, &result](swap::Runtime& runtime) { collect(runtime, result); }}});
    if (!created) return created.error();
    rank_ = std::move(*created);
    runtime_ = &rank_->runtime();
    trainer_.emplace(options_, number_, rank_->engine(), *runtime_, rank_->device());
    return trainer_->open(result);
  }

  Result<void> train(RunResult& result) {
    const auto trained = trainer_->train(result);
    result.engine_failed = rank_->engine().status() == Engine::Status::failed;
    PENSTOCK_TRY(trained);
    compare_with_prediction(result);
    return trainer_->gather_parameters(result);
  }

  void close() {
    if (!rank_) return;
    // The stream of a device that is lost runs nothing more.
    const bool finished = trainer_->finish_stream().has_value();
    PENSTOCK_CHECK(finished || options_.accelerator);
    trainer_.reset();
    rank_.reset();
    runtime_ = nullptr;
    device_ = nullptr;
    sim_engines_.clear();
    fault_engines_.clear();
    // A file with a request that hangs stays open.
    const bool hangs =
        std::any_of(options_.faults.begin(), options_.faults.end(),
                    [](const tiers::Fault& fault) { return fault.effect == tiers::Fault::Effect::hang; });
    PENSTOCK_CHECK(hangs || disk_.open_file_count() == 0);
  }

  void idle() override {
    scheduler_->yield([this](std::uint64_t choice) { return pass_time(choice); });
  }

 private:
  Result<Accelerator> make_accelerator(ByteCount memory) {
    if (options_.accelerator) return options_.accelerator->make(number_, memory);
    Accelerator made = make_host_accelerator(memory);
    auto device = std::make_unique<HostDevice>(
        HostDevice::Options{.memory = memory + options_.device_memory_of_trainer,
                            .mode = stream_mode(),
                            .seed = options_.seed.value_or(0) * 31 + number_,
                            .location = options_.device_memory,
                            .speeds = options_.streams.value_or(HostDevice::Speeds{})});
    device_ = device.get();
    made.device = std::move(device);
    if (options_.change_accelerator) options_.change_accelerator(made);
    return made;
  }

  HostDevice::Mode stream_mode() const {
    if (options_.seed) return HostDevice::Mode::deferred;
    return options_.streams ? HostDevice::Mode::threaded : HostDevice::Mode::eager;
  }

  /// Sets the options of the runtime's paths. Simulates their disks if the run has simulated ones; with a seed, this
  /// thread drives them.
  void simulate(swap::RuntimeOptions& options) {
    for (swap::PathOptions& path : options.paths) {
      path.weight = 1;
      path.request_max = options_.request_max;
      path.engine = options_.engine;
      if (!options_.has_simulated_disks()) continue;
      path.file_system = &disk_;
      if (options_.seed) path.clock = &clock_;
      path.make_engine = [this](const tiers::File::Properties&) { return make_engine(); };
      path.decorate = [this, &clock = *path.clock](std::unique_ptr<tiers::IoEngine> engine) {
        const bool faulty = number_ == options_.faulty_rank && fault_engines_.empty();
        auto decorated = std::make_unique<tiers::FaultEngine>(
            std::move(engine), faulty ? options_.faults : tiers::FaultPlan{}, clock);
        fault_engines_.push_back(decorated.get());
        return decorated;
      };
    }
    if (options_.seed) options.idle_handler = this;
  }

  Result<std::unique_ptr<tiers::IoEngine>> make_engine() {
    const std::uint64_t seed = options_.seed.value_or(0) + number_;
    if (!options_.seed) return std::make_unique<penstock::test::RealTimeEngine>(disk_, seed);
    auto engine = std::make_unique<tiers::SimEngine>(disk_, clock_, seed);
    sim_engines_.push_back(engine.get());
    return engine;
  }

  /// Collects the results after the engine was destroyed.
  void collect(swap::Runtime& runtime, RunResult& result) {
    // The engine removes the tensors that it added, but for those that a device which failed may still use.
    PENSTOCK_CHECK(runtime.tensors().empty() || options_.accelerator);
    for (std::string& message : runtime.take_messages()) result.messages.push_back(std::move(message));
    for (const tiers::FaultEngine* engine : fault_engines_) {
      result.requests += engine->accepted();
      result.injected += engine->injected();
    }
    const auto traffic = runtime.ledger().traffic();
    result.bytes_read += traffic.read;
    result.bytes_written += traffic.written;
    result.host_peak = std::max(result.host_peak, runtime.ledger().peak(tiers::Tier::host));
    result.device_peak = runtime.ledger().peak(tiers::Tier::device);
    result.host_budget = runtime.host_memory().size();
  }

  /// What flats may take where a trainer does not use units in the planned order.
  [[nodiscard]] ByteCount most_in_any_order(tiers::Tier tier, tiers::Purpose purpose) const {
    if (tier != tiers::Tier::device) return {};
    if (purpose == tiers::Purpose::gathered_flat) return rank_->plan().device_gathered_max;
    return purpose == tiers::Purpose::full_gradient ? rank_->plan().device_gradients_max : ByteCount();
  }

  void compare_with_prediction(RunResult& result) const {
    const tiers::Ledger& ledger = runtime_->ledger();
    for (std::size_t p = 0; p < tiers::purpose_count; ++p) {
      const auto purpose = tiers::Purpose(p);
      for (const auto tier : {tiers::Tier::device, tiers::Tier::host, tiers::Tier::nvme}) {
        const auto line = ledger.line(tier, purpose);
        const ByteCount most = std::max(line.predicted, most_in_any_order(tier, purpose));
        if (line.peak > most) {
          result.above_prediction.push_back(std::string(to_string(tier)) + " " +
                                            std::string(to_string(purpose)) + " " + to_string(line.peak) +
                                            " of " + to_string(most));
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
          for (const tiers::SimEngine* engine : rank->sim_engines_) due = std::min(due, engine->next_due());
          for (const tiers::FaultEngine* engine : rank->fault_engines_)
            due = std::min(due, engine->next_due());
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
  tiers::SimDisk disk_{options_.disk ? options_.disk(number_) : tiers::SimDisk::Options()};
  std::vector<tiers::SimEngine*> sim_engines_;  // that this thread drives
  std::vector<tiers::FaultEngine*> fault_engines_;
  std::optional<parallel::Workers> workers_;
  std::unique_ptr<Rank> rank_;
  // The rank's, also while it is made and destroyed: this thread drives them then too. Null for another device.
  HostDevice* device_ = nullptr;
  swap::Runtime* runtime_ = nullptr;
  std::optional<Trainer> trainer_;
};

}  // namespace

ModelLayout small_model() {
  ModelLayout model;
  model.groups = {{}, {.weight_decay = 0}};
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
  model.groups = {{}, {.weight_decay = 0}};
  for (int i = 0; i < 8; ++i) {
    model.units.push_back(
        {.name = "layer" + std::to_string(i),
         .parameters = {{"weight", ElementCount(20'000), 0}, {"bias", ElementCount(200), 1}}});
  }
  model.units.back().shared = {{0, 0}};
  return model;
}

ModelLayout random_model(penstock::test::SeededRandom& random) {
  ModelLayout model;
  model.groups = {{}, {.weight_decay = 0}};
  const std::uint64_t units = 2 + random.below(7);
  for (std::uint32_t u = 0; u < units; ++u) {
    UnitLayout& unit = model.units.emplace_back(UnitLayout{.name = std::to_string(u)});
    const std::uint64_t parameters = 1 + random.below(3);
    for (std::uint64_t p = 0; p < parameters; ++p) {
      const std::uint64_t bound = random.below(3) == 0 ? 300 : 30'000;
      unit.parameters.push_back({std::to_string(p), ElementCount(1 + random.below(bound)),
                                 static_cast<std::uint32_t>(random.below(2))});
    }
    if (u > 0 && random.below(3) == 0)
      unit.shared.push_back({static_cast<std::uint32_t>(random.below(u)), 0});
  }
  return model;
}

std::vector<std::uint32_t> random_order(std::uint64_t seed, std::size_t units) {
  penstock::test::SeededRandom random(seed);
  std::vector<std::uint32_t> order(units);
  std::iota(order.begin(), order.end(), 0u);
  for (std::size_t i = units; random.below(2) == 0 && i > 1; --i)
    std::swap(order[i - 1], order[random.below(i)]);
  for (std::uint64_t again = random.below(4); again > 0; --again) {
    const auto at = static_cast<std::ptrdiff_t>(random.below(order.size() + 1));
    order.insert(order.begin() + at, static_cast<std::uint32_t>(random.below(units)));
  }
  return order;
}

std::string RunFormat::name() const {
  return std::string(to_string(format)) + "_" + std::string(to_string(parameters));
}

bool RunFormat::must_be_offloaded() const {
  return format == cpu_adam::StateFormat::moments && parameters != DType::fp32;
}

void RunFormat::set(Config& config) const {
  using cpu_adam::StateFormat;
  config.dtype = config.grad_accum_dtype = parameters;
  config.penstock.state_format = parameters == DType::fp32 ? StateFormat::fp32 : format;
  if (must_be_offloaded() && config.offload_optimizer.device == OffloadDevice::none)
    config.offload_optimizer.device = OffloadDevice::cpu;
}

Config RunOptions::default_config() {
  Config config;
  config.stage = 3;
  config.param_persistence_threshold = {};  // the models are so small that none would be dropped
  config.dtype = config.grad_accum_dtype = DType::bf16;
  config.optimizer.learning_rate = 0.01f;
  config.optimizer.weight_decay = 0.1f;
  config.penstock.tile_elements = ElementCount(16'384);
  config.penstock.tiles_in_flight = 2;
  return config;
}

std::function<std::optional<ErrorCode>(const RunOptions::ProgramPoint&)> abandons_anywhere(
    std::uint64_t seed) {
  return [seed](const RunOptions::ProgramPoint& point) -> std::optional<ErrorCode> {
    if (point.attempt >= 3) return std::nullopt;
    const std::uint64_t key =
        ((((seed * 7 + point.rank) * 31 + point.step) * 31 + point.attempt) * 31 + point.micro_batch) * 31 +
        point.unit * 5 + static_cast<std::uint64_t>(point.place);
    const bool abandons = penstock::test::SeededRandom(key).below(40) == 0;
    return abandons ? std::optional(ErrorCode::interrupted) : std::nullopt;
  };
}

ByteCount smallest_host_budget(RunOptions options) {
  Config& config = options.config;
  config.penstock.host_budget = {};
  config.offload_param.nvme_paths = config.offload_optimizer.nvme_paths = {"."};
  const auto memory = options.accelerator ? tiers::DeviceMemory::separate : options.device_memory;
  return plan_memory(config, options.model, options.ranks, options.ranks, memory)->host_minimum *
         options.ranks;
}

RunResult train(const RunOptions& options) {
  PENSTOCK_CHECK(!options.accelerator || !options.seed);
  PENSTOCK_CHECK(options.faults.empty() || options.has_simulated_disks());
  PENSTOCK_CHECK(options.seed || !options.disk || options.paths == 1);  // a SimDisk is used by one thread
  penstock::test::ScratchDirectory directory;
  tiers::SimClock clock;
  penstock::test::RankScheduler scheduler(options.seed.value_or(0));
  const auto group = InProcessGroup::create(options.ranks).value();
  std::vector<GroupMembership> memberships;
  std::vector<SimulatedRank*> all;
  std::vector<std::unique_ptr<SimulatedRank>> ranks;
  for (std::uint32_t r = 0; r < options.ranks; ++r) {
    memberships.push_back(options.membership ? options.membership(r) : in_process_membership(group, r));
    ranks.push_back(std::make_unique<SimulatedRank>(options, r, &scheduler, clock, all));
    all.push_back(ranks.back().get());
  }

  RunResult result;
  std::vector<RunResult> results(options.ranks);
  const auto body = [&](std::size_t r) {
    Result<void> outcome = ranks[r]->open(memberships[r], directory.path(), results[r]);
    if (outcome) outcome = ranks[r]->train(results[r]);
    if (!outcome) {
      results[r].error = outcome.error();
      memberships[r].abandon(outcome.error());
    }
    ranks[r]->close();
  };
  if (options.only_rank) {
    body(*options.only_rank);
    return results[*options.only_rank];
  }
  if (options.seed) {
    scheduler.run(options.ranks, body);
  } else {
    std::vector<std::thread> threads;
    for (std::uint32_t r = 0; r < options.ranks; ++r) threads.emplace_back(body, r);
    for (std::thread& thread : threads) thread.join();
  }
  result = results[0];
  for (const RunResult& of_rank : results) result.errors.push_back(of_rank.error);
  for (std::uint32_t r = 1; r < options.ranks; ++r) {
    if (!result.error || (results[r].error && result.error->code() == ErrorCode::peer_failed)) {
      if (results[r].error) result.error = results[r].error;
    }
    for (const std::string& line : results[r].above_prediction) result.above_prediction.push_back(line);
    result.bytes_read += results[r].bytes_read;
    result.bytes_written += results[r].bytes_written;
    result.injected += results[r].injected;
    result.repeated += results[r].repeated;
    result.interruptions.insert(result.interruptions.end(), results[r].interruptions.begin(),
                                results[r].interruptions.end());
    result.host_peak = std::max(result.host_peak, results[r].host_peak);
  }
  PENSTOCK_CHECK(directory.entry_count() == 0);  // no file is left, even after an error
  return result;
}

}  // namespace penstock::zero::test
