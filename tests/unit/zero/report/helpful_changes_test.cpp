#include "zero/report/helpful_changes.hpp"

#include <gtest/gtest.h>
#include <chrono>
#include <string>

namespace penstock::zero {
namespace {

using std::chrono::seconds;

/// Of a rank with 2^20 parameters and its states on one drive, whose steps took 10 s: 4 of them computed, and the
/// update 8.
RunReport report_of(float cpu_update_ratio, UpdateSplit split, std::vector<RunReport::Drive> drives,
                    ByteCount device_states = {}) {
  Config config{.stage = 3};
  config.dtype = config.grad_accum_dtype = DType::bf16;
  config.offload_param = config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"."}};
  config.cpu_update_ratio = cpu_update_ratio;
  config.penstock.update_split = split;
  config.penstock.device_states = device_states;
  ModelLayout model;
  for (int unit = 0; unit < 4; ++unit) {
    model.units.push_back(
        {.name = std::to_string(unit), .parameters = {{"weight", ElementCount(1 << 18), 0}}});
  }
  const MemoryPlan plan = plan_memory(config, model, 1, 1, tiers::DeviceMemory::separate).value();
  RunReport report{.drives = std::move(drives)};
  add_changes(report, config, model, plan, {},
              {.steps = 1,
               .forward = seconds(7),
               .backward = seconds(3),
               .waiting = seconds(6),
               .updating = seconds(8)},
              tiers::DeviceMemory::separate);
  return report;
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
  const double by_cpu = simulated(report_of(1, UpdateSplit::ratio, no_drives));
  EXPECT_NEAR(by_cpu, 10, 1);
  EXPECT_NEAR(simulated(report_of(0, UpdateSplit::ratio, no_drives)), by_cpu, 0.5);
  EXPECT_NEAR(simulated(report_of(0.25, UpdateSplit::ratio, no_drives)), by_cpu, 0.5);
  EXPECT_NEAR(simulated(report_of(1, UpdateSplit::automatic, no_drives)), by_cpu, 0.5);
  for (const ByteCount kept : {3_MiB, 6_MiB}) {  // one or two of the four tiles stay on the device
    EXPECT_NEAR(simulated(report_of(1, UpdateSplit::ratio, no_drives, kept)), by_cpu, 0.5);
    EXPECT_NEAR(simulated(report_of(0.25, UpdateSplit::ratio, no_drives, kept)), by_cpu, 0.5);
    EXPECT_NEAR(simulated(report_of(1, UpdateSplit::automatic, no_drives, kept)), by_cpu, 0.5);
  }
}

// 24 MiB of states are read and written in each step, at 1 MiB/s: longer than anything else. Of two drives, each has
// what it had in the run.
TEST(HelpfulChanges, TakeEachDriveAtItsRate) {
  const auto drive = [](double limit, ByteCount moved) {
    return RunReport::Drive{.read = moved, .busy = seconds(1), .limit = limit};
  };
  const double mib = 1 << 20, one = simulated(report_of(1, UpdateSplit::ratio, {drive(mib, 8_MiB)}));
  EXPECT_GT(one, 20);
  const double equal = simulated(report_of(1, UpdateSplit::ratio, {drive(mib, 8_MiB), drive(mib, 8_MiB)}));
  EXPECT_NEAR(equal / one, 0.5, 0.1);
  EXPECT_GT(simulated(report_of(1, UpdateSplit::ratio, {drive(mib, 8_MiB), drive(mib / 4, 8_MiB)})),
            1.5 * one);
  EXPECT_NEAR(simulated(report_of(1, UpdateSplit::ratio, {drive(0, 1_MiB)})), one,
              0.1 * one);  // 1 MiB in a second
}

}  // namespace
}  // namespace penstock::zero
