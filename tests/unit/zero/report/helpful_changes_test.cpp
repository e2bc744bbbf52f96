#include "zero/report/helpful_changes.hpp"

#include <gtest/gtest.h>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero {
namespace {

using std::chrono::seconds;

Config config_of(float cpu_update_ratio, UpdateSplit split, ByteCount device_states = {}) {
  Config config{.stage = 3};
  config.dtype = config.grad_accum_dtype = DType::bf16;
  config.offload_param = config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"."}};
  config.cpu_update_ratio = cpu_update_ratio;
  config.penstock.update_split = split;
  config.penstock.device_states = device_states;
  return config;
}

/// Of 2^20 parameters.
ModelLayout model() {
  ModelLayout model;
  for (int unit = 0; unit < 4; ++unit) {
    model.units.push_back(
        {.name = std::to_string(unit), .parameters = {{"weight", ElementCount(1 << 18), 0}}});
  }
  return model;
}

MemoryPlan plan_of(const Config& config) {
  return plan_memory(config, model(), 1, 1, tiers::DeviceMemory::separate).value();
}

/// Of a rank with the states of model() on one drive, whose steps took 10 s: 4 of them computed, and the update 8.
RunReport report_of(const Config& config, std::vector<RunReport::Drive> drives,
                    std::uint64_t micro_batches = 1) {
  RunReport report{.drives = std::move(drives)};
  add_changes(report, config, model(), plan_of(config), {},
              {.steps = 1,
               .micro_batches = micro_batches,
               .forward = seconds(7),
               .backward = seconds(3),
               .waiting = seconds(6),
               .updating = seconds(8)},
              tiers::DeviceMemory::separate);
  return report;
}

TEST(HelpfulChanges, PredictNothingWhereDropsFollowFromTransfers) {
  Config config = config_of(1, UpdateSplit::ratio);
  config.penstock.eviction = swap::Eviction::reuse_distance;
  const RunReport report = report_of(config, {{.directory = ".", .read = 1_GiB, .limit = 1e9}});
  EXPECT_EQ(report.predicted_step, TimePoint());
  EXPECT_EQ(report.predicted_step_traffic, RunReport::StepTraffic());
  EXPECT_NE(report.changes_note.find("reuse_distance"), std::string::npos) << report.changes_note;
}

/// The seconds in "a step takes 9.5 s as simulated, and has taken 10 s".
double simulated(const RunReport& report) {
  constexpr std::string_view before = "a step takes ";
  EXPECT_EQ(report.changes_note.find(before), 0u) << report.changes_note;
  return std::stod(report.changes_note.substr(before.size()));
}

// The forward's third of the arithmetic runs beside the update.
TEST(HelpfulChanges, TakeAnUpdateByEachProcessorAsItWas) {
  const std::vector<RunReport::Drive> no_drives;
  const double by_cpu = simulated(report_of(config_of(1, UpdateSplit::ratio), no_drives));
  EXPECT_NEAR(by_cpu, 10, 1);
  EXPECT_NEAR(simulated(report_of(config_of(0, UpdateSplit::ratio), no_drives)), by_cpu, 0.5);
  EXPECT_NEAR(simulated(report_of(config_of(0.25, UpdateSplit::ratio), no_drives)), by_cpu, 0.5);
  EXPECT_NEAR(simulated(report_of(config_of(1, UpdateSplit::automatic), no_drives)), by_cpu, 0.5);
  for (const ByteCount kept : {3_MiB, 6_MiB}) {  // one or two of the four tiles stay on the device
    EXPECT_NEAR(simulated(report_of(config_of(1, UpdateSplit::ratio, kept), no_drives)), by_cpu, 0.5);
    EXPECT_NEAR(simulated(report_of(config_of(0.25, UpdateSplit::ratio, kept), no_drives)), by_cpu, 0.5);
    EXPECT_NEAR(simulated(report_of(config_of(1, UpdateSplit::automatic, kept), no_drives)), by_cpu, 0.5);
  }
}

TEST(HelpfulChanges, SimulateTheRankWithTheMemoryOfItsNode) {
  Config config = config_of(1, UpdateSplit::ratio);
  const ByteCount least = plan_memory(config, model(), 2, 2).value().host_minimum;
  config.penstock.node_budgets = {least, 64_MiB};
  config.penstock.rank_nodes = {0, 1};
  for (const std::uint32_t rank : {0u, 1u}) {
    const MemoryPlan plan = plan_memory(config, model(), 2, 2, tiers::DeviceMemory::separate, rank).value();
    RunReport report;
    add_changes(report, config, model(), plan, RankIdentity::local(rank, 2),
                {.steps = 1,
                 .micro_batches = 1,
                 .forward = seconds(7),
                 .backward = seconds(3),
                 .waiting = seconds(6),
                 .updating = seconds(8)},
                tiers::DeviceMemory::separate);
    const bool moves = !report.predicted_step_traffic.written.is_zero();
    EXPECT_EQ(moves, rank == 0) << report.changes_note;
  }
}

// 24 MiB of states are read and written in each step, at 1 MiB/s: longer than anything else. Of two drives, each has
// what it had in the run.
TEST(HelpfulChanges, TakeEachDriveAtItsRate) {
  const auto drive = [](double limit, ByteCount moved) {
    return RunReport::Drive{.read = moved, .busy = seconds(1), .limit = limit};
  };
  const auto step_with = [](std::vector<RunReport::Drive> drives) {
    return simulated(report_of(config_of(1, UpdateSplit::ratio), std::move(drives)));
  };
  const double mib = 1 << 20, one = step_with({drive(mib, 8_MiB)});
  EXPECT_GT(one, 20);
  EXPECT_NEAR(step_with({drive(mib, 8_MiB), drive(mib, 8_MiB)}) / one, 0.5, 0.1);
  EXPECT_GT(step_with({drive(mib, 8_MiB), drive(mib / 4, 8_MiB)}), 1.5 * one);
  EXPECT_NEAR(step_with({drive(0, 1_MiB)}), one, 0.1 * one);  // 1 MiB in a second
}

TEST(HelpfulChanges, PredictWhatEachDriveDoes) {
  const auto moved = [](ByteCount bytes) {
    return RunReport::Drive{.read = bytes, .busy = seconds(1), .limit = 1 << 30};
  };
  const RunReport report =
      report_of(config_of(1, UpdateSplit::ratio), {moved(8_MiB), moved(0_B), moved(24_MiB)});

  ByteCount read, written;
  for (const RunReport::Drive& drive : report.drives) {
    read += drive.predicted_step.read;
    written += drive.predicted_step.written;
  }
  EXPECT_EQ((RunReport::StepTraffic{read, written}), report.predicted_step_traffic);
  EXPECT_EQ(report.drives[1].predicted_step, RunReport::DriveStep()) << "which has done nothing";
  EXPECT_GT(report.drives[2].predicted_step.read, report.drives[0].predicted_step.read * 2);
  EXPECT_GT(report.drives[2].predicted_step.busy, report.drives[0].predicted_step.busy);
}

// Of the run, which may have others than the configuration: each one reads the parameters, which do not stay.
TEST(HelpfulChanges, PredictTheBytesOfAsManyMicroBatches) {
  Config config = config_of(1, UpdateSplit::ratio);
  config.prefetch_bucket_size = config.max_live_parameters = ElementCount(1);
  config.model_persistence_threshold = ElementCount(0);
  config.penstock.tile_elements = ElementCount(1 << 14);
  config.penstock.host_budget = plan_of(config).host_minimum;
  const auto read = [&](std::uint64_t micro_batches) {
    const RunReport::Drive drive{.read = 8_MiB, .busy = seconds(1), .limit = 1 << 30};
    return report_of(config, {drive}, micro_batches).predicted_step_traffic.read;
  };
  const ByteCount one = read(1), shards = 4 * 512_KiB;

  EXPECT_GT(one, 12_MiB) << "the states";
  EXPECT_GE(read(3), one + shards * 2);
}

}  // namespace
}  // namespace penstock::zero
