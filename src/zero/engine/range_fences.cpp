#include "zero/engine/range_fences.hpp"

#include <algorithm>
#include <utility>

namespace penstock::zero {

using tiers::Fence;

void RangeFences::release(std::uint64_t offset, ByteCount size, const std::vector<Fence>& fences) {
  (void)take(offset, size);
  for (const Fence& fence : fences) {
    if (fence != nullptr) released_.push_back({offset, offset + size.value(), fence});
  }
}

std::vector<Fence> RangeFences::take(std::uint64_t offset, ByteCount size) {
  const std::uint64_t end = offset + size.value();
  std::vector<Fence> fences;
  std::vector<Released> rest;
  for (Released& each : released_) {
    if (each.end <= offset || end <= each.begin) {
      rest.push_back(std::move(each));
      continue;
    }
    if (each.begin < offset) rest.push_back({each.begin, offset, each.fence});
    if (end < each.end) rest.push_back({end, each.end, each.fence});
    if (std::find(fences.begin(), fences.end(), each.fence) == fences.end()) {
      fences.push_back(std::move(each.fence));
    }
  }
  released_ = std::move(rest);
  return fences;
}

std::vector<Fence> RangeFences::all() const {
  std::vector<Fence> fences;
  for (const Released& each : released_) fences.push_back(each.fence);
  return fences;
}

}  // namespace penstock::zero
