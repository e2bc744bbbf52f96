#include <penstock/base/time.hpp>

namespace penstock {

namespace {
class SteadyClock final : public Clock {
 public:
  TimePoint now() const noexcept override { return std::chrono::steady_clock::now().time_since_epoch(); }
};
}  // namespace

const Clock& Clock::steady() {
  // Never destroyed: threads that the kernel does not return may use it while the process ends.
  static const auto& clock = *new const SteadyClock;
  return clock;
}

}  // namespace penstock
