#include "swap/simulate/simulated_disk.hpp"

#include <algorithm>
#include <limits>

namespace penstock::swap {

void SimulatedDisk::begin(const Transfer& transfer, ByteCount bytes) {
  (transfer.is_load ? loads_ : stores_)
      .push_back({transfer.tensor, static_cast<double>(bytes.value()), begun_++});
}

SimulatedDisk::Passed SimulatedDisk::run(double seconds) {
  constexpr double never = std::numeric_limits<double>::infinity();
  const bool both = !loads_.empty() && !stores_.empty();
  const double read = !rates_ ? never : both ? rates_->mixed / 2 : rates_->read;
  const double write = !rates_ ? never : both ? rates_->mixed / 2 : rates_->write;
  const double load_ends = loads_.empty() ? never : loads_.front().left / read;
  const double store_ends = stores_.empty() ? never : stores_.front().left / write;
  const double passed = std::min({load_ends, store_ends, seconds});
  if (!is_idle()) busy_ += passed;
  now_ += passed;
  if (rates_ && !loads_.empty()) loads_.front().left -= passed * read;
  if (rates_ && !stores_.empty()) stores_.front().left -= passed * write;
  if (std::min(load_ends, store_ends) > seconds || is_idle()) return {.seconds = passed, .ended = {}};
  const bool is_load =
      load_ends != store_ends ? load_ends < store_ends : loads_.front().number < stores_.front().number;
  std::deque<Queued>& of = is_load ? loads_ : stores_;
  const Transfer ended{of.front().tensor, is_load};
  of.pop_front();
  return {.seconds = passed, .ended = ended};
}

bool SimulatedDisk::loads(tiers::TensorId tensor) const {
  return std::any_of(loads_.begin(), loads_.end(),
                     [&](const Queued& queued) { return queued.tensor == tensor; });
}

}  // namespace penstock::swap
