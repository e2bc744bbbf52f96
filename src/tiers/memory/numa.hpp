#pragma once

#include <sys/types.h>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

namespace penstock::tiers {

/// Which NUMA node cores and drives belong to, as sysfs tells it. A value type; safe from any thread.
class NumaTopology {
 public:
  /// Of this machine. `sysfs` may be a directory that describes another one. What is not there is not known.
  [[nodiscard]] static NumaTopology read(std::filesystem::path sysfs = "/sys");

  /// Nodes that have cores, at least 1: a node of memory alone is no place for a rank.
  [[nodiscard]] std::size_t node_count() const { return std::max<std::size_t>(nodes_.size(), 1); }
  /// The number of the `index`-th node; nothing when no nodes are known.
  [[nodiscard]] std::optional<std::uint32_t> node(std::size_t index) const {
    return index < nodes_.size() ? std::optional(nodes_[index].number) : std::nullopt;
  }
  /// The node that has all of these cores; nothing when they are of several nodes or not known.
  [[nodiscard]] std::optional<std::uint32_t> node_of_cpus(std::span<const std::uint32_t> cpus) const;
  /// The node of the drive behind block device `device` (stat's st_dev), which a partition or a mapping of it may be.
  [[nodiscard]] std::optional<std::uint32_t> node_of_device(dev_t device) const;
  /// The same for the drive that a directory is on.
  [[nodiscard]] std::optional<std::uint32_t> node_of_directory(const std::filesystem::path& directory) const;

 private:
  struct Node {
    std::uint32_t number = 0;
    std::vector<std::uint32_t> cpus;  // ascending
  };
  std::filesystem::path sysfs_;
  std::vector<Node> nodes_;  // by number
};

/// The cores that this thread may run on.
[[nodiscard]] std::vector<std::uint32_t> allowed_cpus();

/// Indices of the paths that a rank of `node` takes: those of its node, or all when none is, or when its node is not
/// known. A path whose node is not known is everybody's.
[[nodiscard]] std::vector<std::size_t> paths_of_node(std::span<const std::optional<std::uint32_t>> path_nodes,
                                                     std::optional<std::uint32_t> node);

}  // namespace penstock::tiers
