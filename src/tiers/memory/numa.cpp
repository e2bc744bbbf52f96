#include "tiers/memory/numa.hpp"
#include "tiers/io/block_device.hpp"

#include <sched.h>
#include <sys/stat.h>
#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace penstock::tiers {

namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

template <typename Number>
std::optional<Number> parse(std::string_view text) {
  Number number{};
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

/// "0-3,8" is 0, 1, 2, 3, 8. https://docs.kernel.org/admin-guide/cputopology.html
std::vector<std::uint32_t> parse_cpu_list(std::string_view text) {
  std::vector<std::uint32_t> cpus;
  while (!text.empty()) {
    const std::string_view range = text.substr(0, text.find(','));
    text.remove_prefix(std::min(range.size() + 1, text.size()));
    const std::size_t dash = range.find('-');
    const auto first = parse<std::uint32_t>(range.substr(0, dash));
    const auto last = dash == range.npos ? first : parse<std::uint32_t>(range.substr(dash + 1));
    if (!first || !last) continue;
    for (std::uint32_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  }
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

}  // namespace

NumaTopology NumaTopology::read(fs::path sysfs) {
  NumaTopology topology;
  topology.sysfs_ = std::move(sysfs);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(topology.sysfs_ / "devices/system/node", error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("node")) continue;
    const auto number = parse<std::uint32_t>(std::string_view(name).substr(4));
    std::vector<std::uint32_t> cpus = parse_cpu_list(first_line(entry.path() / "cpulist"));
    if (number && !cpus.empty()) topology.nodes_.push_back({*number, std::move(cpus)});
  }
  std::sort(topology.nodes_.begin(), topology.nodes_.end(),
            [](const Node& a, const Node& b) { return a.number < b.number; });
  return topology;
}

std::optional<std::uint32_t> NumaTopology::node_of_cpus(std::span<const std::uint32_t> cpus) const {
  for (const Node& node : nodes_) {
    const auto has = [&](std::uint32_t cpu) {
      return std::binary_search(node.cpus.begin(), node.cpus.end(), cpu);
    };
    if (!cpus.empty() && std::all_of(cpus.begin(), cpus.end(), has)) return node.number;
  }
  return std::nullopt;
}

std::optional<std::uint32_t> NumaTopology::node_of_device(dev_t device) const {
  const auto drive = drive_of(device, sysfs_);
  if (!drive) return std::nullopt;
  std::error_code error;
  const fs::path root = fs::canonical(sysfs_, error);
  // The nearest parent device with a node; for an NVMe drive, its controller on the PCI bus.
  for (fs::path at = *drive; at.has_relative_path() && at != root; at = at.parent_path()) {
    const auto node = parse<std::int32_t>(first_line(at / "numa_node"));
    if (node) return *node < 0 ? std::nullopt : std::optional(static_cast<std::uint32_t>(*node));
  }
  return std::nullopt;
}

std::optional<std::uint32_t> NumaTopology::node_of_directory(const fs::path& directory) const {
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0) return std::nullopt;
  return node_of_device(status.st_dev);
}

std::vector<std::uint32_t> allowed_cpus() {
  std::vector<std::uint32_t> cpus;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (std::uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<std::size_t> paths_of_nodes(std::span<const std::optional<std::uint32_t>> path_nodes,
                                        std::span<const std::uint32_t> nodes) {
  std::vector<std::size_t> own, all;
  for (std::size_t i = 0; i < path_nodes.size(); ++i) {
    all.push_back(i);
    if (!path_nodes[i] || std::find(nodes.begin(), nodes.end(), *path_nodes[i]) != nodes.end())
      own.push_back(i);
  }
  return own.empty() || nodes.empty() ? all : own;
}

}  // namespace penstock::tiers
