#pragma once

#include "swap/path/extent_allocator.hpp"
#include "swap/residency/host_residency.hpp"
#include "tiers/store/tensor_store.hpp"

#include <penstock/tiers/store/ledger.hpp>
#include "tiers/store/memory_budget.hpp"

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace penstock::swap::test {

/// Of two threads.
[[nodiscard]] std::array<std::thread::id, 2> two_thread_ids();

/// Host residency without memory and disk: effects are recorded, and the test finishes them.
class ResidencyFixture : private HostResidency::Effects {
 public:
  struct Options {
    ByteCount host_budget = 64_KiB;
    Eviction eviction = Eviction::planned;
    ByteCount lookahead = 64_KiB;
    std::vector<ExtentAllocator::PathRoom> paths = {{.capacity = 8_MiB, .reserved = 8_MiB}};
  };
  explicit ResidencyFixture(const Options& options);

  struct Effect {
    enum class Kind : std::uint8_t { load, store } kind{};
    tiers::TensorId tensor{};
    tiers::Extent place;
    bool verify = false;
    bool urgent = false;  ///< from its beginning on, or since it was hastened
  };

  /// A tensor with an extent, or one that stays in memory.
  [[nodiscard]] Result<tiers::TensorId> add(ByteCount size, tiers::TensorDescription description = {},
                                            bool on_disk = true);
  /// One that was written, stored and dropped from memory again. What is not retained is not looked ahead to.
  [[nodiscard]] tiers::TensorId stored(ByteCount size, bool retain = true);

  /// One that was written, is not stored, and is not to be stored before its room is needed.
  [[nodiscard]] tiers::TensorId dirty(ByteCount size);

  RequestId request(tiers::TensorId tensor, Access access);
  /// Requests, lets all effects succeed until the lease is granted, and releases it at once.
  void acquire(tiers::TensorId tensor, Access access = Access::read, Use use = Use::unrecorded);
  void use(tiers::TensorId tensor) { acquire(tensor, Access::read, Use::recorded); }
  /// Grants the lease, letting effects succeed; the caller releases it.
  void lease(tiers::TensorId tensor, Access access = Access::read, Use use = Use::unrecorded);
  /// One round in which they are used in this order, so that the future is known; then they are on disk only.
  void rehearse(const std::vector<tiers::TensorId>& order);

  /// Takes the oldest effect.
  [[nodiscard]] Effect take_effect();
  void finish(const Effect& effect, const Result<void>& result = ok());
  /// Advances, and lets all effects succeed, until there are none.
  void run();
  [[nodiscard]] bool in_memory(tiers::TensorId tensor) const;
  [[nodiscard]] std::uint64_t loads(tiers::TensorId tensor) { return loads_[tensor]; }

  tiers::Ledger ledger;
  tiers::MemoryBudget budget;
  tiers::TensorStore tensors;
  ExtentAllocator extents;
  std::deque<Effect> effects;          ///< that have not ended
  std::vector<tiers::TensorId> drops;  ///< so far
  std::uint64_t hastened = 0;          ///< calls so far
  HostResidency residency;

 private:
  void load(tiers::TensorId tensor, bool verify, bool urgent) override;
  void store(tiers::TensorId tensor, const tiers::Extent& place) override;
  void hasten(tiers::TensorId tensor) override;
  void drop(tiers::TensorId tensor) override { drops.push_back(tensor); }

  std::map<tiers::TensorId, std::uint64_t> loads_;
  std::uint32_t next_unit_ = 0;
};

}  // namespace penstock::swap::test
