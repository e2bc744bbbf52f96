#include "kit/cluster.hpp"
#include "kit/seeded_random.hpp"
#include "kit/simulated_rank.hpp"
#include "zero/layout/rank_bytes.hpp"

#include <penstock/base/check.hpp>
#include <penstock/zero/comm/in_process_group.hpp>

#include <algorithm>
#include <numeric>
#include <thread>

namespace penstock::zero::test {

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

ModelLayout model_of_long_units() {
  ModelLayout model;
  model.groups = {{}, {.weight_decay = 0}};
  for (int i = 0; i < 4; ++i) {
    model.units.push_back(
        {.name = "layer" + std::to_string(i),
         .parameters = {{"weight", ElementCount(70'000), 0}, {"bias", ElementCount(200), 1}}});
  }
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
  config.penstock.node_budgets.clear();
  config.penstock.rank_nodes.clear();
  config.offload_param.nvme_paths = config.offload_optimizer.nvme_paths = {"."};
  const auto memory = options.accelerator ? tiers::DeviceMemory::separate : options.device_memory;
  return plan_memory(config, options.model, options.ranks, options.ranks, memory)->host_minimum *
         options.ranks;
}

ByteCount largest_tile(const RunOptions& options) {
  MemoryPlan plan;
  plan.tile_elements = options.config.penstock.tile();
  return RankBytes::of(plan, options.config, ShardLayout(options.model, options.ranks)).value().largest_tile;
}

void keep_random_states(RunOptions& options, std::uint64_t seed) {
  if (options.device_memory == tiers::DeviceMemory::host ||
      options.config.offload_optimizer.device == OffloadDevice::none)
    return;
  RunOptions of_one_rank = options;
  of_one_rank.ranks = 1;
  penstock::test::SeededRandom random(seed + 47'000);
  const std::uint64_t kept = random.below(2) == 0 ? 0 : 1 + random.below(random.below(4) == 0 ? 100 : 6);
  options.config.penstock.device_states = largest_tile(of_one_rank) * kept;
}

void update_in_backward_at_random(RunOptions& options, std::uint64_t seed) {
  if (options.config.dtype == DType::fp16) return;
  penstock::test::SeededRandom random(seed + 53'000);
  if (random.below(2) == 0) return;
  options.config.gradient_clipping = 0;
  options.config.penstock.update_in_backward = true;
}

RunResult train(const RunOptions& options) {
  PENSTOCK_CHECK(!options.accelerator || !options.seed);
  PENSTOCK_CHECK(options.faults.empty() || options.has_simulated_disks());
  PENSTOCK_CHECK(options.seed || !options.disk || options.paths == 1);  // a SimDisk is used by one thread
  penstock::test::ScratchDirectory directory;
  tiers::SimClock clock;
  penstock::test::RankScheduler scheduler(options.seed.value_or(0));
  const auto group = InProcessGroup::create(options.ranks).value();
  std::vector<std::shared_ptr<InProcessGroup>> groups_beside;
  for (std::size_t i = 0; i < options.beside.size(); ++i)
    groups_beside.push_back(InProcessGroup::create(options.ranks).value());
  std::vector<std::vector<GroupMembership>> memberships;
  std::vector<SimulatedRank*> all;
  std::vector<std::unique_ptr<SimulatedRank>> ranks;
  for (std::uint32_t r = 0; r < options.ranks; ++r) {
    memberships.push_back({options.membership ? options.membership(r) : in_process_membership(group, r)});
    for (const auto& beside : groups_beside) memberships[r].push_back(in_process_membership(beside, r));
    ranks.push_back(std::make_unique<SimulatedRank>(options, r, &scheduler, clock, all));
    all.push_back(ranks.back().get());
  }

  RunResult result;
  std::vector<RunResult> results(options.ranks);
  const auto body = [&](std::size_t r) {
    Result<void> outcome = ranks[r]->open(memberships[r], directory.path(), results[r]);
    const bool opened = outcome.has_value();
    if (opened) outcome = ranks[r]->train(results[r]);
    if (!outcome) {
      results[r].error = outcome.error();
      for (const GroupMembership& membership : memberships[r]) {
        membership.abandon(outcome.error());
        if (opened) break;  // the programs of the other engines have ended
      }
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
    result.host_budget = std::max(result.host_budget, results[r].host_budget);
    for (std::size_t i = 0; i < results[r].beside.size(); ++i) {
      RunResult& beside = result.beside[i];
      if (!beside.error) beside.error = results[r].beside[i].error;
      beside.wrong_values += results[r].beside[i].wrong_values;
      beside.parameters_read += results[r].beside[i].parameters_read;
    }
  }
  PENSTOCK_CHECK(directory.entry_count() == 0);  // no file is left, even after an error
  return result;
}

}  // namespace penstock::zero::test
