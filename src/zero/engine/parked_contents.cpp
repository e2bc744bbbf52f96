#include "zero/engine/parked_contents.hpp"

#include <algorithm>

namespace penstock::zero {

ParkedRange ParkedRange::part(ByteCount begin, ByteCount length) const {
  const std::string at = begin.is_zero() ? "" : " from " + to_string(begin) + " on";
  return {name + at, on_device.subspan(begin, length), in_host.subspan(begin, length)};
}

std::vector<ParkedRange> divide(const std::vector<ParkedRange>& ranges, ByteCount part_max) {
  std::vector<ParkedRange> parts;
  for (const ParkedRange& range : ranges) {
    for (ByteCount begin; begin < range.size(); begin += part_max)
      parts.push_back(range.part(begin, std::min(part_max, range.size() - begin)));
  }
  return parts;
}

}  // namespace penstock::zero
