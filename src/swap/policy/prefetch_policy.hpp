#pragma once

#include "swap/policy/next_uses.hpp"

#include <penstock/base/units.hpp>

#include <cstdint>
#include <memory_resource>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace penstock::swap {

/// Bytes by position of use; a sum over a range of positions takes O(log n) (Fenwick 1994).
class BytesByUse {
 public:
  /// Clears all bytes. Positions count modulo `length`.
  void reset(std::uint64_t length) { sums_.assign(length + 1, 0); }
  void add(std::uint64_t position, std::int64_t bytes);
  /// The sum over the positions [from, to), at most `length` of them.
  [[nodiscard]] ByteCount sum(std::uint64_t from, std::uint64_t to) const;

 private:
  [[nodiscard]] std::uint64_t prefix(std::uint64_t count) const;
  std::vector<std::uint64_t> sums_;
};

/// The state of a tensor that prefetch depends on.
struct PrefetchFacts {
  ByteCount room;  ///< its size in host memory
  ByteCount payload;
  bool lacks_room = false;  ///< it has neither host copy nor reserved range
  bool loadable = false;  ///< it has no host copy, and its extent contains the newest version and is readable
  /// It stays in memory after its use, and the next one needs its contents, so that it is prefetched along the trace.
  bool retained = false;
  bool evictable = false;  ///< a clean copy that may be dropped
  bool awaited = false;    ///< its use is recorded, and its lease not granted yet

  bool operator==(const PrefetchFacts&) const = default;
};

/// What request() says of a use.
enum class Hint : std::uint8_t {
  soon,  ///< when the trace predicts it, if it does
  next,  ///< before all uses that the trace predicts, such as by a thread that runs beside them at its own pace
};

/// Decides which tensors are prefetched, and how much memory they may take.
///
/// Candidates are the retained tensors of the next uses, up to `lookahead` bytes, and the tensors of request(), in the
/// order of use. A candidate is loaded only if the tensors that are used before it and have no room yet would fit
/// beside it. Otherwise one of them would evict it again, and its bytes would be read twice.
///
/// Example: 64 KiB are free, A (40 KiB) is used next and B (40 KiB) after it, neither is in memory. A is loaded.
/// B needs 40 KiB and 24 KiB are left: B waits. If A had room already, B would need 40 of 64 KiB and be loaded.
///
/// What is used next wherever the trace predicts it (Hint::next) is loaded before all others where it fits into free
/// memory, and otherwise as they are.
///
/// Each call takes O(log n), except the one after a change of the trace's revision(). Pure; owned by one thread.
class PrefetchPolicy {
 public:
  /// `trace` outlives it.
  PrefetchPolicy(const NextUses& trace, ByteCount lookahead) : next_uses_(trace), lookahead_(lookahead) {}

  /// Replaces the facts of `tensor`. Called for every tensor whose facts or next use changed.
  void update(tiers::TensorId tensor, const PrefetchFacts& facts);
  /// The trace's revision changed, and with it all positions.
  void rebuild();
  /// The trace's use of `used` at `position` has happened.
  void advance(tiers::TensorId used, std::uint64_t position);

  /// The trace forgets `tensor` after this call.
  void forget(tiers::TensorId tensor);

  /// Makes `tensor` a candidate while it is loadable.
  void request(tiers::TensorId tensor, Hint hint = Hint::soon);
  void withdraw(tiers::TensorId tensor);
  void withdraw_all();

  /// The first of those with Hint::next, if it may be loaded into `free` bytes.
  [[nodiscard]] std::optional<tiers::TensorId> next_of_hints(ByteCount free) const;
  /// The first candidate; none when there is none.
  [[nodiscard]] std::optional<tiers::TensorId> next() const;
  /// Whether `tensor` may be loaded into `free` bytes plus the bytes of clean copies that are used later.
  [[nodiscard]] bool has_room(tiers::TensorId tensor, ByteCount free) const;
  /// The first position of next use at which copies may be evicted for `tensor`. For a tensor without a known use:
  /// never, so that only copies without a known use may be.
  [[nodiscard]] std::uint64_t evicts_from(tiers::TensorId tensor) const;

 private:
  /// Rank in a queue: the position of use, then the order of the requests.
  struct QueueRank {
    std::uint64_t use = 0, sequence = 0;
    tiers::TensorId tensor{};
    auto operator<=>(const QueueRank&) const = default;
  };
  struct Entry {
    tiers::TensorId tensor{};
    PrefetchFacts facts;
    std::uint64_t use = NextUses::never;  // position counted in the sums; never: not counted
    std::optional<QueueRank> along_trace, requested, hinted_next;
  };
  using Queue = std::pmr::set<QueueRank>;

  [[nodiscard]] Entry& entry(tiers::TensorId tensor);
  [[nodiscard]] std::uint64_t use_of(tiers::TensorId tensor, const PrefetchFacts& facts) const;
  void count(const Entry& entry, int sign);
  void enqueue(tiers::TensorId tensor, Entry& entry);
  void restart_window();
  void extend_window();
  static void remove(Queue& queue, std::optional<QueueRank>& rank);

  const NextUses& next_uses_;
  ByteCount lookahead_;
  std::vector<Entry> entries_;  // by tensor
  std::pmr::unsynchronized_pool_resource nodes_;
  Queue along_trace_{&nodes_}, requested_{&nodes_}, hinted_next_{&nodes_};
  BytesByUse lacking_, evictable_;
  ByteCount awaited_lacking_, evictable_total_;
  std::uint64_t window_begin_ = 0, window_end_ = 0;  // positions within lookahead_
  ByteCount window_bytes_;                           // of the uses in the window that have not happened
  std::uint64_t next_sequence_ = 0;
};

}  // namespace penstock::swap
