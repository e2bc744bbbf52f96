#pragma once

#include <penstock/base/result.hpp>
#include <penstock/tiers/store/tensor.hpp>
#include "tiers/store/range_allocator.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace penstock::swap {

/// Allocates byte ranges of the paths' swap files. Each path in use gets bytes in proportion to its weight. Faults
/// halve a weight and finally end the use of the path; weights do not change otherwise.
///
/// Example: weights 1 and 3, equal tensors: of each four extents, one is on the first path and three on the second.
///
/// An extent can be pinned by generations, such as those that checkpoints refer to: its bytes then stay allocated
/// until the last of them is released, even after its tensor has moved to another extent.
///
/// An extent that is free again is kept for others of its length while tensors have such extents; else, and where
/// nothing else has room, it is joined to the gaps. So a file of the most extents of each length that exist at one time
/// is long enough, in any order of allocate() and release(): of two for each tensor, where one of them is pinned.
///
/// Pure; owned by the thread that holds the runtime's lock.
class ExtentAllocator {
 public:
  struct PathRoom {
    double weight = 1;   ///< > 0
    ByteCount capacity;  ///< of its swap file
    ByteCount reserved;  ///< bytes allocated on the disk; beyond them the disk may be full
  };
  /// The number of faults that ends the use of a path, if another path is in use.
  static constexpr std::uint32_t faults_max = 3;

  /// Extents are multiples of `alignment`, the largest of all paths, so that a tensor can move to any path.
  ExtentAllocator(std::span<const PathRoom> paths, Alignment alignment);

  /// Chooses among the paths in use that have room and for which `avoid(path)` is false, preferring those with reserved
  /// room, the path whose bytes are furthest below its share.
  ///
  /// Errors: no_space (wanted, the largest gap).
  [[nodiscard]] Result<tiers::Extent> allocate(ByteCount size,
                                               const std::function<bool(std::uint32_t)>& avoid = {});
  /// The tensor does not use the extent any more. True if its bytes are free now, false while a generation pins them.
  bool release(const tiers::Extent& extent);

  /// Keeps the allocated `extent` until release_generation(generation), which returns `purpose` with it.
  void pin(const tiers::Extent& extent, std::uint64_t generation, tiers::Purpose purpose);
  /// Pins an extent of an earlier process, which no tensor uses. False if a part of it is in use, unless another
  /// generation pins the same extent.
  [[nodiscard]] bool pin_earlier(const tiers::Extent& extent, std::uint64_t generation,
                                 tiers::Purpose purpose);
  [[nodiscard]] bool pinned(const tiers::Extent& extent) const { return pins_.contains(key(extent)); }
  /// Ends the pins of `generation`. Returns the extents that are free now, because no tensor uses them either.
  std::vector<std::pair<tiers::Extent, tiers::Purpose>> release_generation(std::uint64_t generation);

  /// Halves the path's weight. True when this fault ends the use of the path.
  [[nodiscard]] bool note_fault(std::uint32_t path);
  /// Stops allocating from the path.
  void retire(std::uint32_t path) { paths_[path].in_use = false; }
  [[nodiscard]] bool in_use(std::uint32_t path) const { return paths_[path].in_use; }
  [[nodiscard]] std::uint32_t fault_count(std::uint32_t path) const { return paths_[path].faults; }
  [[nodiscard]] double weight(std::uint32_t path) const { return paths_[path].weight; }
  /// Whether a path other than `path` is in use.
  [[nodiscard]] bool has_another(std::uint32_t path) const;

 private:
  struct Room {
    double weight;
    std::uint64_t reserved;
    tiers::RangeAllocator space;
    std::map<std::uint64_t, std::set<std::uint64_t>> spare =
        {};                         // by length: the offsets, not free in `space`
    std::uint64_t spare_total = 0;  // bytes
    std::uint32_t faults = 0;
    bool in_use = true;
  };
  struct Pin {
    tiers::Extent extent;
    tiers::Purpose purpose{};
    std::vector<std::uint64_t> generations;
    bool left = false;  // its tensor does not use it any more
  };
  using Key = std::pair<std::uint32_t, FileOffset>;
  [[nodiscard]] static Key key(const tiers::Extent& extent) { return {extent.path, extent.offset}; }
  [[nodiscard]] static std::uint64_t allocated_with(const Room& room, ByteCount size);
  // Each returns the offset of `length` bytes of the path.
  [[nodiscard]] static std::optional<std::uint64_t> take_spare(Room& room, std::uint64_t length);
  [[nodiscard]] static std::optional<std::uint64_t> take_reserved(Room& room, std::uint64_t length);
  [[nodiscard]] static std::optional<std::uint64_t> take_other(Room& room, std::uint64_t length);
  [[nodiscard]] static std::optional<std::uint64_t> take_joined(Room& room, std::uint64_t length);
  static void join_spare(Room& room);
  void free(const tiers::Extent& extent);

  Alignment alignment_;
  std::vector<Room> paths_;
  std::map<Key, Pin> pins_;
  std::map<std::uint64_t, std::uint64_t> used_;  // by length: how many extents tensors have
};

}  // namespace penstock::swap
