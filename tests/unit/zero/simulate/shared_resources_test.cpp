// What parts of a simulated step share: the link of a device, the drives, the trainer's time.
#include "zero/simulate/model_simulation.hpp"

#include "unit/zero/simulate/planned_model.hpp"

#include <gtest/gtest.h>
#include <algorithm>

namespace penstock::zero::simulate {
namespace {

using test::Planned;
using test::planned;

/// A machine on which only copies between host memory and devices take time.
Machine with_link(double host_copy) {
  Machine node{.costs = {.disks = {{.rates = {.read = 1e12, .write = 1e12, .mixed = 1e12}}}}, .update = 1e15};
  node.device = {.flops = 1e18, .host_copy = host_copy};
  return node;
}

// A rank's shards are 1 MiB, its states 6 MiB. Forward and backward copy 1 MiB each to the device, the backward 1 MiB
// of gradients back. The device updates all: states, gradients and parameters cross the link, 6 + 1 MiB each way.
TEST(SharedLink, CopiesTilesAndTheNextForwardOneAfterTheOther) {
  Planned made = planned(1);
  made.config.offload_param.device = made.config.offload_optimizer.device = OffloadDevice::cpu;
  made.config.cpu_update_ratio = 0;
  const TrainingRun run{.ranks = 2, .ranks_per_node = 2, .tokens = 1};
  const double mib = 1 << 20;
  const ModelSimulation simulated =
      simulate_model_steps(made.config, made.model, with_link(mib), run, 4).value();

  const StepWork& work = simulated.work;
  EXPECT_NEAR(work.update.copied.seconds(), 7, 0.01);
  const double all =
      work.forward.copied.seconds() + work.backward.copied.seconds() + work.update.copied.seconds();
  EXPECT_NEAR(simulated.simulation.steady.seconds, all, 0.01 * all) << "each copy has the link alone";
  const auto resources = simulated.resources();
  const auto link = std::find_if(resources.begin(), resources.end(), [](const Work& one) {
    return one.what == "copies between host and device";
  });
  ASSERT_NE(link, resources.end());
  EXPECT_NEAR(link->seconds(), all, 1e-6) << "one resource";
}

TEST(SharedLink, AddsNothingWhereTheArithmeticOfTheForwardTakesLonger) {
  Planned made = planned(1);
  made.config.offload_param.device = made.config.offload_optimizer.device = OffloadDevice::cpu;
  made.config.cpu_update_ratio = 0;
  const TrainingRun run{.ranks = 2, .ranks_per_node = 2, .tokens = 100};
  const double mib = 1 << 20;
  Machine node = with_link(mib);
  node.device.flops = 2 * mib * 100 / 20;  // 20 s for the forward, 40 for the backward
  const ModelSimulation simulated = simulate_model_steps(made.config, made.model, node, run, 4).value();
  EXPECT_GE(simulated.simulation.steady.seconds, 60);
  EXPECT_LT(simulated.simulation.steady.seconds, 63) << "the first unit waits for its tiles, and no other";
}

TEST(SimulatedDrives, HaveTheRatesAndWeightsThatTheRunIsToldOf) {
  Planned made = planned(1);
  made.config.offload_param.nvme_paths = made.config.offload_optimizer.nvme_paths = {".", ".."};
  Machine node = with_link(1e12);
  node.costs.disks.push_back(node.costs.disks.front());
  const TrainingRun run{.ranks = 2, .ranks_per_node = 2, .tokens = 1};
  const auto known = [&] {
    const auto simulated = simulate_model_steps(made.config, made.model, node, run, 2).value();
    std::vector<swap::TransferCosts> costs;
    for (const auto& disk : simulated.share.costs.disks) costs.push_back(disk.eviction);
    return costs;
  };
  EXPECT_EQ(known(), std::vector<swap::TransferCosts>(2));
  made.config.penstock.path_limits = {4e9, 1e9};
  EXPECT_EQ(known(), (std::vector{swap::costs_at(4e9), swap::costs_at(1e9)}));
  made.config.penstock.path_weights = {3, 1};
  const auto weighed = simulate_model_steps(made.config, made.model, node, run, 2).value();
  EXPECT_EQ(weighed.share.costs.disks[0].weight, 3);
  EXPECT_EQ(weighed.share.costs.disks[1].weight, 1);
  node.costs.disks.pop_back();  // another machine
  EXPECT_EQ(known(), std::vector<swap::TransferCosts>(1));
}

TEST(SimulatedDrives, AreBusyForTheBytesOfBothDirections) {
  const Planned made = planned(1);
  Machine node = with_link(1e12);
  node.costs.disks = {{.rates = {.read = 4e6, .write = 1e6, .mixed = 2e6}}};
  const TrainingRun run{.ranks = 2, .ranks_per_node = 2, .tokens = 1};
  const ModelSimulation simulated = simulate_model_steps(made.config, made.model, node, run, 4).value();
  const auto& disk = simulated.simulation.steady.disks.front();
  ASSERT_LT(disk.read, disk.written);
  const double read = static_cast<double>(disk.read.value()),
               written = static_cast<double>(disk.written.value());
  // The rank has half of the disk.
  EXPECT_NEAR(simulated.resources().back().seconds(), 2 * (2 * read / 2e6 + (written - read) / 1e6), 1e-6);
  EXPECT_LE(simulated.resources().back().seconds(), simulated.simulation.steady.seconds + 1e-6);
}

// Its checkpoints are all that its trainer uses of host memory.
TEST(SimulatedTrainer, TakesItsArithmeticWhereOnlyCheckpointsLeaveTheDevice) {
  Planned made = planned(1);
  made.config.offload_param = made.config.offload_optimizer = {};
  made.config.stage = 2;
  made.model.checkpoints = {.count = 4, .size = 1_MiB};
  const MemoryPlan all = plan_memory(made.config, made.model, 2, 2).value();
  made.config.penstock.device_budget = all.device_minimum;
  ASSERT_TRUE(plan_memory(made.config, made.model, 2, 2)->checkpoints.leave_device());
  Machine node = with_link(1e15);
  const double mib = 1 << 20;
  node.device.flops = 2 * mib * 100;  // a second for the forward
  const TrainingRun run{.ranks = 2, .ranks_per_node = 2, .tokens = 100};
  const ModelSimulation simulated = simulate_model_steps(made.config, made.model, node, run, 4).value();
  EXPECT_NEAR(simulated.simulation.steady.seconds, 3, 0.01);
}

}  // namespace
}  // namespace penstock::zero::simulate
