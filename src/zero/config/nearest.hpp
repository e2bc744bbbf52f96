#pragma once

#include <span>
#include <string_view>

namespace penstock::zero::config {

/// The candidate with the fewest edits (insert, delete, replace, swap of neighbours) from `word`; empty when
/// none is near enough: at most a third of the word's length, and at most two edits for short words.
[[nodiscard]] std::string_view nearest_spelling(std::string_view word,
                                                std::span<const std::string_view> candidates);

}  // namespace penstock::zero::config
