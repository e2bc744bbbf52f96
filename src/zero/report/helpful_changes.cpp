#include "zero/report/helpful_changes.hpp"

#include "base/notes.hpp"
#include "zero/simulate/model_simulation.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>

namespace penstock::zero {

namespace {

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

/// Of a step.
double seconds_of_step(std::chrono::nanoseconds of_all, const StepTimes& times) {
  return seconds(of_all) / static_cast<double>(times.steps);
}

/// Bytes a second of all drives together; none if they have moved nothing.
std::optional<double> drive_rate(const RunReport& report) {
  double sum = 0;
  for (const RunReport::Drive& drive : report.drives) {
    const double moved = static_cast<double>(drive.read.value()) + static_cast<double>(drive.written.value());
    if (drive.limit > 0) {
      sum += drive.limit;
    } else if (moved > 0 && seconds(drive.busy) > 0) {
      sum += moved / seconds(drive.busy);
    }
  }
  return sum > 0 ? std::optional(sum) : std::nullopt;
}

std::string step_text(double simulated, double measured) {
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(), "a step takes %.3g s as simulated, and has taken %.3g s", simulated,
                measured);
  return text.data();
}

}  // namespace

void add_changes(RunReport& report, const Config& config, const ModelLayout& model, const MemoryPlan& plan,
                 const RankIdentity& identity, const StepTimes& times, tiers::DeviceMemory device_memory) {
  constexpr std::uint32_t steps = 4;
  constexpr double no_disk = 1e15;  // bytes a second
  const auto end = [&](std::string note) { report.changes_note = std::move(note); };
  if (times.steps == 0) return end("no step has ended");
  const std::chrono::nanoseconds took = times.forward + times.backward + times.stepping + times.between;
  const double arithmetic = seconds_of_step(took - times.waiting, times),
               updating = seconds_of_step(times.updating, times);
  if (arithmetic <= 0) return end("the trainer's thread has only waited");
  if (updating <= 0) return end("no tile has been updated");

  const simulate::TrainingRun run{.ranks = identity.ranks,
                                  .ranks_per_node = identity.local_ranks,
                                  .micro_batches = config.gradient_accumulation_steps,
                                  .tokens = 1,  // whatever they are, they have taken so long
                                  .dtype = config.dtype,
                                  .device_memory = device_memory};
  const double of_node = identity.local_ranks;
  const double tiles = static_cast<double>((plan.host_tiles + plan.disk_tiles).value());
  const double rate = drive_rate(report).value_or(no_disk) * of_node;
  simulate::Machine node;
  node.costs.disks = {{.rates = {.read = rate, .write = rate, .mixed = rate}}};
  node.device.flops = simulate::model_operations(model, run) / arithmetic;
  node.update = tiles / updating * of_node;
  if (!(node.update > 0)) return end("all optimizer states are on the device");
  const auto simulated = simulate::simulate_model(config, model, node, run, steps);
  if (!simulated) return end(first_line(simulated.error()));
  const double step = simulated->simulation.steady.seconds;
  const double measured = seconds_of_step(took, times);
  std::string note = step_text(step, measured);
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
