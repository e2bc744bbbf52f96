#pragma once

#include "zero/config/reader.hpp"
#include "zero/config/schema.hpp"

namespace penstock::zero::config {

/// Why the values of other keys leave this one without effect; null if they do not. `draft` is complete.
[[nodiscard]] const char* why_unused(std::string_view path, const Draft& draft);

/// Adds a note for each key of the file that the values of other keys leave without effect, unless it says the default.
/// `draft` is complete.
void note_unused_keys(const Draft& draft, Reader& reader);

}  // namespace penstock::zero::config
