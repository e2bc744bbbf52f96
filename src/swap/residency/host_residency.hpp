#pragma once

#include "swap/path/extent_allocator.hpp"
#include "swap/policy/eviction_policy.hpp"
#include "swap/policy/next_uses.hpp"
#include "swap/policy/prefetch_policy.hpp"
#include "swap/policy/reuse_distance.hpp"
#include "swap/policy/trace_recorder.hpp"
#include "swap/residency/path_evacuation.hpp"
#include "swap/residency/room_search.hpp"
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
#include <thread>
#include <vector>

namespace penstock::swap {

/// Who takes the result of a request.
struct Requester {
  std::thread::id thread{};  ///< none: another thread than the one that requests, such as the mover
  bool blocks = false;  ///< it waits for this result and takes no other one before; at most one such request
};

/// Decides which tensors are in host memory: grants leases, evicts, and asks Effects to load, store and drop.
///
/// Requests that need room get it in their order of arrival. While one waits, no tensor is prefetched. EvictionOrder
/// tells which copies leave first, RoomSearch how many must; a dirty copy is stored first. PrefetchPolicy chooses what
/// to prefetch. PathEvacuation decides what happens after the failure of a path.
///
/// Does no I/O and uses no lock, thread or clock. It asks Effects to carry decisions out, and the caller reports the
/// results by finish_load() and finish_store(). HostMoves implements Effects for the runtime; tests record the calls;
/// a simulator adds their costs.
///
///     residency.request(tensor, Access::read, Use::recorded);   // → Effects::load(tensor)
///     residency.advance();
///     residency.finish_load(tensor, ok());                      // the bytes arrived
///     residency.advance();                                      // grants the request: take() returns ok
///
/// Not thread-safe: the runtime calls it with its lock held. No member blocks.
class HostResidency {
 public:
  /// Carries decisions out. Called by the members of HostResidency; must not call them.
  class Effects {
   public:
    virtual ~Effects() = default;
    /// Read the extent of `tensor` into its range, verify it if `verify`, and report to finish_load(). `urgent`: a
    /// request waits for it, so that it goes before loads and stores for which none waits.
    virtual void load(tiers::TensorId tensor, bool verify, bool urgent) = 0;
    /// Write the range of `tensor` to `place`, and report to finish_store().
    virtual void store(tiers::TensorId tensor, const tiers::Extent& place) = 0;
    /// From now on a request waits for the load or store of `tensor` that has begun and not ended.
    virtual void hasten(tiers::TensorId tensor) = 0;
    /// The host copy of `tensor` is dropped and its range is free.
    virtual void drop(tiers::TensorId tensor) = 0;
  };
  struct Options {
    Eviction eviction = Eviction::planned;
    std::vector<TransferCosts> costs;     ///< of the paths, for Eviction::planned; empty: all alike
    ByteCount reuse_distance_max;         ///< for Eviction::reuse_distance
    ByteCount lookahead = 64_MiB;         ///< maximum number of bytes prefetched along the trace
    std::vector<std::string> file_names;  ///< of the paths' swap files, for messages
    std::vector<std::string> messages;    ///< returned by the first take_messages(), before its own
  };

  /// All references outlive it.
  HostResidency(tiers::TensorStore& store, tiers::MemoryBudget& budget, ExtentAllocator& extents,
                tiers::Ledger& ledger, Effects& effects, Options options);

  /// Registers a tensor that was added to the store, with its extent allocated. A tensor that stays in memory gets its
  /// range now and keeps it until remove(); clean copies are evicted if necessary.
  ///
  /// Errors: budget_too_small, when no range is large enough after all clean copies are evicted.
  Result<void> add(tiers::TensorId tensor);
  /// Cancels the prefetch, queued store and unreported store error of a tensor that will be removed. Precondition: it
  /// has no lease.
  void forget(tiers::TensorId tensor);
  /// Removes the tensor from the store and frees its memory and extent. Requires forget() before, and idle().
  tiers::TensorDescription remove(tiers::TensorId tensor);
  /// Whether no load or store of `tensor` is in flight.
  [[nodiscard]] bool idle(tiers::TensorId tensor) const;
  /// Whether a lease of `tensor` exists, or a use of it is announced or requested.
  [[nodiscard]] bool in_use(tiers::TensorId tensor) const;

  /// Requests a lease and records the use. take() returns the result.
  [[nodiscard]] RequestId request(tiers::TensorId tensor, Access access, Use use, Requester requester = {});
  /// Whether `thread` has requested a lease that excludes one with `access`, and has not taken it.
  [[nodiscard]] bool has_excluding_request(std::thread::id thread, tiers::TensorId tensor,
                                           Access access) const;
  /// Records a use, for a request with Use::unrecorded.
  void record_use(tiers::TensorId tensor, Access access);
  /// Records a use whose lease is requested later, with Use::unrecorded. Until retract(), the tensor counts as the next
  /// one used. The caller must call retract() once, after that request or instead of it.
  void announce(tiers::TensorId tensor, Access access);
  void retract(tiers::TensorId tensor);
  /// Returns nothing while the request waits. Then the first call returns ok or the error; later calls return nothing.
  /// Until then a grant may be taken back: when it holds memory for which an earlier request waits.
  ///
  /// Errors: budget_too_small, naming all leased tensors; invalid_argument, for reading a tensor that was never
  /// written; those of the load.
  [[nodiscard]] std::optional<Result<void>> take(RequestId id);
  /// The outcomes that requests have got so far.
  [[nodiscard]] std::uint64_t outcome_count() const { return outcome_count_; }
  /// Withdraws the request. If its lease was granted and not taken, the lease ends.
  void cancel(RequestId id, tiers::TensorId tensor, Access access);
  /// Ends a lease. A tensor with write_behind is stored, unless memory is its home; a transient one is dropped.
  void release(tiers::TensorId tensor, Access access);

  /// Stores a tensor that is stored_from_outside from `bytes`, which stay unchanged until that is done or discard().
  /// Precondition: no store of it is in flight, and the last one is done or discarded.
  void store_from(tiers::TensorId tensor, HostSpan bytes);

  /// The tensors whose newest contents are only in memory, and have a place on disk.
  [[nodiscard]] std::vector<tiers::TensorId> dirty() const;
  /// Stores it when advance() is called next, if it is dirty and nothing writes to it then.
  void queue_store(tiers::TensorId tensor) { to_store_.push_back(tensor); }
  /// The same for a caller that waits for it: of the tensors that were asked for, a few are stored at a time, so that
  /// loads do not wait behind all of them. A failure of one at home is that of the callers that have asked only: its
  /// contents stay in memory, and no other call returns it. Returns whether there is anything to store.
  bool ask_store(tiers::TensorId tensor);
  /// Whether a store that was asked for has not ended.
  [[nodiscard]] bool is_asked(tiers::TensorId tensor) const { return asked_.contains(tensor); }
  /// Of the last store that was asked for, until the tensor is asked for again, stored, discarded or removed: each of
  /// those that have asked returns it.
  [[nodiscard]] std::optional<Error> asked_error(tiers::TensorId tensor) const;
  /// Tensors with write_behind that have their home in memory and are not stored, or not yet: nothing stores them
  /// unless it is asked for.
  [[nodiscard]] std::vector<tiers::TensorId> changed_homes() const;
  /// Drops the copy of the tensor, and returns its range, which stays reserved. Does nothing unless the copy is clean
  /// and not leased. Until end_vacancy() the tensor is not loaded ahead.
  [[nodiscard]] std::optional<tiers::Reservation> vacate(tiers::TensorId tensor);
  void end_vacancy(tiers::TensorId tensor);

  /// From now on copies are in the first `end` bytes of the memory. Tensors with home_in_memory lose their home, the
  /// last added first, until what is left of the memory has as much room beside the homes as all of it has. Drops the
  /// copies beyond that are clean and not leased; the others lose their home too, so that they are stored and leave
  /// when they are used next, and have it again after a later call. A tensor that is added later has no home until
  /// then. The end of the budget: there is no limit.
  void limit_memory(ByteCount end);
  [[nodiscard]] bool memory_is_limited() const { return limit_.has_value(); }

  /// Ends a round of uses; the next one begins.
  void end_round();
  /// The round that begins now, and the next ones, are predicted to have these uses in this order.
  void predict(std::vector<NextUses::Use> order);
  /// Records the uses from now on.
  void begin_trace() { recorder_.emplace(); }
  /// Those since begin_trace(), without a label; none without it.
  [[nodiscard]] std::optional<AccessTrace> end_trace();
  /// Loads `tensor` when the prefetch policy allows it. A request for `tensor`, or a request that waits for room,
  /// cancels the prefetch. May evict clean copies that are used later and, for a tensor without a known use, those
  /// without a known use, except prefetched ones; see docs/policies.md for when it waits for stores instead. A tensor
  /// whose load fails is not prefetched again before its next use or prefetch(). With Hint::next it is loaded before
  /// all others where it fits into free memory, and then evicted last, wherever the trace predicts its use.
  void prefetch(tiers::TensorId tensor, Hint hint = Hint::soon);
  /// Discards the contents: drops the host copy without storing it. If a load or store is in flight, drops it when that
  /// ends. Precondition: the tensor has no lease.
  void discard(tiers::TensorId tensor);

  /// Grants requests where possible, and starts loads and stores.
  void advance();
  /// Called when no transfer is in flight that could free memory. For the first request that waits for room, takes back
  /// the later grants that were not taken, except of threads that block in their request. If that makes no room, the
  /// memory is free only after somebody acts:
  ///
  /// | Memory is held by | Who acts |
  /// |---|---|
  /// | a lease | nobody, as far as is known here: its holder may wait for this request |
  /// | an earlier grant of a thread that does not block, or of the mover | that thread: nothing fails |
  /// | an earlier grant of a thread that blocks in another request | nobody: until then it takes no other grant |
  ///
  /// If nobody acts, evicts tensors that have their home in memory. If that makes no room, ends the wait of a request,
  /// or starts its load. Returns true then: after advance() the next one may starve too, unless a transfer is in flight
  /// now. Which request: the last one without room in which a thread blocks that has an earlier grant, so that this
  /// thread continues and can take the grant. It fails, unless there is room for it and only for the requests before it
  /// there is none. If there is no such request, the first one that waits for room fails.
  bool fail_starved_request();
  /// Stops starting prefetches and evacuations.
  void stop();

  // Results of Effects, exactly one for each load and store.
  void finish_load(tiers::TensorId tensor, const Result<void>& result);
  void finish_store(tiers::TensorId tensor, const Result<void>& result);
  /// Counts a block that does not verify as a fault of its path.
  void note_corrupted(tiers::TensorId tensor, const Error& error);

  /// Keeps the extent of `tensor` unchanged until release_generation(): the next store writes another extent.
  ///
  /// Errors: invalid_argument, when the newest contents are not stored.
  Result<void> pin_extent(tiers::TensorId tensor, std::uint64_t generation);
  /// Keeps bytes of an earlier process, which no tensor uses. Errors: invalid_argument, when they are in use.
  Result<void> pin_earlier(const PinnedExtent& pinned);
  /// A flush of the path's file failed: any of its writes since the last one may be lost. The path is out of use.
  void note_lost_writes(std::uint32_t path, const Error& error);
  /// Frees the extents that no other generation pins and no tensor uses.
  void release_generation(std::uint64_t generation);

  /// True when all write-behinds are stored.
  [[nodiscard]] bool all_stored() const {
    return stores_pending() == 0 && failed_stores_.empty() && asked_.empty();
  }
  /// Where tensors are stored; a path from which all have moved is not among them.
  [[nodiscard]] std::set<std::uint32_t> paths_with_contents() const;
  /// Stores in flight and queued.
  [[nodiscard]] std::size_t stores_pending() const { return storing_.size() + to_store_.size(); }
  /// Their bytes by path, as far as the path is known.
  [[nodiscard]] std::map<std::uint32_t, ByteCount> bytes_to_store() const;
  /// Whether a write-behind failed and take_store_error() was not called since. Until that call no request gets room:
  /// freeing room may require the failed store.
  [[nodiscard]] bool store_failed() const { return store_error_.has_value(); }
  /// Returns the first error, once, and queues all failed stores again. Their tensors are still dirty in memory.
  [[nodiscard]] std::optional<Error> take_store_error();

  /// Events of the paths since the last call, one line each.
  [[nodiscard]] std::vector<std::string> take_messages() { return evacuation_.take_messages(); }

 private:
  struct Request {
    RequestId id{};
    tiers::TensorId tensor{};
    Access access{};
    Requester requester{};
    bool loading = false;  // a load was started for it
  };
  enum class Decision : std::uint8_t { granted, waits, waits_for_room, failed };

  using Requests = std::pmr::list<Request>;
  using End = tiers::RangeAllocator::End;

  // Requests.
  [[nodiscard]] Decision decide(Request& request, bool may_reserve);
  [[nodiscard]] Decision grant_resident(const Request& request);
  [[nodiscard]] Decision wait_for_transfer(const Request& request);
  [[nodiscard]] Decision grant_overwrite(const Request& request, tiers::Reservation range);
  void finish(const Request& request, Result<void> outcome);
  void end_untaken(const Request& granted);
  [[nodiscard]] bool take_back_grants_after(RequestId id);
  [[nodiscard]] Requests::iterator first_without_room();
  [[nodiscard]] Requests::iterator blocking_request(std::thread::id thread);
  [[nodiscard]] Requests::iterator request_to_fail(Requests::iterator starved);
  void grant_loaded(tiers::TensorId tensor);
  [[nodiscard]] Error no_room(const Request& request) const;
  void count_pending_use(tiers::TensorId tensor, int change);
  void refresh_after_new_prediction(std::uint64_t revision_before);
  void after_lease(tiers::TensorId tensor);
  [[nodiscard]] bool keeps(tiers::TensorId tensor) const;
  [[nodiscard]] bool is_stored_behind(tiers::TensorId tensor) const;

  // Room.
  [[nodiscard]] ByteCount padded_size(tiers::TensorId tensor) const;
  [[nodiscard]] std::optional<tiers::Reservation> reserve_free(tiers::TensorId tensor, End end);
  [[nodiscard]] End end_of_memory_for(tiers::TensorId tensor) const;
  [[nodiscard]] std::optional<tiers::Reservation> reserve(tiers::TensorId tensor);
  [[nodiscard]] std::optional<tiers::Reservation> reserve_early(tiers::TensorId tensor,
                                                                std::uint64_t evict_from);
  [[nodiscard]] bool stores_make_room(ByteCount wanted);
  [[nodiscard]] bool has_home(tiers::TensorId tensor) const;
  [[nodiscard]] static bool may_have_home(const tiers::TensorDescription& description) {
    return description.home_in_memory && description.extent;
  }
  void assign_homes();
  [[nodiscard]] bool is_beyond_limit(tiers::TensorId tensor) const;
  bool adds_room(tiers::TensorId candidate);
  /// Of make_room(): evicting makes none, or will once copies are stored, or has made it.
  enum class Room : std::uint8_t { none, later, now };
  Room make_room(tiers::TensorId tensor, bool from_homes);
  [[nodiscard]] std::uint64_t changes_of_room() const { return eviction_.changes() + budget_.changes(); }
  [[nodiscard]] bool is_clean(tiers::TensorId tensor) const {
    return store_.copy(tensor).state == tiers::CopyState::clean;
  }
  void drop(tiers::TensorId tensor);
  void update_policies(tiers::TensorId tensor);

  // Loads and stores (host_residency_moves.cpp).
  void start_load(tiers::TensorId tensor, tiers::Reservation reservation, bool verify, bool urgent);
  [[nodiscard]] Result<void> start_store(tiers::TensorId tensor);
  void start_write_behind(tiers::TensorId tensor);
  void hasten(tiers::TensorId tensor);
  void hasten_stores();
  void start_stores();
  void start_asked_stores();
  void load_failed(tiers::TensorId tensor, const Error& error);
  bool store_elsewhere(tiers::TensorId tensor, const tiers::Extent& place, const Error& error);
  void relocate(tiers::TensorId tensor, const tiers::Extent& place);
  void release_extent(const tiers::Extent& extent, tiers::Purpose purpose);
  void fail_store(tiers::TensorId tensor, Error cause);
  void start_prefetches();
  void evacuate_paths();
  [[nodiscard]] bool start_evacuation(tiers::TensorId tensor);
  void move_off_retired_path(tiers::TensorId tensor);
  [[nodiscard]] bool discard_if_unwanted(tiers::TensorId tensor);

  tiers::TensorStore& store_;
  tiers::MemoryBudget& budget_;
  ExtentAllocator& extents_;
  tiers::Ledger& ledger_;
  Effects& effects_;
  NextUses next_uses_;
  std::optional<TraceRecorder> recorder_;
  std::optional<ReuseDistance> reuse_distance_;  // with Eviction::reuse_distance
  EvictionOrder eviction_;
  RoomSearch search_, search_of_stores_;
  PrefetchPolicy prefetch_;
  PathEvacuation evacuation_;

  // Pool for the nodes of the containers below, which are inserted and erased with each transfer.
  std::pmr::unsynchronized_pool_resource nodes_;
  Requests requests_{&nodes_};
  struct Outcome {
    Request request;
    Result<void> result;
  };
  std::pmr::map<RequestId, Outcome> outcomes_{&nodes_};  // until take()
  std::vector<std::uint32_t> pending_uses_;  // by tensor: recorded uses and requests without a lease
  std::set<tiers::TensorId>
      unreadable_;  // their last load failed: not prefetched before a use, prefetch() or store
  std::map<tiers::TensorId, Error> load_errors_;  // for the requests that wait for the load
  std::pmr::deque<tiers::TensorId> to_store_{&nodes_};
  std::pmr::map<tiers::TensorId, tiers::Extent> storing_{&nodes_};  // the extent that each store writes
  std::uint64_t stores_begun_ = 0, stores_hastened_ = 0;            // of those begun, the first so many
  std::pmr::set<tiers::TensorId> hastened_{&nodes_};                // whose load or store in flight is urgent
  std::pmr::map<tiers::TensorId, Hint> prefetched_{&nodes_};        // by prefetch(), and not used since
  std::pmr::set<tiers::TensorId> unwanted_{&nodes_};       // discarded after their load or store in flight
  std::vector<tiers::TensorId> failed_stores_;             // stored again after take_store_error()
  std::pmr::deque<tiers::TensorId> asked_queue_{&nodes_};  // by ask_store(), not begun
  std::pmr::set<tiers::TensorId> asked_{&nodes_};          // by ask_store(), not ended
  std::pmr::set<tiers::TensorId> asked_storing_{&nodes_};  // of these, those that are stored now
  std::map<tiers::TensorId, Error> asked_errors_;          // see asked_error()
  std::set<tiers::TensorId> vacated_;                      // from vacate() to end_vacancy()
  std::vector<tiers::Reservation>
      quarantined_;  // loads past their deadline: the kernel may still write there
  struct StoreError {
    tiers::TensorId tensor{};
    Error error;
  };
  std::optional<StoreError> store_error_;
  bool stopping_ = false;
  std::optional<ByteCount> limit_;  // of the memory
  ByteCount homes_;                 // what all tensors that may_have_home() occupy
  std::vector<bool> has_home_;      // by tensor; of these, while the memory is limited, not those added last
  std::optional<tiers::TensorId> storing_for_;  // for which make_room() has begun to store
  std::vector<tiers::TensorId> storing_victims_;
  /// A search that would find the same again, as long as no candidate and no range has changed.
  struct Search {
    tiers::TensorId tensor{};
    std::uint64_t from = 0;
    std::uint64_t changes = 0;
    bool operator==(const Search&) const = default;
  };
  std::optional<Search> found_no_room_, found_no_early_room_;
  std::uint64_t next_request_ = 0, outcome_count_ = 0;
};

}  // namespace penstock::swap
