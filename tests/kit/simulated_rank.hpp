#pragma once

#include "kit/cluster.hpp"
#include "kit/listed_engine.hpp"
#include "kit/real_time_engine.hpp"
#include "kit/trainer.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {

/// One rank with its disks, its device and its trainer.
class SimulatedRank final : public swap::IdleHandler {
 public:
  SimulatedRank(const RunOptions& options, std::uint32_t number, penstock::test::RankScheduler* scheduler,
                tiers::SimClock& clock, std::vector<SimulatedRank*>& all)
      : options_(options), number_(number), scheduler_(scheduler), clock_(clock), all_(all) {}

  /// `groups`: of the engines.
  Result<void> open(const std::vector<GroupMembership>& groups, const std::filesystem::path& directory,
                    RunResult& result) {
    Config config = config_of(options_, directory);
    if (!options_.machines.empty()) config.penstock.durable_directories = {options_.machines[number_]};
    std::vector<EngineBeside> beside;
    for (const RunOptions& other : options_.beside)
      beside.push_back({config_of(other, directory), other.model, groups[beside.size() + 1]});
    groups_ = groups;
    result.beside.resize(beside.size());
    workers_ = *parallel::Workers::create({.threads = options_.threads});
    auto created = Rank::create(
        {.config = config,
         .model = options_.model,
         .identity = identity(),
         .make_accelerator = [this](ByteCount engine_budget) { return make_accelerator(engine_budget); },
         .group = groups[0],
         .workers = &*workers_,
         .update = options_.update,
         .hooks = {.runtime_options = [this](swap::RuntimeOptions& options) { simulate(options); },
                   .durable_files = [this](swap::PathOptions& path) { set_path(path); },
                   .engine_options =
                       [this](Engine::Options& options) {
                         if (options_.spoil_engine_config) options_.spoil_engine_config(options.config);
                       },
                   .engine_destroyed = [this, &result](swap::Runtime& runtime) { collect(runtime, result); }},
         .beside = std::move(beside)});
    if (!created) {
      device_ = nullptr;  // it existed
      return created.error();
    }
    rank_ = std::move(*created);
    runtime_ = &rank_->runtime();
    for (std::size_t engine = 0; engine <= options_.beside.size(); ++engine) {
      const RunOptions& program = engine == 0 ? options_ : options_.beside[engine - 1];
      programs_.emplace_back(program, number_, *rank_, engine,
                             engine == 0 ? result : result.beside[engine - 1]);
    }
    return each([](Program& program) { return program.trainer.open(program.result); });
  }

  [[nodiscard]] RankIdentity identity() const {
    if (options_.machines.empty()) return RankIdentity::local(number_, options_.ranks);
    const auto begin = options_.machines.begin(), own = begin + number_;
    return {.rank = number_,
            .ranks = options_.ranks,
            .local_rank = static_cast<std::uint32_t>(std::count(begin, own, *own)),
            .local_ranks = static_cast<std::uint32_t>(std::count(begin, options_.machines.end(), *own))};
  }

  Result<void> train(RunResult& result) {
    const auto trained = run_programs();
    result.engine_failed = rank_->engine().status() == Engine::Status::failed;
    PENSTOCK_TRY(trained);
    if (std::none_of(result.beside.begin(), result.beside.end(), [](const auto& r) { return r.error; }))
      compare_with_prediction(result);
    return programs_.front().trainer.gather_parameters(result);
  }

  void close() {
    if (!rank_) return;
    // The stream of a device that is lost runs nothing more.
    for (Program& program : programs_) {
      const bool finished = program.trainer.finish_stream().has_value();
      PENSTOCK_CHECK(finished || options_.accelerator);
    }
    programs_.clear();
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
  /// The trainer of one engine.
  struct Program {
    Program(const RunOptions& of_program, std::uint32_t number, Rank& rank, std::size_t engine,
            RunResult& into)
        : options(of_program),
          trainer(of_program, number, *rank.engines()[engine], rank.runtime(), rank.device()),
          result(into) {}
    [[nodiscard]] bool evaluates() const { return options.steps == 0; }

    const RunOptions& options;
    Trainer trainer;
    RunResult& result;
    bool failed = false;
  };

  static Config config_of(const RunOptions& options, const std::filesystem::path& directory) {
    Config config = options.config;
    std::vector<std::filesystem::path> disks{directory};
    for (std::size_t i = 1; i < options.paths; ++i) disks.push_back(directory / std::to_string(i));
    for (OffloadConfig* offload : {&config.offload_param, &config.offload_optimizer}) {
      if (offload->device == OffloadDevice::nvme) offload->nvme_paths = disks;
    }
    config.gradient_accumulation_steps = options.configured_micro_batches.value_or(options.micro_batches);
    return config;
  }

  /// Calls `part` for each engine that has not failed. Returns the first engine's error; records those of the others,
  /// which leave their group.
  template <class Part>
  Result<void> each(const Part& part) {
    Result<void> first = ok();
    for (std::size_t i = 0; i < programs_.size(); ++i) {
      Program& program = programs_[i];
      if (program.failed) continue;
      auto outcome = part(program);
      if (outcome) continue;
      program.failed = true;
      groups_[i].abandon(outcome.error());
      if (i == 0) {
        first = std::move(outcome);
      } else {
        program.result.error = outcome.error();
      }
    }
    return first;
  }

  /// An engine that fails ends its own program only.
  Result<void> run_programs() {
    const auto evaluate = [](Program& program) {
      return program.evaluates() ? program.trainer.evaluate(program.result) : ok();
    };
    Result<void> outcome = ok();
    const auto keep = [&outcome](Result<void> of_part) {
      if (outcome) outcome = std::move(of_part);
    };
    const bool alone = programs_.size() == 1;
    for (std::uint32_t step = first_step_of(options_, rank_->engine());
         step < options_.steps && (outcome || !alone); ++step) {
      keep(each(evaluate));
      keep(each([step](Program& program) {
        return program.evaluates() ? ok() : program.trainer.train_step(step, program.result);
      }));
      keep(each(evaluate));
    }
    keep(each([](Program& program) { return program.trainer.finish(program.result); }));
    return outcome;
  }

  Result<Accelerator> make_accelerator(ByteCount memory) {
    if (options_.accelerator) return options_.accelerator->make(number_, memory);
    Accelerator made = make_host_accelerator(memory);
    auto device = std::make_unique<tiers::HostDevice>(
        tiers::HostDevice::Options{.memory = memory + options_.device_memory_of_trainer,
                                   .mode = stream_mode(),
                                   .seed = options_.seed.value_or(0) * 31 + number_,
                                   .location = options_.device_memory,
                                   .speeds = options_.streams.value_or(tiers::HostDevice::Speeds{})});
    device_ = device.get();
    made.device = std::move(device);
    if (options_.change_accelerator) options_.change_accelerator(made);
    return made;
  }

  tiers::HostDevice::Mode stream_mode() const {
    if (options_.seed) return tiers::HostDevice::Mode::deferred;
    return options_.streams ? tiers::HostDevice::Mode::threaded : tiers::HostDevice::Mode::eager;
  }

  /// Sets the options of the runtime's paths. Simulates their disks if the run has simulated ones; with a seed, this
  /// thread drives them.
  void simulate(swap::RuntimeOptions& options) {
    for (swap::PathOptions& path : options.paths) set_path(path);
    if (options_.seed) options.idle_handler = this;
  }

  void set_path(swap::PathOptions& path) {
    path.weight = 1;
    path.request_max = options_.request_max;
    path.engine = options_.engine;
    if (options_.has_simulated_disks()) simulate_disk(path);
    if (options_.change_path) options_.change_path(number_, path);
  }

  void simulate_disk(swap::PathOptions& path) {
    path.file_system = &disk_;
    if (options_.seed) path.clock = &clock_;
    path.make_engine = [this](const tiers::File::Properties&) { return make_engine(); };
    path.decorate = [this, &clock = *path.clock](std::unique_ptr<tiers::IoEngine> engine) {
      const bool faulty = number_ == options_.faulty_rank && fault_engines_.empty();
      auto decorated = std::make_unique<tiers::FaultEngine>(
          std::move(engine), faulty ? options_.faults : tiers::FaultPlan{}, clock);
      fault_engines_.push_back(decorated.get());
      // Those of a runtime of the engine's own end before the rank.
      auto ended = [this, faults = decorated.get(),
                    simulated = options_.seed ? sim_engines_.back() : nullptr] {
        std::erase(fault_engines_, faults);
        std::erase(sim_engines_, simulated);
      };
      return std::make_unique<penstock::test::ListedEngine>(std::move(decorated), std::move(ended));
    };
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
    result.shards_written = runtime.ledger().traffic(tiers::Purpose::parameter_shard).written;
    result.host_peak = std::max(result.host_peak, runtime.ledger().peak(tiers::Tier::host));
    result.device_peak = runtime.ledger().peak(tiers::Tier::device);
    result.host_budget = runtime.host_memory().size();
  }

  /// What flats may take where a trainer does not use units in the planned order.
  [[nodiscard]] ByteCount most_in_any_order(tiers::Tier tier, tiers::Purpose purpose) const {
    if (tier != tiers::Tier::device) return {};
    ByteCount most;
    for (std::size_t engine = 0; engine < programs_.size(); ++engine) {
      const MemoryPlan& plan = *rank_->plans()[engine];
      if (purpose == tiers::Purpose::gathered_flat) most += plan.device_gathered_max;
      if (purpose == tiers::Purpose::full_gradient) most += plan.device_gradients_max;
    }
    return most;
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
  tiers::SimDisk own_disk_{options_.disk ? options_.disk(number_) : tiers::SimDisk::Options()};
  tiers::SimDisk& disk_ = options_.disks.empty() ? own_disk_ : *options_.disks[number_];
  std::vector<tiers::SimEngine*> sim_engines_;  // that this thread drives
  std::vector<tiers::FaultEngine*> fault_engines_;
  std::optional<parallel::Workers> workers_;
  std::unique_ptr<Rank> rank_;
  // The rank's, also while it is made and destroyed: this thread drives them then too. Null for another device.
  tiers::HostDevice* device_ = nullptr;
  swap::Runtime* runtime_ = nullptr;
  std::vector<GroupMembership> groups_;
  std::deque<Program> programs_;
};

}  // namespace penstock::zero::test
