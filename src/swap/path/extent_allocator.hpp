#pragma once

#include <penstock/base/result.hpp>
#include <penstock/tiers/store/tensor.hpp>
#include "tiers/store/range_allocator.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace penstock::swap {

/// Which byte range of which path's swap file a tensor gets: of all paths in use, each holds bytes in proportion
/// to its weight. Faults lower a weight and then end a path's use; nothing else changes a weight.
///
/// Example: weights 1 and 3, equal tensors: of each four extents, one is on the first path and three on the second.
///
/// An extent can be pinned by generations, such as those that checkpoints refer to: its bytes then stay allocated
/// until the last of them is released, even where its tensor has left it.
///
/// Pure; owned by the thread that holds the runtime's lock.
class ExtentAllocator {
 public:
  struct PathRoom {
    double weight = 1;   ///< > 0
    ByteCount capacity;  ///< of its swap file
    ByteCount reserved;  ///< of that; beyond it, the disk may be full
  };
  /// The fault that ends a path's use, where another path is left.
  static constexpr std::uint32_t faults_max = 3;

  /// Extents are multiples of `alignment`, the largest that any path asks for, so that a tensor may move.
  ExtentAllocator(std::span<const PathRoom> paths, Alignment alignment);

  /// From the path that is furthest behind its share of the bytes, of those in use that have room and that
  /// `avoid(path)` does not exclude; of those that have reserved room, if there are any.
  ///
  /// Errors: no_space (wanted, the largest gap).
  [[nodiscard]] Result<tiers::Extent> allocate(ByteCount size,
                                               const std::function<bool(std::uint32_t)>& avoid = {});
  /// The tensor has left the extent. True when its bytes are free now; false while a generation pins them.
  bool release(const tiers::Extent& extent);

  /// `extent`, which is allocated, stays so until release_generation(generation). `purpose` comes back from there.
  void pin(const tiers::Extent& extent, std::uint64_t generation, tiers::Purpose purpose);
  [[nodiscard]] bool pinned(const tiers::Extent& extent) const { return pins_.contains(key(extent)); }
  /// Ends the pins of `generation`. Returns the extents that their tensors had left and that are free now.
  std::vector<std::pair<tiers::Extent, tiers::Purpose>> release_generation(std::uint64_t generation);

  /// Halves the path's weight. True when the path has had its last fault and another one is left.
  [[nodiscard]] bool note_fault(std::uint32_t path);
  /// Allocates nothing from the path any more.
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
    std::uint32_t faults = 0;
    bool in_use = true;
  };
  struct Pin {
    tiers::Extent extent;
    tiers::Purpose purpose{};
    std::vector<std::uint64_t> generations;
    bool left = false;  // by its tensor
  };
  using Key = std::pair<std::uint32_t, FileOffset>;
  [[nodiscard]] static Key key(const tiers::Extent& extent) { return {extent.path, extent.offset}; }
  [[nodiscard]] static std::uint64_t allocated_with(const Room& room, ByteCount size);
  void free(const tiers::Extent& extent);

  std::vector<Room> paths_;
  std::map<Key, Pin> pins_;
};

}  // namespace penstock::swap
