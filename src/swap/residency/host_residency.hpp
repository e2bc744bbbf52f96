#pragma once

#include "swap/path/extent_allocator.hpp"
#include "swap/policy/access_trace.hpp"
#include "swap/policy/eviction_policy.hpp"
#include "swap/policy/prefetch_policy.hpp"
#include "swap/residency/path_evacuation.hpp"
#include "tiers/store/tensor_store.hpp"

#include <penstock/swap/lease.hpp>
#include <penstock/tiers/store/ledger.hpp>
#include "tiers/store/memory_budget.hpp"

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory_resource>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace penstock::swap {

/// Decides which tensors are in host memory: grants leases, makes room, says what to load, store and drop.
///
/// Requests that need room get it in the order in which they came; while one waits, nothing is read ahead. What is
/// evicted is decided by the eviction policy, a dirty copy being stored first; what is read ahead by the prefetch
/// policy; what happens when a path fails by PathEvacuation.
///
/// Pure: it knows no disk, lock, thread or clock. What a decision needs done is asked of Effects, and what came of it
/// is reported to finish_load() and finish_store(). The runtime, the tests and a simulator are three kinds of
/// Effects.
///
///     residency.request(tensor, Access::read, Use::recorded);   // → Effects::load(tensor)
///     residency.advance();
///     residency.finish_load(tensor, ok());                      // the bytes arrived
///     residency.advance();                                      // the request is granted: take() says so
///
/// Owned by the thread that holds the runtime's lock. Nothing here blocks.
class HostResidency {
 public:
  /// What must be done outside. Called from within the calls below; must not call back.
  class Effects {
   public:
    virtual ~Effects() = default;
    /// Read the extent of `tensor` into its range, verify it if `verify`, and report to finish_load().
    virtual void load(tiers::TensorId tensor, bool verify) = 0;
    /// Write the range of `tensor` to `place`, and report to finish_store().
    virtual void store(tiers::TensorId tensor, const tiers::Extent& place) = 0;
    /// The host copy of `tensor` is gone, and its range free.
    virtual void drop(tiers::TensorId tensor) = 0;
  };
  struct Options {
    Eviction eviction = Eviction::planned;
    ByteCount lookahead = 64_MiB;         ///< loaded ahead along the trace, at most
    std::vector<std::string> file_names;  ///< of the paths' swap files, for messages
    std::vector<std::string> messages;    ///< the first that take_messages() returns
  };

  /// Everything outlives it.
  HostResidency(tiers::TensorStore& store, tiers::MemoryBudget& budget, ExtentAllocator& extents,
                tiers::Ledger& ledger, Effects& effects, Options options);

  /// The store has a new tensor, whose extent is allocated. One that stays in memory takes its range now, and keeps it until remove().
  ///
  /// Errors: budget_too_small, when no range is free, with clean copies evicted.
  Result<void> add(tiers::TensorId tensor);
  /// The tensor will not be requested any more: ends what was intended with it, and takes back the error of its
  /// failed store. Unleased.
  void forget(tiers::TensorId tensor);
  /// Removes the tensor, forgotten and not in flight, from store, memory and disk.
  tiers::TensorDescription remove(tiers::TensorId tensor);
  /// Whether no load or store of `tensor` is in flight.
  [[nodiscard]] bool idle(tiers::TensorId tensor) const;

  /// Asks for a lease, and records the use; take() answers.
  [[nodiscard]] RequestId request(tiers::TensorId tensor, Access access, Use use);
  /// Records a use whose lease is requested later, with Use::unrecorded: until then, or retract(), the tensor counts
  /// as the next one used.
  void announce(tiers::TensorId tensor);
  void retract(tiers::TensorId tensor);
  /// ok once the lease is granted, the error when it never will be, none while the request waits.
  ///
  /// Errors: budget_too_small, naming every holder; invalid_argument, for reading what was never written;
  /// those of the load.
  [[nodiscard]] std::optional<Result<void>> take(RequestId id);
  /// Withdraws the request, or ends the lease that it was granted and that was not taken.
  void cancel(RequestId id, tiers::TensorId tensor, Access access);
  /// The lease ends. A tensor with write_behind is stored now, a transient one dropped.
  void release(tiers::TensorId tensor, Access access);

  /// The round of uses ends, and the next one begins.
  void end_round();
  /// Loads `tensor` when no request waits for room and the prefetch policy finds some. A request for it ends this.
  void prefetch(tiers::TensorId tensor);
  /// The contents are not needed any more: the host copy is dropped without a store, after the load or store in
  /// flight. Unleased.
  void discard(tiers::TensorId tensor);

  /// Grants what can be granted, and starts the loads and stores that are needed.
  void advance();
  /// Nothing is in flight that could free room: fails the first request that waits for some.
  void fail_starved_request();
  /// Starts no prefetch and no evacuation any more.
  void stop();

  // What came of Effects, exactly once each.
  void finish_load(tiers::TensorId tensor, const Result<void>& result);
  void finish_store(tiers::TensorId tensor, const Result<void>& result);
  /// A block does not verify, which is a fault of its path.
  void note_corrupted(tiers::TensorId tensor, const Error& error);

  /// The extent that holds the contents of `tensor` stays as it is until release_generation(): the next store goes
  /// elsewhere.
  ///
  /// Errors: invalid_argument, when the newest contents are not stored in an extent.
  Result<void> pin_extent(tiers::TensorId tensor, std::uint64_t generation);
  /// Frees the extents that only `generation` pinned and that hold no tensor's contents any more.
  void release_generation(std::uint64_t generation);

  /// True when every dirty copy that has write_behind was stored.
  [[nodiscard]] bool all_stored() const { return stores_pending() == 0 && failed_stores_.empty(); }
  /// Copies being stored, and those that are stored next.
  [[nodiscard]] std::size_t stores_pending() const { return storing_.size() + to_store_.size(); }
  /// A write-behind failed, and take_store_error() was not called since. Until then no room is handed out, since
  /// making some may need that very store.
  [[nodiscard]] bool store_failed() const { return store_error_.has_value(); }
  /// Its error, once. The tensor is dirty and in memory, and is stored again.
  [[nodiscard]] std::optional<Error> take_store_error();

  /// What happened to the paths since the last call, a line each.
  [[nodiscard]] std::vector<std::string> take_messages() { return evacuation_.take_messages(); }

 private:
  struct Request {
    RequestId id{};
    tiers::TensorId tensor{};
    Access access{};
    bool loading = false;  // a load was started for it
  };
  enum class Decision : std::uint8_t { granted, waits, waits_for_room, failed };

  // Requests.
  [[nodiscard]] Decision decide(Request& request, bool may_reserve);
  [[nodiscard]] Decision grant_resident(const Request& request);
  [[nodiscard]] Decision grant_overwrite(const Request& request, tiers::Reservation range);
  void finish(const Request& request, Result<void> outcome);
  void await(tiers::TensorId tensor, int change);
  void record_use(tiers::TensorId tensor);
  void follow_trace(std::uint64_t revision_before);
  void after_lease(tiers::TensorId tensor);

  // Room.
  [[nodiscard]] ByteCount padded_size(tiers::TensorId tensor) const;
  [[nodiscard]] std::optional<tiers::Reservation> reserve_free(tiers::TensorId tensor);
  [[nodiscard]] std::optional<tiers::Reservation> reserve(tiers::TensorId tensor);
  [[nodiscard]] std::optional<tiers::Reservation> reserve_early(tiers::TensorId tensor,
                                                                std::optional<std::uint64_t> evict_from);
  [[nodiscard]] bool evict_one();
  void drop(tiers::TensorId tensor);
  void refresh(tiers::TensorId tensor);

  // Loads and stores (host_residency_moves.cpp).
  void start_load(tiers::TensorId tensor, tiers::Reservation reservation, bool verify);
  bool start_store(tiers::TensorId tensor);
  void start_stores();
  void load_failed(tiers::TensorId tensor, const Error& error);
  bool store_elsewhere(tiers::TensorId tensor, const tiers::Extent& place, const Error& error);
  void relocate(tiers::TensorId tensor, const tiers::Extent& place);
  void release_extent(const tiers::Extent& extent, tiers::Purpose purpose);
  void fail_store(tiers::TensorId tensor, Error error);
  void start_prefetches();
  void evacuate_paths();
  [[nodiscard]] bool start_evacuation(tiers::TensorId tensor);
  void leave_retired_path(tiers::TensorId tensor);
  [[nodiscard]] bool discard_if_unwanted(tiers::TensorId tensor);

  tiers::TensorStore& store_;
  tiers::MemoryBudget& budget_;
  ExtentAllocator& extents_;
  tiers::Ledger& ledger_;
  Effects& effects_;
  AccessTrace trace_;
  EvictionOrder eviction_;
  PrefetchPolicy prefetch_;
  PathEvacuation evacuation_;

  // Keeps the memory of what comes and goes with each transfer.
  std::pmr::unsynchronized_pool_resource nodes_;
  std::pmr::list<Request> requests_{&nodes_};
  std::pmr::map<RequestId, Result<void>> outcomes_{&nodes_};
  std::vector<std::uint32_t> awaited_;  // by tensor: uses recorded or requests made, no lease granted yet
  std::map<tiers::TensorId, Error> load_errors_;  // for the requests that wait for the load
  std::pmr::deque<tiers::TensorId> to_store_{&nodes_};
  std::pmr::map<tiers::TensorId, tiers::Extent> storing_{&nodes_};  // and where
  std::pmr::set<tiers::TensorId> unwanted_{&nodes_};  // to be discarded after their load or store
  std::vector<tiers::TensorId> failed_stores_;        // stored again after take_store_error()
  std::vector<tiers::Reservation> quarantined_;       // the kernel may still write there, past its deadline
  struct StoreError {
    tiers::TensorId tensor{};
    Error error;
  };
  std::optional<StoreError> store_error_;
  bool stopping_ = false;
  std::uint64_t next_request_ = 0;
};

}  // namespace penstock::swap
