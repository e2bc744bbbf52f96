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

/// absent → loading → clean ⇄ dirty → storing → clean → absent. A failed load returns to absent, a failed store to the
/// state before it.
enum class CopyState : std::uint8_t { absent, loading, clean, dirty, storing };
[[nodiscard]] std::string_view to_string(CopyState state);

/// One tensor's copy in host memory.
struct HostCopy {
  CopyState state = CopyState::absent;
  std::uint64_t version = 0;  ///< 0: never written
  std::uint32_t readers = 0;
  bool exclusive = false;      ///< a modify or overwrite lease lives
  Reservation reservation;     ///< its address range
  HostSpan outside;            ///< where it is instead, of a tensor that is stored_from_outside
  std::uint64_t last_use = 0;  ///< a clock of uses, for lru

  [[nodiscard]] bool leased() const { return readers > 0 || exclusive; }
};

/// The copies of each tensor, in host memory and in its extent, and their versions. Only this class holds that state.
/// It makes no decisions and moves no bytes; it checks every transition.
///
/// Used with the runtime's lock held.
class TensorStore {
 public:
  /// Errors: already_exists, for a key that another tensor has; invalid_argument, for a size or a block of zero.
  [[nodiscard]] Result<TensorId> add(TensorDescription description);
  /// Whether `id` is that of a tensor that was added and not removed.
  [[nodiscard]] bool contains(TensorId id) const;
  /// Removes the tensor and its copies, which are not leased and not in flight. The id is not used again, nor by one of
  /// the next 65534 stores of the process.
  TensorDescription remove(TensorId id);

  [[nodiscard]] const TensorDescription& description(TensorId id) const { return at(id).description; }
  [[nodiscard]] const HostCopy& copy(TensorId id) const { return at(id).copy; }
  [[nodiscard]] BlockTable& blocks(TensorId id) { return at(id).blocks; }
  /// The tensors with extents in the swap file of `path`.
  [[nodiscard]] std::vector<TensorId> in_extents_of(std::uint32_t path) const;
  [[nodiscard]] std::vector<TensorId> tensors() const;
  /// Whether the extent contains the newest version.
  [[nodiscard]] bool stored(TensorId id) const;

  /// Assigns the host range of a tensor that stays in memory, which it keeps until remove().
  void pin_range(TensorId id, Reservation range);

  // A load: the copy gets the address range and, on success, the newest version.
  void begin_load(TensorId id, Reservation reservation);
  void finish_load(TensorId id, bool succeeded);
  /// Takes the range of a failed load to which the kernel may still write. Called before finish_load().
  [[nodiscard]] Reservation take_load_range(TensorId id);

  // Leases. begin_overwrite() gives an absent copy the range; a copy that stays in memory has one.
  void add_reader(TensorId id);
  void remove_reader(TensorId id);
  void begin_exclusive(TensorId id);
  void begin_overwrite(TensorId id, Reservation reservation);
  /// The copy becomes the newest version and dirty.
  void end_exclusive(TensorId id);
  /// Ends the lease without a new version: the copy returns to its state before the lease.
  void cancel_exclusive(TensorId id);

  /// `bytes` become the copy of a tensor that is stored_from_outside and has none: the newest version, and dirty. They
  /// stay unchanged until it is dropped or discarded.
  void set_outside(TensorId id, HostSpan bytes);

  // A store to the extent; begin_store() records the version. A clean copy may be stored again in another place; if
  // that fails it is still clean.
  void begin_store(TensorId id);
  void finish_store(TensorId id, bool succeeded);

  /// Sets the extent of the tensor; the lengths are equal, and its stored contents, if any, are there. Returns the old
  /// extent, which no tensor uses now.
  Extent relocate(TensorId id, const Extent& extent);

  /// Drops the host copy and frees its range. The copy is stored and not leased.
  void drop(TensorId id);
  /// The same, but returns the range.
  [[nodiscard]] Reservation vacate(TensorId id);
  /// Discards the contents, in host memory and in the extent. The copy is not leased and not in flight.
  void discard(TensorId id);

  /// Marks a use, for lru.
  void touch(TensorId id) { at(id).copy.last_use = ++use_clock_; }

 private:
  struct Tensor {
    TensorDescription description;
    BlockTable blocks;
    HostCopy copy;
    std::uint64_t stored_version = 0;  // version in the extent; 0: none
  };
  [[nodiscard]] Tensor& at(TensorId id);
  [[nodiscard]] const Tensor& at(TensorId id) const;
  [[nodiscard]] static std::uint64_t newest(const Tensor& tensor);
  static void clear(Tensor& tensor);
  [[nodiscard]] static std::uint16_t next_number();

  std::uint16_t number_ =
      next_number();            // in the ids; of 65535 consecutive stores of the process each has another
  std::deque<Tensor> tensors_;  // a deque: workers hold references to block tables while tensors are added
  std::vector<TensorId> free_;  // the next ids in the slots of removed tensors
  std::map<TensorKey, TensorId> ids_;
  std::uint64_t use_clock_ = 0;
};

}  // namespace penstock::tiers
