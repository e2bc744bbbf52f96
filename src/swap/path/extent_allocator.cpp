#include "swap/path/extent_allocator.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace penstock::swap {

ExtentAllocator::ExtentAllocator(std::span<const PathRoom> paths, Alignment alignment)
    : alignment_(alignment) {
  for (const PathRoom& path : paths) {
    const std::uint64_t size = path.capacity.value() / alignment.bytes() * alignment.bytes();
    paths_.push_back({.weight = path.weight,
                      .reserved = path.reserved.value(),
                      .space = tiers::RangeAllocator(size, alignment.bytes())});
  }
}

/// The path's bytes with `size` more.
std::uint64_t ExtentAllocator::allocated_with(const Room& room, ByteCount size) {
  return room.space.size() - room.space.free_total() - room.spare_total + size.value();
}

/// The offset of `length` bytes of the path.
std::optional<std::uint64_t> ExtentAllocator::take(Room& room, std::uint64_t length) {
  if (const auto spare = room.spare.find(length); spare != room.spare.end()) {
    const std::uint64_t offset = spare->second.extract(spare->second.begin()).value();
    if (spare->second.empty()) room.spare.erase(spare);
    room.spare_total -= length;
    return offset;
  }
  auto range = room.space.allocate_below(length, room.reserved);
  if (!range && !room.spare.empty()) {
    join_spare(room);
    range = room.space.allocate_below(length, room.reserved);
  }
  if (!range) range = room.space.allocate(length);
  return range ? std::optional(range->begin) : std::nullopt;
}

void ExtentAllocator::join_spare(Room& room) {
  for (const auto& [length, offsets] : std::exchange(room.spare, {}))
    for (const std::uint64_t offset : offsets) room.space.release({offset, length});
  room.spare_total = 0;
}

Result<tiers::Extent> ExtentAllocator::allocate(ByteCount size,
                                                const std::function<bool(std::uint32_t)>& avoid) {
  std::vector<std::uint32_t> order(paths_.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto rank = [&](std::uint32_t path) {
    const Room& room = paths_[path];
    const std::uint64_t bytes = allocated_with(room, size);
    return std::pair(bytes > room.reserved, static_cast<double>(bytes) / room.weight);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return rank(a) < rank(b); });
  std::uint64_t largest = 0, free = 0, all = 0;
  for (const std::uint32_t path : order) {
    Room& room = paths_[path];
    if (!room.in_use || (avoid && avoid(path))) continue;
    if (size.value() <= room.space.size()) {
      const ByteCount length = round_up(size, alignment_);
      if (const auto offset = take(room, length.value()))
        return tiers::Extent{.path = path, .offset = FileOffset(*offset), .length = length};
    }
    free += room.space.free_total() + room.spare_total;
    all += room.space.size();
    largest = std::max(largest, room.space.largest_gap());
  }
  std::string reason = "no swap file has room";
  if (all > 0) {
    reason.append(": ").append(to_string(ByteCount(free))).append(" of ").append(to_string(ByteCount(all)));
    reason.append(" are free, the longest gap is too short");
  }
  auto error = Error(ErrorCode::no_space, "ExtentAllocator::allocate").reason(std::move(reason)).wanted(size);
  if (paths_.empty()) return std::move(error).got(std::string("no path"));
  return std::move(error)
      .got(ByteCount(largest))
      .advice("raise the capacity of the paths, or remove tensors from them");
}

bool ExtentAllocator::release(const tiers::Extent& extent) {
  if (const auto pin = pins_.find(key(extent)); pin != pins_.end()) {
    pin->second.left = true;
    return false;
  }
  free(extent);
  return true;
}

void ExtentAllocator::free(const tiers::Extent& extent) {
  Room& room = paths_[extent.path];
  room.spare[extent.length.value()].insert(extent.offset.value());
  room.spare_total += extent.length.value();
}

void ExtentAllocator::pin(const tiers::Extent& extent, std::uint64_t generation, tiers::Purpose purpose) {
  Pin& pin = pins_.try_emplace(key(extent), Pin{extent, purpose, {}}).first->second;
  if (std::find(pin.generations.begin(), pin.generations.end(), generation) == pin.generations.end()) {
    pin.generations.push_back(generation);
  }
}

bool ExtentAllocator::pin_earlier(const tiers::Extent& extent, std::uint64_t generation,
                                  tiers::Purpose purpose) {
  const auto found = pins_.find(key(extent));
  if (found == pins_.end()) {
    if (extent.path >= paths_.size()) return false;
    if (!paths_[extent.path].space.allocate_at({extent.offset.value(), extent.length.value()})) return false;
  } else if (found->second.extent != extent) {
    return false;
  }
  pin(extent, generation, purpose);
  pins_.at(key(extent)).left = true;
  return true;
}

std::vector<std::pair<tiers::Extent, tiers::Purpose>> ExtentAllocator::release_generation(
    std::uint64_t generation) {
  std::vector<std::pair<tiers::Extent, tiers::Purpose>> freed;
  for (auto entry = pins_.begin(); entry != pins_.end();) {
    Pin& pin = entry->second;
    std::erase(pin.generations, generation);
    if (!pin.generations.empty()) {
      ++entry;
      continue;
    }
    if (pin.left) {
      free(pin.extent);
      freed.emplace_back(pin.extent, pin.purpose);
    }
    entry = pins_.erase(entry);
  }
  return freed;
}

bool ExtentAllocator::note_fault(std::uint32_t path) {
  Room& room = paths_[path];
  room.weight /= 2;
  return ++room.faults >= faults_max && has_another(path);
}

bool ExtentAllocator::has_another(std::uint32_t path) const {
  for (std::uint32_t other = 0; other < paths_.size(); ++other) {
    if (other != path && paths_[other].in_use) return true;
  }
  return false;
}

}  // namespace penstock::swap
