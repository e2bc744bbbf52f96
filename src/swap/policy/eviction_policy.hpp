#pragma once

#include "swap/policy/next_uses.hpp"

#include <penstock/swap/runtime_options.hpp>

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory_resource>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace penstock::swap {

/// What a byte costs that is read or written on a path, such as its time. Only ratios matter.
struct TransferCosts {
  double read = 1, write = 1;  ///< above 0
  bool operator==(const TransferCosts&) const = default;
};
/// Of a path that moves so many bytes a second.
[[nodiscard]] inline TransferCosts costs_at(double rate) {
  return {.read = 1 / rate, .write = 1 / rate};
}

/// By PathOptions::rate_limit: the time of a byte. Empty, unless all paths have one: then all cost alike.
[[nodiscard]] std::vector<TransferCosts> transfer_costs(std::span<const PathOptions> paths);

/// A host copy that leaves memory if its room is needed.
struct EvictionCandidate {
  ByteCount size;               ///< of its range
  std::uint32_t path = 0;       ///< on which its extent is
  bool home_in_memory = false;  ///< see TensorDescription
  bool dirty = false;           ///< must be stored before it can be dropped
  bool is_read_next = true;     ///< its next use needs the contents, so that they are loaded again
  std::uint64_t last_use = 0;   ///< larger is later
  std::uint64_t next_use = NextUses::never;  ///< position in the trace; larger is further
  bool operator==(const EvictionCandidate&) const = default;
};

/// What a byte of it costs if it is evicted now, and would not if it stayed: its write if it is dirty, and its read if
/// it is used again and that use needs the contents. Of both, the one that costs less counts a tenth: what is dirty is
/// often written in the end, if it stays, too. Pure.
[[nodiscard]] double cost_of_eviction(const EvictionCandidate& candidate, const TransferCosts& costs);

/// All candidates, in the order in which they are evicted.
///
/// `lru`: the least recently used first. `planned`: the one first that costs least for the time in which its room is
/// free: cost_of_eviction(), divided by the uses until its next one. Of candidates that cost alike that is the one
/// whose next use is furthest away (Belady 1966). Costs are counted for each byte, so that a candidate's size does not
/// matter. Those at home in memory follow all others.
///
/// update() takes O(log n), a step of a walk O(different costs), at most four for each path. Pure; owned by one thread.
class EvictionOrder {
 public:
  /// `paths`: the costs of each; none or one: all are alike.
  explicit EvictionOrder(Eviction policy, std::span<const TransferCosts> paths = {});

  /// Replaces the candidate of `tensor`; none: the tensor may not be evicted.
  void update(tiers::TensorId tensor, const std::optional<EvictionCandidate>& candidate);

  /// What all candidates occupy that are not at home in memory, and those that are.
  [[nodiscard]] ByteCount size() const { return size_; }
  [[nodiscard]] ByteCount size_of_homes() const { return size_of_homes_; }
  /// How often a candidate has changed.
  [[nodiscard]] std::uint64_t changes() const { return changes_; }
  /// Takes the next candidate of a walk; returns whether it goes on.
  using Visit = std::function<bool(tiers::TensorId)>;
  /// Walks through the candidates that are not at home in memory, for a request at `position` of the trace. False if
  /// `visit` has ended it.
  bool walk(std::uint64_t position, const Visit& visit) const;
  /// Those at home in memory.
  bool walk_homes(std::uint64_t position, const Visit& visit) const;
  /// For what is read ahead, with every policy: clean ones that are not at home in memory and whose next use is at
  /// `from` or later, the last one first. Only a copy that is used later than the tensor that is read ahead is worth
  /// its room.
  bool walk_clean_used_from(std::uint64_t from, const Visit& visit) const;

 private:
  struct Entry {
    std::uint64_t primary = 0, secondary = 0;
    tiers::TensorId tensor{};
    auto operator<=>(const Entry&) const = default;
  };
  using Queue = std::pmr::set<Entry>;
  /// Of candidates that cost alike; with `lru` all are in the first one.
  using Queues = std::vector<Queue>;

  static Entry by_next_use(tiers::TensorId tensor, const EvictionCandidate& candidate) {
    return {NextUses::never - candidate.next_use, candidate.last_use, tensor};
  }
  [[nodiscard]] std::size_t number_of(double cost);
  [[nodiscard]] Queue& queue_of(const EvictionCandidate& candidate);
  [[nodiscard]] Entry entry_of(tiers::TensorId tensor, const EvictionCandidate& candidate) const;
  bool walk(const Queues& queues, std::uint64_t position, const Visit& visit) const;

  Eviction policy_;
  std::vector<double> costs_;  // by number of the queue
  std::vector<std::array<std::size_t, 4>>
      queues_of_;  // by path: of what moves nothing, is read, is written, is both
  std::pmr::unsynchronized_pool_resource nodes_;
  Queues others_, homes_;
  Queue clean_{&nodes_};                                      // not at home, by next use
  std::vector<std::optional<EvictionCandidate>> candidates_;  // by tensor
  ByteCount size_, size_of_homes_;
  std::uint64_t changes_ = 0;
  mutable std::vector<Queue::const_iterator> cursors_;  // of a walk
};

}  // namespace penstock::swap
