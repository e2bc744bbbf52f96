#pragma once

#include <penstock/base/executor.hpp>
#include <penstock/base/ticket.hpp>
#include <penstock/swap/path/extent_allocator.hpp>
#include <penstock/swap/policy/access_trace.hpp>
#include <penstock/swap/policy/eviction_policy.hpp>
#include <penstock/swap/transfer/transfer_engine.hpp>
#include <penstock/tiers/store/memory_budget.hpp>
#include <penstock/tiers/store/tensor_store.hpp>

#include <deque>
#include <list>
#include <map>
#include <memory_resource>
#include <optional>
#include <set>
#include <vector>

namespace penstock::swap {

/// What a lease is for. `read` leases are counted; `modify` and `overwrite` are exclusive; `overwrite` loads
/// nothing, and what it does not write is undefined.
enum class Access : std::uint8_t { read, modify, overwrite };

/// Has each tensor in host memory before it is used: grants leases, makes room, starts loads and stores.
///
/// Requests for room are served in the order in which they came; while one waits, nothing is prefetched. A
/// copy that must go is chosen by the policy; a dirty one is stored first. It moves nothing itself: it hands
/// out Moves.
///
/// A store that fails on one path goes to another one that has room. A path that keeps failing, or hangs, is
/// taken out of use, and what can be read of it is moved to the others. take_messages() tells of it.
///
/// Owned by whoever holds the coordinator's lock. Nothing here blocks.
class Swapper {
 public:
  struct Options {
    HostSpan arena;  ///< the memory behind the budget
    std::unique_ptr<EvictionPolicy> policy;
    ByteCount lookahead = 64_MiB;       ///< bytes loaded ahead of their use, at most
    Executor* executor = nullptr;       ///< runs checksums
    std::function<void()> wake;         ///< called when executor work has finished
    std::vector<std::string> messages;  ///< the first that take_messages() tells
  };

  /// Everything outlives it.
  Swapper(tiers::TensorStore& store, tiers::MemoryBudget& budget, ExtentAllocator& extents,
          TransferEngine& transfers, tiers::Ledger& ledger, Options options);

  /// A tensor that stays in memory takes its range now, and keeps it until forget().
  ///
  /// Errors: budget_too_small, when it cannot have it at once, with clean copies out of its way.
  Result<void> settle(tiers::TensorId tensor);

  /// Asks for a lease; its ticket answers in take().
  [[nodiscard]] Ticket request(tiers::TensorId tensor, Access access);
  /// The lease's bytes once it is granted, or why it never will be; nothing while it waits.
  ///
  /// Errors: budget_too_small, when nothing in flight could free the room, naming every holder;
  /// invalid_argument, for reading what was never written; corrupted, truncated, io: of the load.
  [[nodiscard]] std::optional<Result<HostSpan>> take(Ticket ticket);
  /// Nobody will take this ticket: the request goes, or the lease that it was granted ends.
  void cancel(Ticket ticket, tiers::TensorId tensor, Access access);
  /// The lease ends. A tensor with write_behind is stored now, a transient one goes.
  void release(tiers::TensorId tensor, Access access);

  /// Notes a use at a program point, for the trace; with a known trace, loads what comes next. The lease that
  /// it is for has not ended yet. It may even be asked for later: until then, or the round's end, `tensor` is
  /// what is used next.
  void use(tiers::TensorId tensor);
  void end_round();
  /// Loads `tensor` when no request waits for room and there is some: where the trace knows its use, also for
  /// all that is used sooner. A request for it makes this void.
  void prefetch(tiers::TensorId tensor);
  /// The contents are not needed any more: the host copy goes without a store, once it is at rest. Unleased.
  void discard(tiers::TensorId tensor);
  /// Whether no load or store of `tensor` is under way.
  [[nodiscard]] bool at_rest(tiers::TensorId tensor) const;
  /// Nobody asks for `tensor` any more: nothing that was intended with it is done, and a failed store of it is
  /// nobody's concern. Unleased.
  void forget(tiers::TensorId tensor);
  /// The tensor, at rest and forgotten, goes from store, memory and disk.
  tiers::TensorDescription remove(tiers::TensorId tensor);

  /// Grants what can be granted and makes the moves that are needed.
  void advance();
  /// Appends the moves that are to be started, in order, to `moves`.
  void take_moves(std::vector<Move>& moves);

  /// True when every dirty copy that has write_behind has reached its extent.
  [[nodiscard]] bool drained() const { return stores_pending() == 0 && failed_stores_.empty(); }
  /// Copies on their way to their extents, and those that are to go there next.
  [[nodiscard]] std::size_t stores_pending() const { return storing_.size() + to_store_.size(); }
  /// A write-behind has failed and nobody has heard of it. Until then no room is handed out, since making
  /// some may need that very store.
  [[nodiscard]] bool store_failed() const { return store_error_.has_value(); }
  /// Its error, once. The tensor is dirty and in memory still, and is stored again.
  [[nodiscard]] std::optional<Error> take_store_error();

  /// Nothing that nobody waits for is started any more.
  void stop();

  /// What has happened to the paths since the last call, a line each.
  [[nodiscard]] std::vector<std::string> take_messages();

  /// A block does not verify, which is a fault of its path's: what to say of it.
  [[nodiscard]] Error note_corrupted(tiers::TensorId tensor, std::size_t block);

  [[nodiscard]] const AccessTrace& trace() const { return trace_; }

 private:
  struct Request {
    Ticket ticket;
    tiers::TensorId tensor{};
    Access access{};
    bool asked_for_load = false;
  };
  enum class Verdict : std::uint8_t { granted, waits, waits_for_room, failed };

  [[nodiscard]] Verdict serve(Request& request, bool may_reserve);
  [[nodiscard]] Verdict grant_resident(const Request& request);
  [[nodiscard]] Verdict grant_overwrite(const Request& request, tiers::Reservation range);
  [[nodiscard]] Error corrupted(const tiers::TensorDescription& description, std::size_t block) const;
  void finish(const Request& request, Result<HostSpan> outcome);
  void after_lease(tiers::TensorId tensor);
  [[nodiscard]] HostSpan bytes(tiers::TensorId tensor) const;
  [[nodiscard]] std::optional<tiers::Reservation> reserve_free(tiers::TensorId tensor);
  [[nodiscard]] std::optional<tiers::Reservation> reserve(tiers::TensorId tensor,
                                                          std::uint64_t spare_next_use);
  void find_candidates(std::uint64_t spare_next_use, bool clean_only);
  [[nodiscard]] ByteCount room_needed_before(tiers::TensorId tensor, std::uint64_t use) const;
  [[nodiscard]] bool evict_one(std::uint64_t spare_next_use, bool clean_only);
  void start_load(tiers::TensorId tensor, tiers::Reservation reservation, bool verify = false);
  bool start_store(tiers::TensorId tensor);
  void finish_store(tiers::TensorId tensor, const Result<void>& result);
  void start_stores();
  [[nodiscard]] std::optional<tiers::Reservation> reserve_idle(tiers::TensorId tensor);
  [[nodiscard]] std::uint64_t next_use(tiers::TensorId tensor) const;
  void serve_prefetches();
  void fail_starved_request();
  [[nodiscard]] bool discard_if_unwanted(tiers::TensorId tensor);
  [[nodiscard]] ByteCount padded_size(tiers::TensorId tensor) const;

  // Paths that fail.
  void note_fault(const tiers::Extent& extent, const Error& error);
  void retire(std::uint32_t path, const std::string& file, const Error& error);
  [[nodiscard]] std::optional<tiers::Extent> place_for(tiers::TensorId tensor);
  void settle_at(tiers::TensorId tensor, const tiers::Extent& place);
  [[nodiscard]] bool store_elsewhere(tiers::TensorId tensor, const tiers::Extent& place, const Error& error);
  void drain_paths();
  [[nodiscard]] bool start_draining(tiers::TensorId tensor);
  void leave_retired_path(tiers::TensorId tensor);
  bool end_draining(tiers::TensorId tensor);
  void note_unreadable(tiers::TensorId tensor);
  void settle_retired(tiers::TensorId tensor, std::uint32_t path, ByteCount moved);

  tiers::TensorStore& store_;
  tiers::MemoryBudget& budget_;
  ExtentAllocator& extents_;
  TransferEngine& transfers_;
  tiers::Ledger& ledger_;
  Options options_;
  AccessTrace trace_;
  std::pmr::unsynchronized_pool_resource
      nodes_;  // keeps the memory of what comes and goes with each transfer
  std::pmr::list<Request> requests_{&nodes_};
  std::pmr::map<Ticket, Result<HostSpan>> outcomes_{&nodes_};
  std::map<tiers::TensorId, Error> load_errors_;  // told to the requests that wait for the load
  std::pmr::deque<tiers::TensorId> prefetches_{&nodes_}, to_store_{&nodes_};
  std::pmr::map<tiers::TensorId, tiers::Extent> storing_{&nodes_};  // and where
  std::pmr::set<tiers::TensorId> unwanted_{&nodes_};  // to be discarded once their load or store has ended
  std::pmr::set<tiers::TensorId> awaited_{&nodes_};   // whose use is noted and not asked for yet
  std::pmr::set<tiers::TensorId> resident_{&nodes_};  // tensors with a host copy, leased or not
  std::vector<tiers::TensorId> failed_stores_;        // to be tried again once the error is told
  std::vector<EvictionCandidate> candidates_;         // of find_candidates(), for one choice
  std::vector<tiers::Reservation> quarantined_;       // the kernel may still write there, past its deadline
  std::vector<Move> moves_;
  struct StoreError {
    tiers::TensorId tensor{};
    Error error;
  };
  std::optional<StoreError> store_error_;
  struct RetiredPath {
    std::string file;
    std::set<tiers::TensorId> left;  // whose extents are there, and that may still be moved
    ByteCount moved;
    std::vector<std::string> unreadable;
  };
  std::map<std::uint32_t, RetiredPath> retired_;
  std::map<tiers::TensorId, std::set<std::uint32_t>>
      failed_on_;                                      // paths, since its last store that succeeded
  std::pmr::deque<tiers::TensorId> to_move_{&nodes_};  // off paths that are out of use
  /// Being loaded, with its new place kept for it, or then stored.
  struct Draining {
    tiers::TensorId tensor{};
    std::optional<tiers::Extent> place;
  };
  std::optional<Draining> draining_;
  std::set<std::pair<std::uint32_t, ErrorCode>> told_;  // of what a path says for every store
  std::vector<std::string> messages_;
  bool stopping_ = false;
  std::uint32_t next_ticket_ = 0;
};

}  // namespace penstock::swap
