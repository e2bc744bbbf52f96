#include <penstock/swap/extent_dealer.hpp>

#include <algorithm>
#include <numeric>
#include <string>

namespace penstock::swap {

ExtentDealer::ExtentDealer(std::span<const PathRoom> paths, Alignment alignment) {
  for (const PathRoom& path : paths) {
    const std::uint64_t size = path.capacity.value() / alignment.bytes() * alignment.bytes();
    paths_.push_back({.weight = path.weight, .space = tiers::RangeAllocator(size, alignment.bytes())});
  }
}

/// The path's bytes with `size` more, in units of its weight.
double ExtentDealer::filled(const Room& room, ByteCount size) const {
  const std::uint64_t dealt = room.space.size() - room.space.free_total() + size.value();
  return static_cast<double>(dealt) / room.weight;
}

Result<tiers::Extent> ExtentDealer::deal(ByteCount size, const std::function<bool(std::uint32_t)>& avoid) {
  std::vector<std::uint32_t> order(paths_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return filled(paths_[a], size) < filled(paths_[b], size);
  });
  std::uint64_t largest = 0;
  for (const std::uint32_t path : order) {
    Room& room = paths_[path];
    if (!room.in_use || (avoid && avoid(path))) continue;
    if (const auto range = room.space.allocate(size.value())) {
      return tiers::Extent{
          .path = path, .offset = FileOffset(range->begin), .length = ByteCount(range->length)};
    }
    largest = std::max(largest, room.space.largest_gap());
  }
  return Error(ErrorCode::no_space, "ExtentDealer::deal")
      .reason("no swap file has room")
      .wanted(size)
      .got(paths_.empty() ? std::string("no path") : to_string(ByteCount(largest)));
}

void ExtentDealer::give_back(const tiers::Extent& extent) {
  paths_[extent.path].space.release({extent.offset.value(), extent.length.value()});
}

bool ExtentDealer::note_fault(std::uint32_t path) {
  Room& room = paths_[path];
  room.weight /= 2;
  return ++room.faults >= faults_max && has_another(path);
}

bool ExtentDealer::has_another(std::uint32_t path) const {
  for (std::uint32_t other = 0; other < paths_.size(); ++other) {
    if (other != path && paths_[other].in_use) return true;
  }
  return false;
}

}  // namespace penstock::swap
