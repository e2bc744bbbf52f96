#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>

namespace penstock::tiers {

/// A stream has not passed a point in time. What is enqueued on it, such as `work`, may still use its memory.
[[nodiscard]] Error device_overdue(const char* operation, const char* work, TimePoint deadline);

}  // namespace penstock::tiers
