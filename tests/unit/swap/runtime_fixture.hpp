#pragma once

#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/tiers/io/sim_disk.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace penstock::swap::test {

/// A runtime over simulated disks, each behind a FaultEngine, driven by the test's own thread.
class Simulation final : public IdleHandler {
 public:
  struct Options {
    std::uint64_t seed = 1;
    ByteCount host_budget;
    Eviction eviction = Eviction::planned;
    ByteCount lookahead = 64_KiB;
    std::vector<double> bandwidths = {1};  ///< GB/s of each disk, and its path's weight
    bool knows_rates = false;              ///< the runtime is told of them
    ByteCount capacity = 8_MiB;            ///< of each swap file
    ByteCount request_max = 16_KiB;
    ByteCount in_flight_max = 16_MiB;
    std::optional<ByteCount> reserved;  ///< of each swap file; none: all
    ByteCount disk_capacity = 1_GiB;    ///< of each disk
  };
  explicit Simulation(const Options& options);

  void idle() override;
  /// Until nothing more happens by itself.
  void run();

  [[nodiscard]] tiers::FaultEngine& faults(std::size_t path = 0) { return *faults_[path]; }
  /// The next `count` requests to a path fail, with an error that no shorter request would be spared.
  void fail_requests(std::uint64_t count, std::size_t path = 0);
  /// The bytes of a path's swap file.
  [[nodiscard]] HostSpan file(std::size_t path = 0);

  tiers::SimClock clock;
  std::function<void()> on_idle;  ///< what another thread does while a call waits; null: nothing

 private:
  [[nodiscard]] TimePoint next_due() const;

  std::vector<std::unique_ptr<tiers::SimDisk>> disks_;
  std::vector<tiers::SimEngine*> engines_;
  std::vector<tiers::FaultEngine*> faults_;
  Runtime* driven_ = nullptr;  // while `runtime` is destroyed too

 public:
  std::unique_ptr<Runtime> runtime;  // destroyed first: its destructor drives until nothing is in flight
};

/// A key that no other tensor of the process has.
[[nodiscard]] tiers::TensorKey next_key();
[[nodiscard]] tiers::TensorId add(Runtime& runtime, ByteCount size, bool on_disk = true,
                                  bool write_behind = true);
/// Fills the tensor with a pattern of its own and of `generation`.
void write(Runtime& runtime, tiers::TensorId tensor, std::uint64_t generation, Use use = Use::unrecorded);
/// Whether it holds that pattern.
[[nodiscard]] bool holds(Runtime& runtime, tiers::TensorId tensor, std::uint64_t generation,
                         Use use = Use::unrecorded);

}  // namespace penstock::swap::test
