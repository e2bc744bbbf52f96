#pragma once

#include "swap/policy/access_trace.hpp"

#include <penstock/base/units.hpp>

#include <cstdint>
#include <memory_resource>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace penstock::swap {

/// Bytes by position of use: a sum over the next so many uses takes O(log n) (Fenwick 1994).
class BytesByUse {
 public:
  /// Forgets everything. Positions are `length` consecutive ones, and those that are equal modulo `length`.
  void reset(std::uint64_t length) { sums_.assign(length + 1, 0); }
  void add(std::uint64_t position, std::int64_t bytes);
  /// Of the positions [from, to), at most `length` of them.
  [[nodiscard]] ByteCount sum(std::uint64_t from, std::uint64_t to) const;

 private:
  [[nodiscard]] std::uint64_t prefix(std::uint64_t count) const;
  std::vector<std::uint64_t> sums_;
};

/// What a tensor is to reading ahead.
struct PrefetchFacts {
  ByteCount room;  ///< that it takes in host memory
  ByteCount payload;
  bool lacks_room = false;  ///< it has no host copy and no range reserved
  bool loadable = false;    ///< it has no host copy, and its extent holds the newest version
  bool retained = false;    ///< it stays in memory after its use, so that the trace reads it ahead
  bool evictable = false;   ///< a clean copy that may be dropped
  bool awaited = false;     ///< its use was recorded, and its lease not yet granted

  bool operator==(const PrefetchFacts&) const = default;
};

/// Decides what is read ahead, and how much memory that may take.
///
/// Read ahead are the retained tensors of the next uses, as far as `lookahead` bytes reach, and those that
/// request() names. Both in the order of use: a tensor is loaded early only where all that is used before it and
/// has no room yet would fit beside it; otherwise what is used before would evict it again, and its bytes would
/// be read twice.
///
/// Example: 64 KiB are free, A (40 KiB) is used next and B (40 KiB) after it, neither is in memory. A is loaded.
/// B needs 40 KiB, and 24 KiB are left: it waits. Had A room, B would need 40 of 64 KiB and be loaded.
///
/// Each call takes O(log n) but for the one after revision() of the trace changed. Pure; owned by one thread.
class PrefetchPolicy {
 public:
  /// `trace` outlives it.
  PrefetchPolicy(const AccessTrace& trace, ByteCount lookahead) : trace_(trace), lookahead_(lookahead) {}

  /// `facts` replace what was known of `tensor`. Called for every tensor whose facts or next use changed.
  void update(tiers::TensorId tensor, const PrefetchFacts& facts);
  /// All positions changed with the trace's revision.
  void rebuild();
  /// The trace advanced by the use of `used`.
  void advance(tiers::TensorId used);

  /// Read `tensor` ahead, should it be loadable.
  void request(tiers::TensorId tensor);
  void withdraw(tiers::TensorId tensor);
  void withdraw_all();

  /// What is to be loaded first; none when nothing is to be read ahead.
  [[nodiscard]] std::optional<tiers::TensorId> next() const;
  /// Whether `tensor` may be loaded into `free` bytes and those of clean copies that are used later.
  [[nodiscard]] bool has_room(tiers::TensorId tensor, ByteCount free) const;
  /// The position from which on copies may be evicted for `tensor`; none: not a single one.
  [[nodiscard]] std::optional<std::uint64_t> evicts_from(tiers::TensorId tensor) const;

 private:
  /// Place in a queue: the position of use, then the order of the requests.
  struct Rank {
    std::uint64_t use = 0, sequence = 0;
    tiers::TensorId tensor{};
    auto operator<=>(const Rank&) const = default;
  };
  struct Entry {
    PrefetchFacts facts;
    std::uint64_t use = AccessTrace::never;  // as counted in the sums; never: in none
    std::optional<Rank> along_trace, requested;
  };
  using Queue = std::pmr::set<Rank>;

  [[nodiscard]] Entry& entry(tiers::TensorId tensor);
  [[nodiscard]] std::uint64_t use_of(tiers::TensorId tensor, const PrefetchFacts& facts) const;
  void count(const Entry& entry, int sign);
  void enqueue(tiers::TensorId tensor, Entry& entry);
  void extend_window();
  static void remove(Queue& queue, std::optional<Rank>& rank);

  const AccessTrace& trace_;
  ByteCount lookahead_;
  std::vector<Entry> entries_;  // by tensor
  std::pmr::unsynchronized_pool_resource nodes_;
  Queue along_trace_{&nodes_}, requested_{&nodes_};
  BytesByUse lacking_, evictable_;
  ByteCount awaited_lacking_, evictable_total_;
  std::uint64_t window_begin_ = 0, window_end_ = 0;  // positions that lookahead_ reaches
  ByteCount window_bytes_;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace penstock::swap
