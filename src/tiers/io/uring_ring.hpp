#pragma once

#include <liburing.h>
#include <string>

// Only in builds with liburing.
namespace penstock::tiers {

/// A ring of the best kind that works here, which a read through a temporary ring has proved.
struct UringRing {
  io_uring ring{};
  bool disabled = false;  ///< enable_ring() must be called first, by the thread that will submit
  std::string note;       ///< why it is not of the best kind; empty when it is
};

/// Returns 0 or a negative errno, and then there is no ring.
[[nodiscard]] int open_ring(UringRing& ring, unsigned entries);

/// Returns 0 or a negative errno.
[[nodiscard]] int enable_ring(const io_uring& ring) noexcept;

}  // namespace penstock::tiers
