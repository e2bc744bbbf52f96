#pragma once

#include "zero/config/json_text.hpp"

#include <json/json.h>
#include <string_view>
#include <vector>

namespace penstock::zero::config {

/// Parses Hjson, with which DeepSpeed reads ds_config.json: JSON whose comments begin with `//`, `#` or `/*`, whose
/// commas may be line ends or stand before a bracket, whose keys and strings may have no quotes, or single ones, or
/// `'''` around several lines, and whose outermost braces may be missing. Syntax: https://hjson.github.io/syntax.html.
///
/// A value without quotes is true, false, null or a number if it is one; else it is a string up to the end of its line.
/// Stricter than hjson 3.1.0, which DeepSpeed uses: such a string neither ends with a comma nor contains a bracket that
/// closes, because these were most likely meant as JSON's; and an object has a key once.
///
/// Offsets of the values are those of `text`, and objects are nested 64 deep at most. Appends the first error to
/// `problems`; the value is then null.
[[nodiscard]] Json::Value parse_hjson(std::string_view text, std::vector<Problem>& problems);

}  // namespace penstock::zero::config
