#include "zero/memory_follower.hpp"

#include "base/notes.hpp"
#include "swap/runtime_internals.hpp"
#include "zero/memory_watch.hpp"

#include <chrono>
#include <utility>

namespace penstock::zero {

void MemoryFollower::end_step(swap::Runtime& runtime) {
  constexpr TimePoint interval = std::chrono::seconds(1);
  const TimePoint now = Clock::steady().now();
  if (looked_at_ != TimePoint() && now - looked_at_ < interval) return;
  looked_at_ = now;
  const tiers::MemoryLimit machine = machine_ ? machine_() : tiers::memory_limit();
  const MemoryWatch watch{.reserve = reserve_,
                          .least = runtime.memory_least(),
                          .budget = runtime.host_memory().size(),
                          .ranks = ranks_};
  if (limit_.is_zero()) limit_ = watch.budget;
  const swap::RuntimeInternals internals(runtime);
  const ByteCount before = internals.memory_limit();  // the trainer's may be lower
  const bool is_short = machine.available < watch.reserve;
  // What was leased is given back now: the shortage is not the same twice.
  const auto settled = swap::RuntimeInternals::limit_memory(runtime, limit_);
  const bool changes = settled && used_ && *settled < *used_;
  if (settled) used_ = *settled;
  const ByteCount next =
      is_short && changes ? limit_ : watch.next(is_short ? before : limit_, machine.available);
  const auto has = next == limit_ ? settled : swap::RuntimeInternals::limit_memory(runtime, next);
  std::string message;
  if (!has) {
    message = "the host memory stays as it is: " + first_line(has.error());
  } else if (const ByteCount now_used = internals.memory_limit(); now_used != before) {
    message = "the rank uses " + to_string(now_used) + " of its host memory of " + to_string(watch.budget);
  } else if (is_short && !changes) {
    message = "the rank cannot use less than " + to_string(next) + " of its host memory";
  }
  if (has) {
    limit_ = next;
    used_ = *has;
  }
  // What goes on is told once.
  if (message.empty() || std::exchange(message_, message) == message) return;
  internals.add_message(message + ": " + to_string(machine.available) + " are available (" + machine.file +
                        "), and penstock.memory_reserve is " + to_string(watch.reserve));
}

}  // namespace penstock::zero
