#include "zero/config/nearest.hpp"

#include <algorithm>
#include <vector>

namespace penstock::zero::config {

namespace {

/// Damerau-Levenshtein distance: a transposition of neighbours counts once.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string_view nearest_spelling(std::string_view word, std::span<const std::string_view> candidates) {
  // A name this long is not a misspelling, and the cost of the distance grows with its square.
  if (word.size() > 100) return {};
  // Words of up to four letters that differ by two have little in common.
  const std::size_t most = word.size() <= 4 ? 1 : std::max<std::size_t>(2, word.size() / 3);
  std::size_t best = most + 1;
  std::string_view nearest;
  for (std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best) best = distance, nearest = candidate;
  }
  return nearest;
}

}  // namespace penstock::zero::config
