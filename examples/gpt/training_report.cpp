#include "gpt/training_report.hpp"

#include "gpt/memory_bound.hpp"
#include "gpt/peak_memory.hpp"

#include <penstock/base/time.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace gpt {

using penstock::ByteCount;
using penstock::Clock;
using penstock::to_string;
using penstock::tiers::Purpose;
using penstock::tiers::Tier;

namespace {
double seconds(penstock::TimePoint time) {
  return std::chrono::duration<double>(time).count();
}
}  // namespace

TrainingReport::TrainingReport(const ModelConfig& model, const TrainingConfig& training,
                               const DiskLimit* limit, bool device_is_host)
    : model_(model),
      training_(training),
      limit_(limit),
      device_is_host_(device_is_host),
      tokens_(double{1} * training.ranks * training.micro_batches * training.sequences * model.context),
      began_(Clock::steady().now()),
      last_(began_) {
  reset_peak_resident_memory();
  const ModelDescription description(model);
  std::printf("%s parameters, %u ranks, %.0f tokens a step\n", to_string(description.element_count()).c_str(),
              training.ranks, tokens_);
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

void TrainingReport::step(std::uint32_t step, std::span<const StepReport> reports, const Trainers& trainers) {
  const auto now = Clock::steady().now();
  const double elapsed = seconds(now - last_), total = seconds(now - began_);
  last_ = now;
  const Totals before = moved_;
  moved_ = moved(trainers);
  const double read = moved_.read - before.read, written = moved_.written - before.written;

  double loss = 0, stall = 0, update = 0;  // of the step before, which ran beside this one
  for (const StepReport& report : reports) {
    loss += report.loss / training_.ranks;
    stall += report.stalled.sum() / training_.ranks;
    update = std::max(update, seconds(report.outcome.previous_update));
  }
  losses_.push_back(loss);
  double tiles = 0;
  for (const auto& trainer : trainers) {
    const auto traffic = trainer->runtime().ledger().traffic(Purpose::optimizer_tile);
    tiles += static_cast<double>((traffic.read + traffic.written).value());
  }
  // What was moved before the first step ended is not counted: it includes the initial writes of the tiles.
  if (step > 0) {
    optimizer_bytes_ += tiles - tile_bytes_;
    optimizer_seconds_ += update;
  }
  tile_bytes_ = tiles;

  const double left = total / (step + 1) * (training_.steps - step - 1);
  std::printf(
      "step %u/%u  loss %.3f  %.2f k tok/s  read %.2f GB  write %.2f GB  update %.2f s  stall %.2f s (%.0f "
      "%%)  "
      "ETA %d:%02d%s\n",
      step + 1, training_.steps, loss, tokens_ / elapsed / 1e3, read / 1e9, written / 1e9, update, stall,
      100 * stall / elapsed, static_cast<int>(left) / 60, static_cast<int>(left) % 60,
      reports[0].outcome.skip_reason.empty() ? "" : ("  skipped: " + reports[0].outcome.skip_reason).c_str());
  std::fflush(stdout);
}

void TrainingReport::end(const Trainers& trainers, const std::string& digest) const {
  const std::size_t tail = std::min<std::size_t>(losses_.size(), 6);
  double mean = 0;
  for (std::size_t i = losses_.size() - tail; i < losses_.size(); ++i)
    mean += losses_[i] / static_cast<double>(tail);
  std::printf("\n%zu steps in %.0f s; loss from %.3f to %.3f (mean of the last %zu)\n", losses_.size(),
              seconds(last_ - began_), losses_.empty() ? 0.0 : losses_.front(), mean, tail);
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
    const MemoryBound bound = memory_bound(trainers[0]->plan(), model_, training_, device_is_host_);
    std::printf(" of at most %s: host budget %s, device budget %s, activations %s, and %s for the process",
                to_string(bound.total()).c_str(), to_string(bound.host).c_str(),
                to_string(bound.device).c_str(), to_string(bound.activations).c_str(),
                to_string(bound.beside).c_str());
  }
  std::printf("\n");
}

void TrainingReport::bytes_by_tier(const Trainers& trainers) const {
  std::printf("\n%-8s%-20s%14s%14s\n", "tier", "purpose", "at most", "actual peak");
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    for (std::size_t p = 0; p < penstock::tiers::purpose_count; ++p) {
      ByteCount predicted, peak;
      for (const auto& trainer : trainers) {
        const auto line = trainer->runtime().ledger().line(tier, Purpose(p));
        predicted += line.predicted;
        peak += line.peak;
      }
      if (predicted.is_zero() && peak.is_zero()) continue;
      std::printf("%-8s%-20s%14s%14s\n", std::string(to_string(tier)).c_str(),
                  std::string(to_string(Purpose(p))).c_str(), to_string(predicted).c_str(),
                  to_string(peak).c_str());
    }
  }
}

void TrainingReport::disk(const Trainers& trainers) const {
  std::printf("\n%-28s%14s%14s%14s%14s\n", "disk traffic, all steps", "read", "predicted", "written",
              "predicted");
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
    std::printf("%-28s%14s%14s%14s%14s\n", std::string(to_string(Purpose(p))).c_str(),
                to_string(sum.read).c_str(), to_string(sum.predicted_read).c_str(),
                to_string(sum.written).c_str(), to_string(sum.predicted_written).c_str());
  }
  std::printf("* for parameter shards this is an upper limit: shards that fit stay in memory\n");
  if (limit_ == nullptr) return;
  const double rate = optimizer_seconds_ > 0 ? optimizer_bytes_ / optimizer_seconds_ : 0;
  std::printf(
      "\noptimizer updates moved %.2f GB in %.1f s: %.2f GB/s, %.0f %% of the disk's mixed limit of %.2f "
      "GB/s\n",
      optimizer_bytes_ / 1e9, optimizer_seconds_, rate / 1e9, 100 * rate / limit_->mixed,
      limit_->mixed / 1e9);
}

}  // namespace gpt
