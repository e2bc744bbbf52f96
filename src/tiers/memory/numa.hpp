#pragma once

#include <sys/types.h>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

namespace penstock::tiers {

/// The NUMA nodes of cores and drives, from sysfs. A value type; safe from any thread.
class NumaTopology {
 public:
  /// The topology of this machine. `sysfs` may be a copy from another machine; missing files leave nodes unknown.
  [[nodiscard]] static NumaTopology read(std::filesystem::path sysfs = "/sys");

  /// The number of nodes with cores, at least 1. Nodes without cores (memory only) do not count.
  [[nodiscard]] std::size_t node_count() const { return std::max<std::size_t>(nodes_.size(), 1); }
  /// The kernel's number of the `index`-th node; nothing if no nodes are known.
  [[nodiscard]] std::optional<std::uint32_t> node(std::size_t index) const {
    return index < nodes_.size() ? std::optional(nodes_[index].number) : std::nullopt;
  }
  /// The node that contains all of these cores; nothing if they belong to several nodes or are unknown.
  [[nodiscard]] std::optional<std::uint32_t> node_of_cpus(std::span<const std::uint32_t> cpus) const;
  /// The node of the drive that contains block device `device` (st_dev), a disk, partition or mapping.
  [[nodiscard]] std::optional<std::uint32_t> node_of_device(dev_t device) const;
  /// The node of the drive that contains `directory`.
  [[nodiscard]] std::optional<std::uint32_t> node_of_directory(const std::filesystem::path& directory) const;

 private:
  struct Node {
    std::uint32_t number = 0;
    std::vector<std::uint32_t> cpus;  // ascending
  };
  std::filesystem::path sysfs_;
  std::vector<Node> nodes_;  // in ascending order of numbers
};

/// The cores that this thread may run on.
[[nodiscard]] std::vector<std::uint32_t> allowed_cpus();

/// Indices of the paths for a rank of `nodes`: those on its nodes and those whose node is unknown; all paths if there
/// are none, or no `nodes` are known.
[[nodiscard]] std::vector<std::size_t> paths_of_nodes(
    std::span<const std::optional<std::uint32_t>> path_nodes, std::span<const std::uint32_t> nodes);

}  // namespace penstock::tiers
