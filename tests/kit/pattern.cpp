#include "kit/pattern.hpp"

#include "kit/seeded_random.hpp"

#include <cstring>

namespace penstock::test {

std::uint64_t Pattern::word(std::uint64_t index) const {
  return SeededRandom::mix(SeededRandom::mix(tensor * 0x9e3779b97f4a7c15u + generation) + index);
}

std::byte Pattern::at(std::uint64_t position) const {
  return static_cast<std::byte>(word(position / 8) >> (position % 8 * 8));
}

void Pattern::fill(HostSpan span, std::uint64_t first) const {
  const std::uint64_t size = span.size().value();
  for (std::uint64_t i = 0; i < size;) {
    if ((first + i) % 8 == 0 && size - i >= 8) {  // little-endian, as every target of ours
      const std::uint64_t bytes = word((first + i) / 8);
      std::memcpy(span.data() + i, &bytes, 8);
      i += 8;
    } else {
      span.data()[i] = at(first + i);
      ++i;
    }
  }
}

std::optional<std::uint64_t> Pattern::first_difference(ConstHostSpan span, std::uint64_t first) const {
  const std::uint64_t size = span.size().value();
  for (std::uint64_t i = 0; i < size;) {
    if ((first + i) % 8 == 0 && size - i >= 8) {
      std::uint64_t bytes = 0;
      std::memcpy(&bytes, span.data() + i, 8);
      if (bytes == word((first + i) / 8)) {
        i += 8;
        continue;
      }
    }
    if (span.data()[i] != at(first + i)) return first + i;
    ++i;
  }
  return std::nullopt;
}

}  // namespace penstock::test
