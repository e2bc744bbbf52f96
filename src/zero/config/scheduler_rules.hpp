#pragma once

#include "zero/config/reader.hpp"
#include "zero/config/schema.hpp"

namespace penstock::zero::config {

/// Makes Config::scheduler from the members that were read. Reports those that its type does not have, and those that
/// it needs.
void apply_scheduler(Draft& draft, Reader& reader);

/// The members that a file with this scheduler has.
[[nodiscard]] SchedulerDraft scheduler_draft_of(const SchedulerConfig& scheduler);

}  // namespace penstock::zero::config
