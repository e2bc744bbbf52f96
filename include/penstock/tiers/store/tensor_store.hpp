#pragma once

#include <penstock/base/units.hpp>
#include <penstock/tiers/store/block_table.hpp>
#include <penstock/tiers/store/memory_budget.hpp>
#include <penstock/tiers/tier.hpp>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace penstock::tiers {

enum class TensorId : std::uint32_t {};

/// A byte range of one path's swap file. `length` is the payload rounded up to the file's alignment.
struct Extent {
  std::uint32_t path = 0;
  FileOffset offset;
  ByteCount length;

  bool operator==(const Extent&) const = default;
};

/// What a tensor is, fixed when it is added, but for where it lives on disk.
struct TensorDescription {
  std::string name;  ///< for messages: "block3 optimizer tile 7"
  Purpose purpose = Purpose::scratch;
  ByteCount size;                ///< payload
  ByteCount block = 256_KiB;     ///< bytes covered by one checksum
  std::optional<Extent> extent;  ///< where it lives on disk; none: in memory only
  bool write_behind = false;     ///< stored as soon as a modify or overwrite lease ends
  bool retain = true;            ///< a clean host copy is kept while there is room; false: it goes at once
  bool sealed_in_pass = false;   ///< whoever modifies it verifies and seals block by block in its pass
  bool transient = false;        ///< its contents are worthless once its lease ends

  /// Its host range is its own from add to remove: a place on disk it has not, and its contents may last.
  [[nodiscard]] bool stays_in_memory() const { return !extent && !transient; }
};

/// absent → loading → clean ⇄ dirty → storing → clean → absent; a failed load goes back to absent, a failed
/// store to dirty.
enum class CopyState : std::uint8_t { absent, loading, clean, dirty, storing };
[[nodiscard]] std::string_view to_string(CopyState state);

/// One tensor's copy in one tier.
struct Copy {
  CopyState state = CopyState::absent;
  std::uint64_t version = 0;  ///< 0: never written
  std::uint32_t readers = 0;
  bool exclusive = false;      ///< a modify or overwrite lease lives
  Reservation reservation;     ///< its address range; none in nvme, whose range is the extent
  std::uint64_t last_use = 0;  ///< a clock of uses, for lru

  [[nodiscard]] bool leased() const { return readers > 0 || exclusive; }
};

/// Which copies of each tensor exist, where, at which version. The sole owner of that state; it decides
/// nothing and moves nothing. Every transition is checked.
///
/// Owned by whoever holds the coordinator's lock.
class TensorStore {
 public:
  TensorId add(TensorDescription description);
  /// The tensor goes, with its copies, which are unleased and at rest; its id may be given to another one.
  TensorDescription remove(TensorId id);

  [[nodiscard]] const TensorDescription& description(TensorId id) const { return at(id).description; }
  [[nodiscard]] const Copy& copy(TensorId id, Tier tier) const;
  [[nodiscard]] BlockTable& blocks(TensorId id) { return at(id).blocks; }
  /// The tensors whose extents are in the file of `path`.
  [[nodiscard]] std::vector<TensorId> in_extents_of(std::uint32_t path) const;
  [[nodiscard]] std::size_t tensor_count() const { return tensors_.size() - free_.size(); }
  /// The version of the newest copy; 0 when the tensor was never written.
  [[nodiscard]] std::uint64_t newest(TensorId id) const;
  /// Whether the copy in `tier` exists, is at rest or being stored, and is the newest.
  [[nodiscard]] bool current(TensorId id, Tier tier) const;

  /// The range in `tier` of a tensor that stays in memory, kept whatever becomes of the copy.
  void settle(TensorId id, Tier tier, Reservation range);

  // Loading: the copy takes the address range and, on success, the newest version.
  void begin_load(TensorId id, Tier tier, Reservation reservation);
  void finish_load(TensorId id, Tier tier, bool succeeded);
  /// The range of a load that failed, for whoever must keep others off it; before finish_load().
  [[nodiscard]] Reservation surrender(TensorId id, Tier tier);

  // Leases. A copy to overwrite may be absent: it takes the range, or that it has settled in, and becomes
  // dirty at end_exclusive.
  void add_reader(TensorId id, Tier tier);
  void remove_reader(TensorId id, Tier tier);
  void begin_exclusive(TensorId id, Tier tier);
  void begin_overwrite(TensorId id, Tier tier, Reservation reservation);
  /// The copy becomes the newest, and dirty; copies in other memory tiers are dropped when unleased.
  void end_exclusive(TensorId id, Tier tier);
  /// The lease ends and nobody has written: the copy is what it was before, absent where it was absent.
  void cancel_exclusive(TensorId id, Tier tier);

  // Storing to the extent: captures the version that it writes. A clean copy may be stored again, to another place; if
  // that fails, it is as clean as before.
  void begin_store(TensorId id, Tier from);
  void finish_store(TensorId id, Tier from, bool succeeded);

  /// The tensor is at `extent` from now on, of the old one's length. What is on disk of it, if anything, was stored
  /// there. Returns the old extent, which is nobody's.
  Extent relocate(TensorId id, const Extent& extent);

  /// The unleased copy goes, with its address range. What it held must exist elsewhere; with `discard` the
  /// contents are given up, and so is the copy in the extent.
  void drop(TensorId id, Tier tier, bool discard = false);

  /// Marks a use, for lru.
  void touch(TensorId id, Tier tier) { at(id).copies[index(tier)].last_use = ++use_clock_; }

 private:
  struct Tensor {
    TensorDescription description;
    BlockTable blocks;
    std::array<Copy, tier_count> copies;
  };
  static std::size_t index(Tier tier) { return static_cast<std::size_t>(tier); }
  [[nodiscard]] Tensor& at(TensorId id) { return tensors_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] const Tensor& at(TensorId id) const { return tensors_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] Copy& mutable_copy(TensorId id, Tier tier) { return at(id).copies[index(tier)]; }
  void clear(TensorId id, Tier tier);

  std::deque<Tensor> tensors_;  // stable addresses: workers hold a BlockTable& while others are added
  std::vector<TensorId> free_;  // ids of tensors that were removed
  std::uint64_t use_clock_ = 0;
};

}  // namespace penstock::tiers
