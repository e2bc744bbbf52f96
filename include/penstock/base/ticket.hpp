#pragma once

#include <compare>
#include <cstdint>

namespace penstock {

/// Names one operation in a bounded table: the slot and the slot's generation, so that a ticket of an
/// operation that has ended never answers for the next one in its slot.
struct Ticket {
  std::uint32_t slot = 0;
  std::uint32_t generation = 0;

  auto operator<=>(const Ticket&) const = default;
};

}  // namespace penstock
