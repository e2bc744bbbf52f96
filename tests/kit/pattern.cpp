#include "kit/pattern.hpp"

namespace penstock::test {

namespace {
// splitmix64's finaliser (Steele, Lea, Flood 2014): every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
}  // namespace

std::byte Pattern::at(std::uint64_t position) const {
  const std::uint64_t word = mix(mix(tensor * 0x9e3779b97f4a7c15u + generation) + position / 8);
  return static_cast<std::byte>(word >> (position % 8 * 8));
}

void Pattern::fill(HostSpan span, std::uint64_t first) const {
  for (std::uint64_t i = 0; i < span.size().value(); ++i) span.data()[i] = at(first + i);
}

std::optional<std::uint64_t> Pattern::first_difference(ConstHostSpan span, std::uint64_t first) const {
  for (std::uint64_t i = 0; i < span.size().value(); ++i) {
    if (span.data()[i] != at(first + i)) return first + i;
  }
  return std::nullopt;
}

}  // namespace penstock::test
