#include <penstock/base/time.hpp>

namespace penstock {

namespace {
class SteadyClock final : public Clock {
 public:
  TimePoint now() const noexcept override { return std::chrono::steady_clock::now().time_since_epoch(); }
};
}  // namespace

const Clock& Clock::steady() {
  static const SteadyClock clock;
  return clock;
}

}  // namespace penstock
