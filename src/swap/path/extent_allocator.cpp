#include "swap/path/extent_allocator.hpp"

#include <penstock/base/check.hpp>

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
                      .reserved = path.reserved.value() / alignment.bytes() * alignment.bytes(),
                      .space = tiers::RangeAllocator(size, alignment.bytes())});
  }
}

/// The path's bytes with `size` more.
std::uint64_t ExtentAllocator::allocated_with(const Room& room, ByteCount size) {
  return room.space.size() - room.space.free_total() - room.spare_total + size.value();
}

std::optional<std::uint64_t> ExtentAllocator::take_spare(Room& room, std::uint64_t length) {
  const auto spare = room.spare.find(length);
  if (spare == room.spare.end()) return std::nullopt;
  const std::uint64_t offset = spare->second.extract(spare->second.begin()).value();
  if (spare->second.empty()) room.spare.erase(spare);
  room.spare_total -= length;
  return offset;
}

std::optional<std::uint64_t> ExtentAllocator::take_reserved(Room& room, std::uint64_t length) {
  const auto range = room.space.allocate_within(length, 0, room.reserved);
  return range ? std::optional(range->begin) : std::nullopt;
}

/// Beyond the reserved bytes, or else across their end.
std::optional<std::uint64_t> ExtentAllocator::take_other(Room& room, std::uint64_t length) {
  auto range = room.space.allocate_within(length, room.reserved, room.space.size());
  if (!range) range = room.space.allocate(length);
  return range ? std::optional(range->begin) : std::nullopt;
}

std::optional<std::uint64_t> ExtentAllocator::take_joined(Room& room, std::uint64_t length) {
  if (room.spare.empty()) return std::nullopt;
  join_spare(room);
  const auto reserved = take_reserved(room, length);
  return reserved ? reserved : take_other(room, length);
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
  std::erase_if(order, [&](std::uint32_t path) { return !in_use(path) || (avoid && avoid(path)); });
  // Joining comes last: it would cut the places of one length for another, which then needs a new one.
  for (const auto take : {&take_spare, &take_reserved, &take_other, &take_joined}) {
    for (const std::uint32_t path : order) {
      Room& room = paths_[path];
      if (size.value() > room.space.size()) continue;
      const ByteCount length = round_up(size, alignment_);
      const auto offset = take(room, length.value());
      if (!offset) continue;
      ++used_[length.value()];
      return tiers::Extent{.path = path, .offset = FileOffset(*offset), .length = length};
    }
  }
  std::uint64_t largest = 0, free = 0, all = 0;
  for (const std::uint32_t path : order) {
    Room& room = paths_[path];
    join_spare(room);
    free += room.space.free_total();
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
  const auto used = used_.find(extent.length.value());
  PENSTOCK_CHECK(used != used_.end());
  if (--used->second == 0) used_.erase(used);
  if (const auto pin = pins_.find(key(extent)); pin != pins_.end()) {
    pin->second.left = true;
    return false;
  }
  free(extent);
  return true;
}

void ExtentAllocator::free(const tiers::Extent& extent) {
  Room& room = paths_[extent.path];
  const std::uint64_t offset = extent.offset.value(), length = extent.length.value();
  if (!used_.contains(length)) return room.space.release({offset, length});
  PENSTOCK_CHECK(room.spare[length].insert(offset).second);
  room.spare_total += length;
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
    join_spare(paths_[extent.path]);
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
