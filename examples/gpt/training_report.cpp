#include "gpt/training_report.hpp"

#include "gpt/memory_bound.hpp"
#include "gpt/peak_memory.hpp"
#include "gpt/step_seconds.hpp"
#include "gpt/tier_bytes.hpp"

#include <penstock/base/time.hpp>
#include <penstock/zero/report/run_report.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <utility>

namespace gpt {

using penstock::ByteCount;
using penstock::Clock;
using penstock::to_string;
using penstock::tiers::Purpose;

namespace {
double seconds(penstock::TimePoint time) {
  return std::chrono::duration<double>(time).count();
}

std::vector<TierBytes> tier_bytes_of(const TrainingReport::Trainers& trainers) {
  std::vector<penstock::swap::Runtime*> runtimes;
  for (const auto& trainer : trainers) runtimes.push_back(&trainer->runtime());
  return tier_bytes(runtimes);
}
}  // namespace

TrainingReport::TrainingReport(const ModelConfig& model, const TrainingConfig& training,
                               std::uint32_t ranks_here, const DiskLimit* limit, bool device_is_host)
    : model_(model),
      training_(training),
      ranks_here_(ranks_here),
      limit_(limit),
      device_is_host_(device_is_host),
      tokens_(double{1} * training.ranks * training.micro_batches * training.sequences * model.context),
      began_(Clock::steady().now()),
      last_(began_) {
  reset_peak_resident_memory();
  const ModelDescription description(model);
  const std::string trained =
      model.lora ? ", " + to_string(description.trained_count()) + " of them trained" : std::string();
  std::printf("%s parameters%s, %u ranks, %.0f tokens a step%s\n",
              to_string(description.element_count()).c_str(), trained.c_str(), training.ranks, tokens_,
              ranks_here < training.ranks ? "; bytes and memory are those of rank 0" : "");
  if (limit != nullptr) {
    std::printf("disk limit, measured now: read %.2f, write %.2f, mixed %.2f GB/s%s\n", limit->read / 1e9,
                limit->write / 1e9, limit->mixed / 1e9,
                limit->direct ? "" : " (page cache: no direct I/O here)");
  }
  std::fflush(stdout);
}

TrainingReport::Totals TrainingReport::moved(const Trainers& trainers) {
  Totals totals;
  for (const auto& trainer : trainers) {
    const auto traffic = trainer->runtime().ledger().traffic();
    totals.read += static_cast<double>(traffic.read.value());
    totals.written += static_cast<double>(traffic.written.value());
  }
  return totals;
}

void TrainingReport::step(std::uint32_t step, double loss, std::span<const StepReport> reports,
                          const Trainers& trainers) {
  const auto now = Clock::steady().now();
  const double elapsed = seconds(now - last_), total = seconds(now - began_);
  last_ = now;
  const Totals before = moved_;
  moved_ = moved(trainers);
  const double read = moved_.read - before.read, written = moved_.written - before.written;

  double stall = 0, update = 0;  // of the step before, which ran beside this one
  for (const StepReport& report : reports) {
    stall += report.stalled.sum() / static_cast<double>(reports.size());
    update = std::max(update, seconds(report.outcome.previous_update));
  }
  const bool skipped = !reports[0].outcome.skip_reason.empty();
  steps_.push_back({.loss = loss,
                    .seconds = elapsed,
                    .update_seconds = update,
                    .stall_seconds = stall,
                    .moved = {read, written},
                    .skipped = skipped});
  device_free_min_ = std::min(device_free_min_, trainers[0]->device_memory().free_now);
  double tiles = 0;
  for (const auto& trainer : trainers) {
    const auto traffic = trainer->runtime().ledger().traffic(Purpose::optimizer_tile);
    tiles += static_cast<double>((traffic.read + traffic.written).value());
  }
  // What was moved before the first step ended is not counted: it includes the initial writes of the tiles.
  if (steps_.size() > 1) {
    optimizer_bytes_ += tiles - tile_bytes_;
    optimizer_seconds_ += update;
  }
  tile_bytes_ = tiles;

  const double left = total / static_cast<double>(steps_.size()) * (training_.steps - step - 1);
  // The trainer of a GPU runs ahead, and waits for its arithmetic too: what the GPU waits for is in the trace.
  const char* const waits = device_is_host_ ? "stall" : "trainer waits";
  std::printf(
      "step %u/%u  loss %.3f  %.2f k tok/s  read %.2f GB  write %.2f GB  update %.2f s  %s %.2f s (%.0f %%)  "
      "ETA %d:%02d%s\n",
      step + 1, training_.steps, loss, tokens_ / elapsed / 1e3, read / 1e9, written / 1e9, update, waits,
      stall, 100 * stall / elapsed, static_cast<int>(left) / 60, static_cast<int>(left) % 60,
      skipped ? ("  skipped: " + reports[0].outcome.skip_reason).c_str() : "");
  std::fflush(stdout);
}

void TrainingReport::end(const Trainers& trainers, const std::string& digest) const {
  const std::size_t tail = std::min<std::size_t>(steps_.size(), 6);
  double mean = 0;
  for (std::size_t i = steps_.size() - tail; i < steps_.size(); ++i)
    mean += steps_[i].loss / static_cast<double>(tail);
  std::printf("\n%zu steps in %.0f s; loss from %.3f to %.3f (mean of the last %zu)\n", steps_.size(),
              seconds(last_ - began_), steps_.empty() ? 0.0 : steps_.front().loss, mean, tail);
  bytes_by_tier(trainers);
  if (!moved(trainers).is_zero()) disk(trainers);
  memory(trainers);
  std::printf("digest of all master weights  %s\n", digest.c_str());
}

void TrainingReport::memory(const Trainers& trainers) const {
  const ByteCount peak = peak_resident_memory();
  std::printf("\npeak resident memory %s",
              peak.is_zero() ? "unknown (/proc/self/status cannot be read)" : to_string(peak).c_str());
  if (device_is_host_) {
    ByteCount host_budgets;
    for (const auto& trainer : trainers) host_budgets += trainer->plan().host_budget;
    const MemoryBound bound =
        memory_bound(trainers[0]->plan(), host_budgets, model_, training_, ranks_here_, device_is_host_);
    std::printf(" of at most %s: host budget %s, device budget %s, activations %s, and %s for the process",
                to_string(bound.total()).c_str(), to_string(bound.host).c_str(),
                to_string(bound.device).c_str(), to_string(bound.activations).c_str(),
                to_string(bound.beside).c_str());
  }
  std::printf("\n");
}

void TrainingReport::bytes_by_tier(const Trainers& trainers) const {
  std::printf("\n%-8s%-20s%14s%14s\n", "tier", "purpose", "predicted", "actual");
  for (const TierBytes& one : tier_bytes_of(trainers)) {
    std::printf("%-8s%-20s%14s%14s", std::string(to_string(one.tier)).c_str(),
                std::string(to_string(one.purpose)).c_str(), to_string(one.predicted).c_str(),
                to_string(one.actual).c_str());
    if (!one.used.is_zero()) std::printf("  of which in use %s", to_string(one.used).c_str());
    std::printf("\n");
  }
}

/// Of a step after the first: what the ranks have moved in the mean, and what is simulated of it.
void TrainingReport::steps_on_disk(const Trainers& trainers) const {
  using penstock::zero::RunReport;
  std::map<Purpose, std::pair<RunReport::StepTraffic, RunReport::StepTraffic>> by_purpose;
  const auto add = [](RunReport::StepTraffic& sum, const RunReport::StepTraffic& moved) {
    sum.read += moved.read;
    sum.written += moved.written;
  };
  for (const auto& trainer : trainers) {
    const RunReport report = trainer->report();
    if (report.predicted_step_traffic == RunReport::StepTraffic()) return;  // it is not known
    for (const RunReport::Traffic& one : report.traffic) {
      add(by_purpose[one.purpose].first, one.step);
      add(by_purpose[one.purpose].second, one.predicted_step);
    }
  }
  std::printf("\n%-28s%14s%14s%14s%14s\n", "disk traffic, a step", "read", "simulated", "written",
              "simulated");
  for (const auto& [purpose, moved] : by_purpose)
    std::printf("%-28s%14s%14s%14s%14s\n", std::string(to_string(purpose)).c_str(),
                to_string(moved.first.read).c_str(), to_string(moved.second.read).c_str(),
                to_string(moved.first.written).c_str(), to_string(moved.second.written).c_str());
}

void TrainingReport::disk(const Trainers& trainers) const {
  std::printf("\n%-28s%14s%14s%14s%14s\n", "disk traffic, all steps", "read", "predicted", "written",
              "predicted");
  bool are_limits = false;
  for (std::size_t p = 0; p < penstock::tiers::purpose_count; ++p) {
    penstock::tiers::Ledger::Traffic sum;
    for (const auto& trainer : trainers) {
      const auto traffic = trainer->runtime().ledger().traffic(Purpose(p));
      sum.read += traffic.read;
      sum.written += traffic.written;
      sum.predicted_read += traffic.predicted_read;
      sum.predicted_written += traffic.predicted_written;
    }
    if (sum.read.is_zero() && sum.written.is_zero()) continue;
    const bool is_limit = Purpose(p) == Purpose::parameter_shard;
    are_limits = are_limits || is_limit;
    std::printf("%-28s%14s%14s%14s%14s\n",
                (std::string(to_string(Purpose(p))) + (is_limit ? "*" : "")).c_str(),
                to_string(sum.read).c_str(), to_string(sum.predicted_read).c_str(),
                to_string(sum.written).c_str(), to_string(sum.predicted_written).c_str());
  }
  if (are_limits) std::printf("* predicted at most: shards that fit stay in memory\n");
  steps_on_disk(trainers);
  if (limit_ == nullptr) return;
  const double rate = optimizer_seconds_ > 0 ? optimizer_bytes_ / optimizer_seconds_ : 0;
  std::printf(
      "\noptimizer updates moved %.2f GB in %.1f s: %.2f GB/s, %.0f %% of the disk's mixed limit of %.2f "
      "GB/s\n",
      optimizer_bytes_ / 1e9, optimizer_seconds_, rate / 1e9, 100 * rate / limit_->mixed,
      limit_->mixed / 1e9);
}

void TrainingReport::write_json(const OutputFile& file, const Trainers& trainers,
                                const std::string& digest) const {
  std::FILE* const out = file.get();
  const ModelDescription description(model_);
  const auto bytes = [](ByteCount count) { return static_cast<unsigned long long>(count.value()); };
  std::vector<double> seconds_of_steps;
  for (const Step& step : steps_) seconds_of_steps.push_back(step.seconds);
  std::fprintf(out,
               "{\"parameters\": %llu, \"trained_parameters\": %llu, \"ranks\": %u, \"micro_batches\": %u, "
               "\"tokens_per_step\": %.0f, "
               "\"digest\": \"%s\",\n \"median_step_seconds\": %.6f,\n \"steps\": [",
               static_cast<unsigned long long>(description.element_count().value()),
               static_cast<unsigned long long>(description.trained_count().value()), training_.ranks,
               training_.micro_batches, tokens_, digest.c_str(), median_step_seconds(seconds_of_steps));
  for (const Step& step : steps_) {
    std::fprintf(out,
                 "%s\n  {\"loss\": %s, \"seconds\": %.6f, \"update_seconds\": %.6f, "
                 "\"stall_seconds\": %.6f, \"read_bytes\": %.0f, \"written_bytes\": %.0f, \"skipped\": %s}",
                 &step == steps_.data() ? "" : ",", json_number(step.loss).c_str(), step.seconds,
                 step.update_seconds, step.stall_seconds, step.moved.read, step.moved.written,
                 step.skipped ? "true" : "false");
  }
  std::fprintf(out, "],\n \"ledger\": [");
  const char* separator = "";
  for (const TierBytes& one : tier_bytes_of(trainers)) {
    std::fprintf(
        out,
        "%s\n  {\"tier\": \"%s\", \"purpose\": \"%s\", \"predicted_bytes\": %llu, \"actual_bytes\": %llu",
        std::exchange(separator, ","), std::string(to_string(one.tier)).c_str(),
        std::string(to_string(one.purpose)).c_str(), bytes(one.predicted), bytes(one.actual));
    if (one.purpose == Purpose::staging) std::fprintf(out, ", \"used_bytes\": %llu", bytes(one.used));
    std::fprintf(out, "}");
  }
  std::fprintf(out, "],\n");
  if (limit_ != nullptr) {
    std::fprintf(out,
                 " \"disk_limit_bytes_per_second\": {\"read\": %.0f, \"write\": %.0f, \"mixed\": %.0f},\n",
                 limit_->read, limit_->write, limit_->mixed);
  }
  const DeviceMemoryUse device = trainers[0]->device_memory();
  std::fprintf(out,
               " \"device\": {\"budget_bytes\": %llu, \"activation_bytes\": %llu, "
               "\"free_at_start_bytes\": %llu, \"free_min_bytes\": %llu},\n"
               " \"peak_resident_bytes\": %llu}\n",
               bytes(trainers[0]->plan().device_budget), bytes(device.activations),
               bytes(device.free_at_start), bytes(device_free_min_), bytes(peak_resident_memory()));
}

}  // namespace gpt
