#include "zero/report/helpful_changes.hpp"

#include "base/notes.hpp"
#include "zero/simulate/model_simulation.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <utility>
#include <vector>

namespace penstock::zero {

namespace {

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

TimePoint time_of(double seconds) {
  return std::chrono::duration_cast<TimePoint>(std::chrono::duration<double>(seconds));
}

/// Of a step.
double seconds_of_step(std::chrono::nanoseconds of_all, const StepTimes& times) {
  return seconds(of_all) / static_cast<double>(times.steps);
}

std::uint32_t micro_batches_of_step(const StepTimes& times) {
  return static_cast<std::uint32_t>(
      std::max(std::uint64_t{1}, (times.micro_batches + times.steps / 2) / times.steps));
}

constexpr double no_limit = 1e15;  // bytes a second

double of(ByteCount bytes) {
  return static_cast<double>(bytes.value());
}

bool has_rate(const RunReport::Drive& drive) {
  const bool moved = !drive.read.is_zero() || !drive.written.is_zero();
  return moved && (drive.limit > 0 || drive.busy > TimePoint());
}

/// The drives of a node with so many `ranks`, each of which has this report's part of them: at their limits, or else at
/// the rates at which they have moved bytes. If none has moved any, one on which nothing takes time.
std::vector<swap::ReplayCosts::Disk> disks_of(const RunReport& report, double ranks) {
  std::vector<swap::ReplayCosts::Disk> disks;
  const auto add = [&](double rate, double weight) {
    disks.push_back({.rates = {.read = rate, .write = rate, .mixed = rate}, .weight = weight});
  };
  for (const RunReport::Drive& drive : report.drives) {
    if (!has_rate(drive)) continue;
    const double moved = of(drive.read) + of(drive.written);
    add((drive.limit > 0 ? drive.limit : moved / seconds(drive.busy)) * ranks, moved);
  }
  if (disks.empty()) add(no_limit, 1);
  if (std::ranges::all_of(report.drives, [](const auto& drive) { return drive.limit > 0; })) {
    for (swap::ReplayCosts::Disk& disk : disks) disk.eviction = swap::costs_at(disk.rates.mixed);
  }
  return disks;
}

/// `round`: of a machine with disks_of(report).
void set_predicted_steps(RunReport& report, const swap::ReplayedRound& round) {
  report.predicted_step_traffic = {round.read, round.written};
  for (RunReport::Traffic& traffic : report.traffic) {
    const auto& moved = round.by_purpose[static_cast<std::size_t>(traffic.purpose)];
    traffic.predicted_step = {moved.read, moved.written};
  }
  auto disk = round.disks.begin();
  for (RunReport::Drive& drive : report.drives) {
    if (!has_rate(drive)) continue;
    drive.predicted_step = {disk->read, disk->written, time_of(disk->busy)};
    ++disk;
  }
}

/// Sets the rates with which the update takes so long where processors and device take as long as each other. `part`:
/// of a node's processors, that the rank has.
void set_update(simulate::Machine& node, const MemoryPlan& plan, double update_seconds, double part) {
  const MemoryPlan::Update& update = plan.update;
  const double states = of(plan.host_tiles + plan.disk_tiles), streamed = of(update.streamed),
               by_device = update.split == UpdateSplit::automatic ? streamed / 2 : streamed;
  node.update = (states - by_device) / update_seconds / part;
  // With its copies, which take no time beside it.
  node.device.update = (of(plan.device_tiles) + by_device) / update_seconds;
  node.device.host_copy = no_limit;
}

std::string step_text(double simulated, double measured) {
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(), "a step takes %.3g s as simulated, and has taken %.3g s", simulated,
                measured);
  return text.data();
}

std::string traffic_text(const char* reads, const char* writes, const RunReport::StepTraffic& traffic) {
  return std::string(reads) + to_string(traffic.read) + writes + to_string(traffic.written);
}

}  // namespace

void add_changes(RunReport& report, const Config& config, const ModelLayout& model, const MemoryPlan& plan,
                 const RankIdentity& identity, const StepTimes& times, tiers::DeviceMemory device_memory) {
  constexpr std::uint32_t steps = 4;
  const auto end = [&](std::string note) { report.changes_note = std::move(note); };
  if (times.steps == 0) return end("no step has ended");
  if (config.penstock.eviction == swap::Eviction::reuse_distance)
    return end(
        "nothing is predicted with penstock.eviction reuse_distance, which drops what transfers have ended");
  const std::chrono::nanoseconds took = times.forward + times.backward + times.stepping + times.between;
  const double measured = seconds_of_step(took, times);
  const double arithmetic = seconds_of_step(took - times.waiting, times),
               updating = seconds_of_step(times.updating, times);
  if (arithmetic <= 0) return end("the trainer's thread has only waited");
  if (updating <= 0) return end("no tile has been updated");

  const simulate::TrainingRun run{.ranks = identity.ranks,
                                  .ranks_per_node = identity.local_ranks,
                                  .local_rank = identity.local_rank,
                                  .micro_batches = micro_batches_of_step(times),
                                  .tokens = 1,  // whatever they are, they have taken so long
                                  .dtype = config.dtype,
                                  .device_memory = device_memory};
  if ((plan.host_tiles + plan.disk_tiles).is_zero()) return end("all optimizer states are on the device");
  simulate::Machine node;
  node.costs.disks = disks_of(report, identity.local_ranks);
  node.device.flops = simulate::model_operations(model, run) / arithmetic;
  set_update(node, plan, updating, 1.0 / identity.local_ranks);
  const auto simulated = simulate::simulate_model(config, model, node, run, steps);
  if (!simulated) return end(first_line(simulated.error()));
  const double step = simulated->simulation.steady.seconds;
  report.predicted_step = time_of(step);
  set_predicted_steps(report, simulated->simulation.steady);
  std::string note =
      step_text(step, measured) + traffic_text("; it reads ", " and writes ", report.predicted_step_traffic);
  if (report.step_traffic != RunReport::StepTraffic())
    note += traffic_text(", and has read ", " and written ", report.step_traffic);
  constexpr double alike = 1.5;
  if (step > alike * measured || measured > alike * step) {
    return end(std::move(note) + ": too different to say what would help");
  }
  for (const auto& change : simulated->simulation.changes)
    report.changes.push_back({change.what, 1 - change.seconds / step});
  if (report.changes.empty()) note += "; none of the changes would help";
  end(std::move(note));
}

}  // namespace penstock::zero
