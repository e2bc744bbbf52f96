#pragma once

#include "zero/config/reader.hpp"
#include "zero/config/schema.hpp"

namespace penstock::zero::config {

/// The rules that join several keys: fills what follows from others and reports what contradicts.
void apply_rules(Draft& draft, Reader& reader, std::uint32_t world_size);

}  // namespace penstock::zero::config
