#pragma once

#include "swap/runtime_internals.hpp"
#include "tiers/device/event_pool.hpp"
#include "tiers/device/stream_progress.hpp"
#include "zero/comm/collective_hops.hpp"

#include <penstock/base/result.hpp>
#include <penstock/zero/rank.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace penstock::bench {

/// One rank, with flats of its own in host memory, which it gathers and reduces in two ways. Used by one thread.
class Rank {
 public:
  static constexpr std::uint32_t flats = 4;
  using Join =
      std::function<Result<std::unique_ptr<zero::Communicator>>(tiers::Device& device, Compute& compute)>;

  /// Collective. `flat_max`: of the largest flat.
  [[nodiscard]] static Result<std::unique_ptr<Rank>> create(const Join& join, ByteCount flat_max);
  ~Rank();

  /// Copies a shard into each flat, gathers the flats and reduces them, one after the other, by calls of the
  /// communicator. The thread sleeps until it is woken, at most as long as the mover would.
  Result<void> call_directly(ByteCount flat);
  /// The same as the engine does it: as moves of a runtime, each with a hop in the order of collectives.
  Result<void> call_through_hops(ByteCount flat);
  /// Returns when all ranks have called it.
  Result<void> meet();

 private:
  struct Flat {
    DeviceSpan memory, shard;
    std::unique_ptr<tiers::Event> gathered, written, reduced;
  };
  Rank() = default;
  Result<void> finish();
  void start(std::unique_ptr<swap::Hop> hop);
  [[nodiscard]] DeviceTensor slot(const Flat& of, ByteCount flat) const;
  [[nodiscard]] zero::CollectiveSignature signature(zero::CollectiveSignature::Subject subject,
                                                    std::size_t unit) const;
  void wake();

  zero::Accelerator accelerator_;
  std::unique_ptr<tiers::Stream> copy_in_, communication_;
  std::vector<Flat> flats_;
  std::unique_ptr<zero::Communicator> communicator_;
  std::uint64_t step_ = 0;

  std::mutex mutex_;
  std::condition_variable woken_;
  bool is_woken_ = false;

  // Of the hops.
  std::unique_ptr<swap::Runtime> runtime_;
  std::unique_ptr<tiers::EventPool> events_;
  std::unique_ptr<tiers::StreamProgress> copied_in_;
  zero::HopOrder order_;
  zero::CollectiveTrace trace_;
  std::atomic<std::uint64_t> moves_ = 0;  // in flight
  Result<void> outcome_;                  // the first error; guarded by the runtime's lock
};

}  // namespace penstock::bench
