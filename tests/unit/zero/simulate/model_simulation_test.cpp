#include "zero/simulate/model_simulation.hpp"

#include "unit/zero/simulate/planned_model.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::zero::simulate {
namespace {

using test::Planned;
using test::planned;
using tiers::Purpose;

/// The rank's part of the node for the work of its step.
Result<Machine> share_of(const Machine& node, const ModelLayout& model, const PlannedStep& step,
                         const TrainingRun& run) {
  PENSTOCK_TRY_ASSIGN(const StepWork work, step_work(node, model, step, run));
  return share_of(node, step, work, run);
}

/// Seconds of the trainer's uses, and of the update's.
std::pair<double, double> seconds_of(const swap::AccessTrace& trace, const swap::ReplayCosts& costs) {
  std::pair<double, double> seconds;
  for (const auto& use : trace.uses) {
    const auto& tensor = trace.tensors[use.tensor];
    const double rate = costs.use[static_cast<std::size_t>(tensor.purpose)];
    const bool in_update = is_update(trace, use);
    if (rate == 0 || (in_update && tensor.purpose != Purpose::optimizer_tile)) continue;
    (in_update ? seconds.second : seconds.first) += static_cast<double>(tensor.size.value()) / rate;
  }
  return seconds;
}

TEST(PlannedStep, HasTheSettingsOfThePlansRuntime) {
  const Planned made = planned(1);
  EXPECT_EQ(made.step.options.lookahead, made.plan.runtime_options(made.config, 0).lookahead);
  EXPECT_EQ(made.step.options.dropped_ahead, made.plan.tiles_ahead);
  EXPECT_EQ(made.step.options.dropped_ahead_later, made.plan.tiles_ahead_next_flats);
  EXPECT_EQ(made.step.options.stores_max, made.config.penstock.tiles_in_flight);
  EXPECT_TRUE(made.step.options.update_beside);
  EXPECT_GE(made.step.options.host_budget, made.plan.host_staging());
  EXPECT_LE(made.step.options.host_budget, made.plan.host_budget);
}

TEST(PlannedStep, TakesTheSecondsOfItsPhases) {
  for (const std::uint32_t micro_batches : {1u, 3u}) {
    const Planned made = planned(micro_batches);
    for (const PhaseSeconds& seconds :
         {PhaseSeconds{1, 2.5, 0.5}, PhaseSeconds{2, 1, 0.25}, PhaseSeconds{0, 0, 1}}) {
      swap::ReplayCosts costs{};
      set_use(costs, made.step.trace, seconds);
      const auto [trainer, update] = seconds_of(made.step.trace, costs);
      EXPECT_NEAR(trainer, seconds.forward + seconds.backward, 1e-9);
      EXPECT_NEAR(update, seconds.update, 1e-9);
    }
  }
}

// Below stage 3 the shards are read by the first micro-batch only; at stage 3 three of four units stay gathered for the
// backward, and the fourth for the next micro-batch. The rest of the time is that of the gradients.
TEST(PlannedStep, TakesTheSecondsOfAForwardUntilTheFirstGradient) {
  for (const std::uint32_t stage : {2u, 3u}) {
    for (const std::uint32_t micro_batches : {1u, 3u}) {
      Planned made = planned(micro_batches);
      if (stage == 2) {
        made.config.stage = 2;
        made.config.offload_param = {};
        made.plan = plan_memory(made.config, made.model, 2, 2).value();
        made.step = plan_step(made.config, made.model, made.plan, {.micro_batches = micro_batches}).value();
      }
      const auto& trace = made.step.trace;
      swap::ReplayCosts costs{};
      set_use(costs, trace, {1.0 * micro_batches, 2.5 * micro_batches, 0.5});
      const auto taken_by = [&](const swap::AccessTrace::Use& use) {
        const auto& tensor = trace.tensors[use.tensor];
        return static_cast<double>(tensor.size.value()) / costs.use[static_cast<std::size_t>(tensor.purpose)];
      };
      double forward = 0;
      std::size_t reads = 0;
      for (const auto& use : trace.uses) {
        if (reads == 4) break;
        if (trace.tensors[use.tensor].purpose != Purpose::parameter_shard) continue;
        forward += taken_by(use);
        ++reads;
      }
      EXPECT_NEAR(forward, 1, 1e-9) << stage << ", " << micro_batches;
      EXPECT_NEAR(seconds_of(trace, costs).first, 3.5 * micro_batches, 1e-9);
    }
  }
}

// 2^20 parameters and 100 tokens: 2^21 * 100 operations in the forward. Gathers bring 2^20 bytes from the other rank,
// and 2^20 bytes are copied from host memory. Three of four units stay gathered for the backward.
TEST(PlannedStep, TakesWhatTheMachineNeeds) {
  const Planned made = planned(1);
  const double mib = 1 << 20, operations = 2 * mib * 100;
  Machine node{.costs = {.disks = {{.rates = {.read = 3e9, .write = 2e9, .mixed = 4e9}, .endurance = 1_GiB}}},
               .update = 1e9};
  TrainingRun run{.ranks = 2, .ranks_per_node = 2, .tokens = 100};
  const auto phases = [&] {
    const Machine share = share_of(node, made.model, made.step, run).value();
    EXPECT_EQ(share.costs.disks[0].rates.read, 1.5e9);
    EXPECT_EQ(share.costs.disks[0].rates.mixed, 2e9);
    EXPECT_EQ(share.costs.disks[0].endurance, 512_MiB);
    return seconds_of(made.step.trace, share.costs);
  };
  node.device = {.flops = operations};
  EXPECT_NEAR(phases().first, 3, 1e-9);
  EXPECT_NEAR(phases().second, 12 * mib / 2 / 0.5e9, 1e-4);  // fp32 states of half of the parameters
  run.repeated_forward = 1;
  EXPECT_NEAR(phases().first, 4, 1e-9);
  node.device.link = mib / 4;
  EXPECT_NEAR(phases().first, 4 + 1 + 4, 1e-9);  // the backward reduces gradients too
  node.device.host_copy = mib / 5;
  EXPECT_NEAR(phases().first, 5 + 1.25 + 5, 1e-9);
  run.device_memory = tiers::DeviceMemory::host;
  EXPECT_NEAR(phases().first, 4 + 1 + 4, 1e-9);  // nothing is copied
  // The other three quarters are of experts that no token uses.
  run.used_by_token = ElementCount(1 << 18);
  EXPECT_EQ(model_operations(made.model, run), 6.0 * (1 << 18) * 100);
}

// Below stage 3 all units stay gathered: one gather a step, and the gradients of three micro-batches.
TEST(PlannedStep, GathersWhatStaysOnTheDeviceOnce) {
  Planned made = planned(3);
  made.config.stage = 2;
  made.config.offload_param = {};
  made.plan = plan_memory(made.config, made.model, 2, 2).value();
  made.step = plan_step(made.config, made.model, made.plan, {.micro_batches = 3}).value();
  const double mib = 1 << 20;
  Machine node{.costs = {.disks = {{.rates = {.read = 3e9, .write = 2e9, .mixed = 4e9}}}}, .update = 1e9};
  node.device = {.flops = 1e18, .link = mib / 4};
  const TrainingRun run{.ranks = 2, .ranks_per_node = 2, .micro_batches = 3, .tokens = 100};
  const Machine share = share_of(node, made.model, made.step, run).value();
  EXPECT_NEAR(seconds_of(made.step.trace, share.costs).first, 4 + 3 * 4, 1e-9);
}

// A rank has 2^19 parameters: 12 bytes of states, 2 of gradients and 2 of parameters each, of which 14 go to the device
// and 14 come back.
TEST(PlannedStep, UpdatesTilesOnBothProcessors) {
  const double elements = 1 << 19;
  Machine node{.costs = {.disks = {{.rates = {.read = 3e9, .write = 2e9, .mixed = 4e9}}}},
               .update = 4 * 12 * elements};
  node.device = {.flops = 1e12, .host_copy = 14 * elements};
  const auto update = [&](UpdateSplit split, double cpu_ratio) {
    Planned made = planned(1);
    made.config.penstock.update_split = split;
    made.config.cpu_update_ratio = cpu_ratio;
    made.plan = plan_memory(made.config, made.model, 2, 2).value();
    made.step = plan_step(made.config, made.model, made.plan, {}).value();
    const auto share = share_of(node, made.model, made.step, {.ranks = 2, .ranks_per_node = 2, .tokens = 1});
    return share ? seconds_of(made.step.trace, share->costs).second : -1;
  };
  using enum UpdateSplit;
  EXPECT_NEAR(update(ratio, 1), 0.5, 1e-4);  // half of the node's processors
  EXPECT_NEAR(update(ratio, 0), 1, 1e-4);
  EXPECT_NEAR(update(ratio, 0.25), 0.75, 1e-4);  // three quarters of the tiles, on the device
  EXPECT_NEAR(update(automatic, 1), 1 / (1 / 0.5 + 1 / 1.0), 1e-4);
  node.device.update = 12 * elements / 3;
  EXPECT_NEAR(update(ratio, 0), 3, 1e-4);
  node.update = 0;
  EXPECT_NEAR(update(ratio, 0), 3, 1e-4);  // no processor updates
  EXPECT_EQ(update(ratio, 0.5), -1);
  node.device.host_copy = 0;
  EXPECT_EQ(update(ratio, 0), -1);
}

// Of 16 tiles the device keeps 4: of these, gradients and parameters cross the link, 2 bytes each way for an element.
TEST(PlannedStep, UpdatesTilesThatTheDeviceKeeps) {
  const double elements = 1 << 19;
  Machine node{.costs = {.disks = {{.rates = {.read = 3e9, .write = 2e9, .mixed = 4e9}}}},
               .update = 4 * 12 * elements};
  node.device = {.flops = 1e12, .host_copy = 14 * elements};
  const auto update = [&](std::uint64_t kept, UpdateSplit split, double cpu_ratio) {
    Planned made = planned(1);
    made.config.penstock.tile_elements = ElementCount((1 << 19) / 16);
    made.config.penstock.device_states = ByteCount(12 * (1 << 19) / 16 * kept);
    made.config.penstock.update_split = split;
    made.config.cpu_update_ratio = cpu_ratio;
    made.plan = plan_memory(made.config, made.model, 2, 2).value();
    EXPECT_EQ(made.plan.tiles_kept, kept);
    made.step = plan_step(made.config, made.model, made.plan, {}).value();
    const auto share =
        share_of(node, made.model, made.step, {.ranks = 2, .ranks_per_node = 2, .tokens = 1}).value();
    return seconds_of(made.step.trace, share.costs).second;
  };
  using enum UpdateSplit;
  EXPECT_NEAR(update(4, ratio, 1), 0.5 * 0.75, 1e-4);  // three quarters of the processor's update
  EXPECT_NEAR(update(4, ratio, 0), (12 * 0.75 + 2) / 14, 1e-4);
  EXPECT_NEAR(update(4, ratio, 0.25), (12 * 0.5 + 2 * 0.75) / 14, 1e-4);
  EXPECT_NEAR(update(16, ratio, 1), 2.0 / 14, 1e-4);
  // Both end at one time t: the processor has done t / 0.375 of the others, the device the rest and what it keeps.
  const double kept = 2.0 / 14 / 4, others = 0.75, by_cpu = 0.5 * 0.75;
  EXPECT_NEAR(update(4, automatic, 1), (1 + kept / others) / (1 / by_cpu + 1 / others), 1e-4);
  node.device.update = 12 * elements / 16;
  EXPECT_NEAR(update(4, ratio, 1), 4, 1e-4);
  EXPECT_NEAR(update(4, automatic, 1), 4, 1e-4);  // the processor has done the others meanwhile
  EXPECT_NEAR(update(16, ratio, 1), 16, 1e-4);
}

// Of the checkpoints of four units the device has room for three: the first one leaves it, and comes back.
TEST(PlannedStep, CopiesCheckpointsThatLeaveTheDevice) {
  Planned made = planned(1);
  const double mib = 1 << 20;
  made.model.checkpoints = {.count = 4, .size = 1_MiB};
  Machine node{.costs = {.disks = {{.rates = {.read = 3e9, .write = 2e9, .mixed = 4e9}}}}, .update = 1e9};
  node.device = {.flops = 1e15, .host_copy = mib};
  const auto trainer = [&] {
    made.plan = plan_memory(made.config, made.model, 2, 2).value();
    made.step = plan_step(made.config, made.model, made.plan, {}).value();
    const auto share =
        share_of(node, made.model, made.step, {.ranks = 2, .ranks_per_node = 2, .tokens = 1}).value();
    return seconds_of(made.step.trace, share.costs).first;
  };
  // 1 MiB of shards in the forward; in the backward a quarter of it, because the other units stay gathered, 1 MiB of
  // gradients and 1 MiB of checkpoints.
  EXPECT_NEAR(trainer(), 1 + 0.25 + 1 + 1, 1e-9);
  const swap::AccessTrace& trace = made.step.trace;
  const auto name = [&](std::size_t use) { return trace.tensors[trace.uses[use].tensor].name; };
  EXPECT_EQ(name(1), "1 parameter shard");  // gathered ahead
  EXPECT_EQ(name(2), "checkpoint 0");       // the input of the first of four units
  made.model.checkpoints.size = 3_MiB;
  EXPECT_NEAR(trainer(), 3 + 0.25 + 1 + 3, 1e-9);
  made.model.checkpoints.count = 3;
  EXPECT_NEAR(trainer(), 1 + 0.25 + 1, 1e-9);
  made.model.checkpoints.count = 5;
  made.plan = plan_memory(made.config, made.model, 2, 2).value();
  EXPECT_EQ(plan_step(made.config, made.model, made.plan, {}).error().code(), ErrorCode::invalid_argument);
}

TEST(ModelSimulation, OfManyMicroBatchesIsThatOfAllOfThem) {
  const Planned made = planned(1);
  // Arithmetic and disk take about as long.
  Machine node{.costs = {.disks = {{.rates = {.read = 3e9, .write = 3e9, .mixed = 3e9}}}}, .update = 2e9};
  node.device.flops = 2e12;
  const auto steady = [&](std::uint32_t micro_batches) {
    const TrainingRun run{.ranks = 2, .ranks_per_node = 2, .micro_batches = micro_batches, .tokens = 1000};
    const auto simulated = simulate_model(made.config, made.model, node, run, 4).value();
    return simulated.simulation.steady;
  };
  const auto sixteen = steady(16), forty = steady(40);
  // As if the step had been replayed: forty micro-batches in the trace, of which none is left out.
  const Planned whole = planned(40);
  const TrainingRun run{.ranks = 2, .ranks_per_node = 2, .micro_batches = 40, .tokens = 1000};
  const Machine share = share_of(node, made.model, whole.step, run).value();
  const auto replayed = simulate_steps(whole.step.trace, share, whole.step.options).value().steady;

  EXPECT_GT(forty.seconds, sixteen.seconds * 2);
  EXPECT_NEAR(forty.seconds / replayed.seconds, 1, 0.01);
  EXPECT_NEAR(static_cast<double>(forty.total().value()) / static_cast<double>(replayed.total().value()), 1,
              0.01);
  EXPECT_NEAR(forty.seconds,
              forty.used + forty.waited_for_loads + forty.waited_for_room + forty.waited_for_update, 1e-9);
}

TEST(ModelSimulation, SaysWhichConfigurationsAndMachinesHelp) {
  const Planned made = planned(1);
  const TrainingRun run{.ranks = 2, .ranks_per_node = 2, .tokens = 100};
  const auto helped = [&](const Machine& node) {
    const auto simulated = simulate_model(made.config, made.model, node, run, 4).value();
    std::vector<std::string> names;
    double before = 0;
    for (const auto& [what, seconds] : simulated.simulation.changes) {
      EXPECT_LE(before, seconds);
      EXPECT_LT(seconds, simulated.simulation.steady.seconds);
      before = seconds;
      names.push_back(what);
    }
    return names;
  };
  Machine node{.costs = {.disks = {{.rates = {.read = 1e8, .write = 1e8, .mixed = 1e8}}}}, .update = 1e12};
  node.device.flops = 1e15;
  const auto of_the_disk = helped(node);
  ASSERT_FALSE(of_the_disk.empty());
  EXPECT_EQ(of_the_disk[0], "state_format split_q8, rounded moments");
  EXPECT_NE(std::find(of_the_disk.begin(), of_the_disk.end(), "disks twice as fast"), of_the_disk.end());
  node.costs.disks = {{.rates = {.read = 1e12, .write = 1e12, .mixed = 1e12}}};
  node.device.flops = 1e9;
  EXPECT_EQ(helped(node), std::vector<std::string>{"devices twice as fast"});
  node.device = {.flops = 1e15, .link = 1e6};
  EXPECT_EQ(helped(node), std::vector<std::string>{"links twice as fast"});
}

TEST(ModelSimulation, IsRefusedWhereThePlanDoesNotFitTheMachine) {
  const Planned made = planned(1);
  const TrainingRun run{.ranks = 2, .ranks_per_node = 2, .tokens = 100};
  const MemoryPlan plan = plan_memory(made.config, made.model, 2, 2, run.device_memory).value();
  const ByteCount host = plan.host_allocated() * 2, device = plan.device_budget;
  Machine node{.costs = {.disks = {{.rates = {.read = 1e8, .write = 1e8, .mixed = 1e8}}}}, .update = 1e12};
  node.device.flops = 1e15;
  const auto simulated = [&](ByteCount host_memory, ByteCount device_memory) {
    node.memory = host_memory;
    node.device.memory = device_memory;
    return simulate_model(made.config, made.model, node, run, 4);
  };

  const auto fits = simulated(host, device);
  ASSERT_TRUE(fits) << fits.error().message();
  EXPECT_TRUE(std::ranges::none_of(fits->simulation.changes, [](const auto& change) {
    return change.what == "25 % more host budget";
  })) << "the machine has no more";
  for (const auto& [refused, wanted, got, whose] :
       {std::tuple(simulated(host - 1_B, device), host, host - 1_B, "the host memory of 2 ranks"),
        {simulated(host, device - 1_B), device, device - 1_B, "the memory of a device"}}) {
    ASSERT_FALSE(refused);
    const Error& error = refused.error();
    EXPECT_EQ(error.code(), ErrorCode::budget_too_small);
    EXPECT_EQ(error.fields().object, whose);
    EXPECT_NE(error.message().find(to_exact_string(wanted)), std::string::npos) << error.message();
    EXPECT_NE(error.message().find(to_exact_string(got)), std::string::npos) << error.message();
  }
}

TEST(ModelSimulation, HasTheHostMemoryOfARanksNumaNode) {
  Planned made = planned(1);
  made.config.penstock.rank_nodes = {0, 1};
  made.config.penstock.node_budgets = {made.plan.host_minimum, 64_MiB};
  Machine node{.costs = {.disks = {{.rates = {.read = 1e8, .write = 1e8, .mixed = 1e8}}}}, .update = 1e12};
  node.device.flops = 1e15;
  TrainingRun run{.ranks = 2, .ranks_per_node = 2, .tokens = 100};
  const auto written = [&] {
    return simulate_model(made.config, made.model, node, run, 4).value().simulation.steady.written;
  };
  const ByteCount least = written();
  EXPECT_GE(least, made.plan.tile_writes);
  run.local_rank = 0;
  EXPECT_EQ(written(), least);
  run.local_rank = 1;
  EXPECT_EQ(written(), 0_B);

  node.memory = made.plan.host_minimum + 64_MiB;  // of both ranks
  EXPECT_TRUE(simulate_model(made.config, made.model, node, run, 4));
  node.memory -= 1_B;
  EXPECT_FALSE(simulate_model(made.config, made.model, node, run, 4));
}

TEST(ModelSimulation, CountsADeviceThatIsTheHostAsHostMemory) {
  const Planned made = planned(1);
  const TrainingRun run{
      .ranks = 2, .ranks_per_node = 2, .tokens = 100, .device_memory = tiers::DeviceMemory::host};
  const MemoryPlan plan = plan_memory(made.config, made.model, 2, 2, run.device_memory).value();
  const ByteCount needed = (plan.host_allocated() + plan.device_budget) * 2;
  ASSERT_FALSE(plan.device_budget.is_zero());
  Machine node{.costs = {.disks = {{.rates = {.read = 1e8, .write = 1e8, .mixed = 1e8}}}},
               .update = 1e12,
               .memory = needed};
  node.device = {.flops = 1e15, .memory = 1_MiB};  // of a device that is not used
  EXPECT_TRUE(simulate_model(made.config, made.model, node, run, 4));
  node.memory = needed - 1_B;
  EXPECT_FALSE(simulate_model(made.config, made.model, node, run, 4));
}

TEST(PlannedStep, UpdatesTilesInMemoryToo) {
  Planned made = planned(1);
  made.config.offload_optimizer.device = OffloadDevice::cpu;
  made.plan = plan_memory(made.config, made.model, 2, 2).value();
  made.step = plan_step(made.config, made.model, made.plan, {}).value();
  swap::ReplayCosts costs{};
  set_use(costs, made.step.trace, {.forward = 1, .backward = 2, .update = 3});
  EXPECT_NEAR(seconds_of(made.step.trace, costs).second, 3, 1e-9);
}

// 2^20 parameters and 100 tokens: 2^21 * 100 operations in the forward, twice as many in the backward. A rank's states
// are 12 bytes of each of 2^19 parameters. Of 3 gathers and reductions at stage 3 two have 2^20 bytes of the other rank
// in the backward; below it, nothing is gathered again.
TEST(ModelSimulation, OfARankWhoseDeviceHasAllTakesItsPhasesOneAfterTheOther) {
  Planned made = planned(1);
  made.config.offload_param = made.config.offload_optimizer = {};
  const double mib = 1 << 20;
  Machine node{.costs = {.disks = {{.rates = {.read = 1e9, .write = 1e9, .mixed = 1e9}}}}};
  node.device = {.flops = 2 * mib * 100, .update = 12 * mib / 2 / 5};
  const TrainingRun run{.ranks = 2, .ranks_per_node = 2, .tokens = 100};
  const auto seconds = [&] {
    return simulate_model(made.config, made.model, node, run, 4).value().simulation.steady.seconds;
  };
  EXPECT_NEAR(seconds(), 1 + 2 + 5, 1e-4);
  node.device.link = mib / 10;
  EXPECT_NEAR(seconds(), 10 + 20 + 5, 1e-4);
  made.config.stage = 2;
  EXPECT_NEAR(seconds(), 10 + 10 + 5, 1e-4);
}

TEST(PlannedStep, NeedsRatesAndTokens) {
  const Planned made = planned(1);
  Machine node{.costs = {.disks = {{.rates = {.read = 1, .write = 1, .mixed = 1}}}}};
  const auto message = [&](std::uint64_t tokens) {
    const auto refused = share_of(node, made.model, made.step, {.tokens = tokens});
    return refused ? "" : refused.error().message();
  };
  EXPECT_NE(message(0).find("tokens"), std::string::npos);
  EXPECT_NE(message(1).find("device.flops"), std::string::npos);
  node.device.flops = 1;
  EXPECT_NE(message(1).find("update"), std::string::npos);
}

TEST(PlannedStep, IsOfItsOwnPlan) {
  const Planned made = planned(1);
  ModelLayout other = made.model;
  other.units.pop_back();
  const auto refused = [&](const ModelLayout& model, const StepShape& shape) {
    return plan_step(made.config, model, made.plan, shape).error().message();
  };
  EXPECT_NE(refused(other, {}).find("plan"), std::string::npos);
  EXPECT_NE(refused(made.model, {.rank = 2}).find("below 2"), std::string::npos);
  EXPECT_NE(refused(made.model, {.micro_batches = 0}).find("micro_batches"), std::string::npos);
}

}  // namespace
}  // namespace penstock::zero::simulate
