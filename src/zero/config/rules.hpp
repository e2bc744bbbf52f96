#pragma once

#include "zero/config/reader.hpp"
#include "zero/config/schema.hpp"

namespace penstock::zero::config {

/// The rules of a file that join several keys: fills what follows from others, and reports what only a file can
/// get wrong. What a configuration made in code can get wrong too is check()'s.
void apply_rules(Draft& draft, Reader& reader, std::uint32_t world_size);

/// The draft that apply_rules() would make this configuration from.
[[nodiscard]] Draft draft_of(const Config& config);

}  // namespace penstock::zero::config
