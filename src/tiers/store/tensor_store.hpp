#pragma once

#include <penstock/base/result.hpp>
#include <penstock/tiers/store/tensor.hpp>
#include "tiers/store/block_table.hpp"
#include "tiers/store/memory_budget.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

namespace penstock::tiers {

/// absent → loading → clean ⇄ dirty → storing → clean → absent; a failed load goes back to absent, a failed
/// store to what the copy was before.
enum class CopyState : std::uint8_t { absent, loading, clean, dirty, storing };
[[nodiscard]] std::string_view to_string(CopyState state);

/// One tensor's copy in host memory.
struct HostCopy {
  CopyState state = CopyState::absent;
  std::uint64_t version = 0;  ///< 0: never written
  std::uint32_t readers = 0;
  bool exclusive = false;      ///< a modify or overwrite lease lives
  Reservation reservation;     ///< its address range
  std::uint64_t last_use = 0;  ///< a clock of uses, for lru

  [[nodiscard]] bool leased() const { return readers > 0 || exclusive; }
};

/// Which copies of each tensor exist, in host memory and in its extent, at which version. The sole owner of that
/// state; it decides nothing and moves nothing. Every transition is checked.
///
/// Owned by the thread that holds the runtime's lock.
class TensorStore {
 public:
  /// Errors: already_exists, for a key that another tensor has; invalid_argument, for a size or a block of zero.
  [[nodiscard]] Result<TensorId> add(TensorDescription description);
  /// Removes the tensor with its copies, which are unleased and not in flight; its id may be given to another one.
  TensorDescription remove(TensorId id);

  [[nodiscard]] const TensorDescription& description(TensorId id) const { return at(id).description; }
  [[nodiscard]] const HostCopy& copy(TensorId id) const { return at(id).copy; }
  [[nodiscard]] BlockTable& blocks(TensorId id) { return at(id).blocks; }
  /// The tensors whose extents are in the file of `path`.
  [[nodiscard]] std::vector<TensorId> in_extents_of(std::uint32_t path) const;
  [[nodiscard]] std::vector<TensorId> tensors() const;
  /// Whether the extent holds the newest version.
  [[nodiscard]] bool stored(TensorId id) const;

  /// The host range of a tensor that stays in memory, kept until remove().
  void pin_range(TensorId id, Reservation range);

  // Loading: the copy takes the address range and, on success, the newest version.
  void begin_load(TensorId id, Reservation reservation);
  void finish_load(TensorId id, bool succeeded);
  /// The range of a load that failed and whose buffer the kernel may still write to; before finish_load().
  [[nodiscard]] Reservation take_load_range(TensorId id);

  // Leases. A copy to overwrite may be absent: it takes the range, or has a pinned one, and becomes dirty at
  // end_exclusive.
  void add_reader(TensorId id);
  void remove_reader(TensorId id);
  void begin_exclusive(TensorId id);
  void begin_overwrite(TensorId id, Reservation reservation);
  /// The copy becomes the newest, and dirty.
  void end_exclusive(TensorId id);
  /// The lease ends and nothing was written: the copy is what it was before, absent where it was absent.
  void cancel_exclusive(TensorId id);

  // Storing to the extent: captures the version that it writes. A clean copy may be stored again, to another
  // place; if that fails, it is as clean as before.
  void begin_store(TensorId id);
  void finish_store(TensorId id, bool succeeded);

  /// The tensor is at `extent` from now on, of the old one's length. What is on disk of it, if anything, was
  /// stored there. Returns the old extent, which belongs to no tensor now.
  Extent relocate(TensorId id, const Extent& extent);

  /// Removes the unleased host copy, with its address range. Its contents must be stored.
  void drop(TensorId id);
  /// Gives up the contents, in host memory and in the extent. The copy is unleased and not in flight.
  void discard(TensorId id);

  /// Marks a use, for lru.
  void touch(TensorId id) { at(id).copy.last_use = ++use_clock_; }

 private:
  struct Tensor {
    TensorDescription description;
    BlockTable blocks;
    HostCopy copy;
    std::uint64_t stored_version = 0;  // what the extent holds; 0: nothing
  };
  [[nodiscard]] Tensor& at(TensorId id) { return tensors_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] const Tensor& at(TensorId id) const { return tensors_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] static std::uint64_t newest(const Tensor& tensor);
  static void clear(Tensor& tensor);

  std::deque<Tensor> tensors_;  // stable addresses: workers hold a BlockTable& while others are added
  std::vector<TensorId> free_;  // ids of tensors that were removed
  std::map<TensorKey, TensorId> ids_;
  std::uint64_t use_clock_ = 0;
};

}  // namespace penstock::tiers
