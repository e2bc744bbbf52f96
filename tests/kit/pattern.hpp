#pragma once

#include <penstock/base/span.hpp>

#include <cstdint>
#include <optional>

namespace penstock::test {

/// A payload that depends on tensor, position and generation, so that misdirected, stale and swapped bytes all differ
/// from the expected ones.
struct Pattern {
  std::uint64_t tensor = 0;
  std::uint64_t generation = 0;

  /// The byte at `position`.
  [[nodiscard]] std::byte at(std::uint64_t position) const;
  /// Writes the payload of positions [first, first + span.size()).
  void fill(HostSpan span, std::uint64_t first = 0) const;
  /// The first position whose byte differs, none when all match.
  [[nodiscard]] std::optional<std::uint64_t> first_difference(ConstHostSpan span,
                                                              std::uint64_t first = 0) const;

 private:
  /// Eight bytes, beginning at position 8 * index.
  [[nodiscard]] std::uint64_t word(std::uint64_t index) const;
};

}  // namespace penstock::test
