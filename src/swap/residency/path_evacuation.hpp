#pragma once

#include "swap/path/extent_allocator.hpp"
#include "tiers/store/tensor_store.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <memory_resource>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace penstock::swap {

/// Decides what happens when a path fails: the path of the next store, when a path is retired, and which tensor moves
/// off it next. A tensor's bytes on disk stay valid until it is stored in its new place.
///
/// A path is retired at its third fault, or after a request that hangs, if another path is in use. The tensors in its
/// file are moved to the other paths one at a time: loaded, verified and stored there.
///
/// Pure: HostResidency asks it and carries out the moves. Owned by one thread.
class PathEvacuation {
 public:
  PathEvacuation(const tiers::TensorStore& store, ExtentAllocator& extents,
                 std::vector<std::string> file_names, std::vector<std::string> messages)
      : store_(store),
        extents_(extents),
        file_names_(std::move(file_names)),
        messages_(std::move(messages)) {}

  /// A transfer at `extent` failed. A full disk is no fault of its path, nor is a request that the kernel did not make
  /// for want of memory or threads, or for a signal.
  void note_fault(const tiers::Extent& extent, const Error& error);

  /// The extent for the next store of `tensor`: its own, or one on another path if its path has failed, or another one
  /// if a generation pins its own. A tensor whose only copy is in memory may be stored on a retired path if no other
  /// path has room.
  ///
  /// Errors: no_space, when no path has room.
  [[nodiscard]] Result<tiers::Extent> place_for(tiers::TensorId tensor);
  /// A store of `tensor` to `place` failed: place_for() avoids that path until store_ended().
  void store_failed(tiers::TensorId tensor, const tiers::Extent& place, const Error& error);
  /// The failed store is repeated on another path.
  void report_store_elsewhere(tiers::TensorId tensor, const tiers::Extent& place, const Error& error);
  /// The stores of `tensor` have ended, with or without success.
  void store_ended(tiers::TensorId tensor) { failed_on_.erase(tensor); }
  /// Whether a store of `tensor` failed on some path since store_ended().
  [[nodiscard]] bool has_failed_store(tiers::TensorId tensor) const { return failed_on_.contains(tensor); }

  /// Whether the extent of `tensor` is on a retired path.
  [[nodiscard]] bool on_retired_path(tiers::TensorId tensor) const;
  /// The tensor to move next; none while one is being moved.
  [[nodiscard]] std::optional<tiers::TensorId> next() const;
  void remove_next() { to_move_.pop_front(); }
  /// Queues `tensor` to be moved.
  void queue(tiers::TensorId tensor) { to_move_.push_back(tensor); }
  /// The move of `tensor` starts with a load, with `place` allocated for it, or with a store.
  void begin(tiers::TensorId tensor, std::optional<tiers::Extent> place) { moving_ = {tensor, place}; }
  /// Ends the move of `tensor`. False if it was not being moved.
  bool end(tiers::TensorId tensor);
  /// The load of `tensor` failed. Its move off a retired path is not tried again.
  void note_unreadable(tiers::TensorId tensor);
  /// `tensor` has no bytes on `path` any more; `moved` bytes of it were stored on another path.
  void note_departed(tiers::TensorId tensor, std::uint32_t path, ByteCount moved);
  /// The tensor is removed.
  void forget(tiers::TensorId tensor);
  /// Stops moving tensors.
  void stop() { to_move_.clear(); }

  [[nodiscard]] std::vector<std::string> take_messages() { return std::exchange(messages_, {}); }

 private:
  struct RetiredPath {
    std::set<tiers::TensorId> remaining;  // tensors with extents there that are still to be moved
    ByteCount moved;
    std::vector<std::string> unreadable;
  };
  struct Moving {
    tiers::TensorId tensor{};
    std::optional<tiers::Extent> place;
  };
  void retire(std::uint32_t path, const Error& error);

  const tiers::TensorStore& store_;
  ExtentAllocator& extents_;
  std::vector<std::string> file_names_;  // by path
  std::pmr::unsynchronized_pool_resource nodes_;
  std::map<std::uint32_t, RetiredPath> retired_;
  std::map<tiers::TensorId, std::set<std::uint32_t>> failed_on_;  // paths, since the last store_ended()
  std::pmr::deque<tiers::TensorId> to_move_{&nodes_};
  std::optional<Moving> moving_;
  std::set<std::pair<std::uint32_t, ErrorCode>> reported_;  // errors that a path may return for every store
  std::vector<std::string> messages_;
};

}  // namespace penstock::swap
