#include "tiers/device/device_errors.hpp"

#include "base/duration_text.hpp"

namespace penstock::tiers {

Error device_overdue(const char* operation, const char* work, TimePoint deadline) {
  return Error(ErrorCode::deadline_exceeded, operation)
      .reason("the device makes no progress")
      .object(work)
      .got("none in " + duration_text(deadline))
      .advice(
          "look for work on the device that does not end, such as a kernel, or a collective of the trainer "
          "whose peer has stopped (nvidia-smi, dmesg); device_deadline in the options of Rank and Engine is "
          "the limit");
}

}  // namespace penstock::tiers
