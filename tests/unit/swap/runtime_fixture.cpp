#include "unit/swap/runtime_fixture.hpp"

#include "kit/pattern.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <atomic>
#include <cerrno>

namespace penstock::swap::test {

using penstock::test::Pattern;
using tiers::TensorId;

Simulation::Simulation(const Options& options) {
  RuntimeOptions runtime_options{.host_budget = options.host_budget,
                                 .eviction = options.eviction,
                                 .lookahead = options.lookahead,
                                 .idle_handler = this};
  for (const double bandwidth : options.bandwidths) {
    const std::uint64_t number = disks_.size();
    disks_.push_back(std::make_unique<tiers::SimDisk>(tiers::SimDisk::Options{
        .capacity = options.disk_capacity, .bytes_per_second = static_cast<std::uint64_t>(bandwidth * 1e9)}));
    tiers::SimDisk& disk = *disks_.back();
    runtime_options.paths.push_back(
        {.directory = std::string("disk").append(std::to_string(number + 1)),
         .capacity = options.capacity,
         .reserved = options.reserved,
         .weight = bandwidth,
         .request_max = options.request_max,
         .in_flight_max = options.in_flight_max,
         .clock = &clock,
         .rate_limit = options.knows_rates ? bandwidth * 1e9 : 0,
         .file_system = &disk,
         .make_engine = [this, &disk, seed = options.seed + number](
                            const tiers::File::Properties&) -> Result<std::unique_ptr<tiers::IoEngine>> {
           auto engine = std::make_unique<tiers::SimEngine>(disk, clock, seed);
           engines_.push_back(engine.get());
           auto faulty = std::make_unique<tiers::FaultEngine>(std::move(engine), tiers::FaultPlan{}, clock);
           faults_.push_back(faulty.get());
           return faulty;
         }});
  }
  runtime = Runtime::create(std::move(runtime_options)).value();
  driven_ = runtime.get();
}

TimePoint Simulation::next_due() const {
  TimePoint due = forever;
  for (const auto* engine : engines_) due = std::min(due, engine->next_due());
  for (const auto* faulty : faults_) due = std::min(due, faulty->next_due());
  return std::min(due, driven_->next_deadline());
}

void Simulation::idle() {
  if (on_idle) on_idle();
  const TimePoint due = next_due();
  ASSERT_NE(due, forever) << "nothing is in flight and somebody waits";
  clock.advance_to(due);
}

void Simulation::run() {
  while (runtime->poll() || next_due() != forever) {
    if (next_due() != forever) clock.advance_to(next_due());
  }
}

void Simulation::fail_requests(std::uint64_t count, std::size_t path) {
  faults(path).add(tiers::Fault::fail({}, faults(path).accepted(), ENODEV, count));
}

HostSpan Simulation::file(std::size_t path) {
  return disks_[path]->bytes(runtime->paths()[path].file.handle);
}

tiers::TensorKey next_key() {
  static std::atomic<std::uint32_t> number{0};
  return {.unit = number++};
}

TensorId add(Runtime& runtime, ByteCount size, bool on_disk, bool write_behind) {
  return runtime
      .add({.name = "tensor",
            .key = next_key(),
            .purpose = tiers::Purpose::parameter_shard,
            .size = size,
            .block = 8_KiB,
            .write_behind = write_behind},
           on_disk)
      .value();
}

void write(Runtime& runtime, TensorId tensor, std::uint64_t generation, Use use) {
  Lease lease = runtime.acquire(tensor, Access::overwrite, use).value();
  Pattern{.tensor = static_cast<std::uint64_t>(tensor), .generation = generation}.fill(lease.bytes());
}

bool holds(Runtime& runtime, TensorId tensor, std::uint64_t generation, Use use) {
  Lease lease = runtime.acquire(tensor, Access::read, use).value();
  return !Pattern{.tensor = static_cast<std::uint64_t>(tensor), .generation = generation}.first_difference(
      lease.bytes());
}

}  // namespace penstock::swap::test
