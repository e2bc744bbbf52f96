#include "tiers/memory/numa_memory.hpp"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

namespace penstock::tiers {

namespace {

constexpr std::uint32_t most_nodes = 1024;  // as many as penstock.rank_nodes can name
constexpr std::size_t word_bits = 8 * sizeof(unsigned long);

}  // namespace

// The system calls are made directly: libnuma would be a library for two of them.
// https://man7.org/linux/man-pages/man2/mbind.2.html, move_pages.2.html
std::string prefer_nodes(HostSpan range, std::span<const std::uint32_t> nodes) {
  if (nodes.empty()) return {};
  std::array<unsigned long, most_nodes / word_bits> mask{};
  for (const std::uint32_t node : nodes) {
    if (node >= most_nodes) return "there is no node " + std::to_string(node);
    mask[node / word_bits] |= 1ul << (node % word_bits);
  }
  const int mode = nodes.size() == 1 ? MPOL_PREFERRED : MPOL_INTERLEAVE;
  // The kernel reads one bit less than the last argument but one says.
  if (::syscall(SYS_mbind, range.data(), range.size().value(), mode, mask.data(), most_nodes + 1, 0) == 0)
    return {};
  return std::string("mbind: ") + std::strerror(errno);
}

std::optional<ByteCount> bytes_elsewhere(ConstHostSpan range, std::span<const std::uint32_t> nodes,
                                         ByteCount step) {
  std::vector<const void*> pages;
  for (ByteCount at; at < range.size(); at += step) pages.push_back(range.data() + at.value());
  std::vector<int> found(pages.size(), -1);
  // Without nodes to move to, the call tells where the pages are.
  if (::syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, found.data(), 0) != 0)
    return std::nullopt;
  ByteCount elsewhere;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] < 0) return std::nullopt;
    if (std::find(nodes.begin(), nodes.end(), static_cast<std::uint32_t>(found[i])) == nodes.end())
      elsewhere += std::min(step, range.size() - step * i);
  }
  return elsewhere;
}

std::string nodes_text(std::span<const std::uint32_t> nodes) {
  std::string text = nodes.size() == 1 ? "NUMA node " : "NUMA nodes ";
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (i > 0) text.append(i + 1 == nodes.size() ? " and " : ", ");
    text.append(std::to_string(nodes[i]));
  }
  return text;
}

}  // namespace penstock::tiers
