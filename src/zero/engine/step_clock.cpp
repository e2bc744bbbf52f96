#include "zero/engine/step_clock.hpp"

#include <algorithm>

namespace penstock::zero {

void StepClock::enter(Phase phase) {
  const TimePoint now = clock_.now();
  const auto end = [&](TimePoint& sum, const char* part) {
    sum += now - since_;
    if (timeline_ != nullptr) timeline_->add("trainer", part, since_, now);
  };
  const TimePoint waited = waited_();
  switch (phase_) {
    case Phase::between:
      // Other threads may have waited meanwhile.
      if (after_a_part_) between_ += std::max(TimePoint(), (now - since_) - (waited - waited_before_));
      break;
    case Phase::forward: end(forward_, "forward"); break;
    case Phase::backward: end(backward_, "backward"); break;
    case Phase::stepping: end(stepping_, "step"); break;
  }
  if (phase_ != Phase::between) waiting_ += waited - waited_before_;
  phase_ = phase;
  after_a_part_ = phase == Phase::between;
  since_ = now;
  waited_before_ = waited;
}

void StepClock::end(StepOutcome& outcome) {
  enter(Phase::between);
  outcome.forward = forward_;
  outcome.backward = backward_;
  outcome.stepping = stepping_;
  {
    const std::lock_guard lock(mutex_);
    ++all_.steps;
    all_.micro_batches += reduced_.size();
    all_.forward += forward_;
    all_.backward += backward_;
    all_.stepping += stepping_;
    all_.between += between_;
    all_.waiting += waiting_;
  }
  restart();
}

void StepClock::restart() {
  after_a_part_ = after_a_part_ && phase_ == Phase::between;  // an evaluation is no work of a step
  phase_ = Phase::between;
  reduced_.clear();
  forward_ = backward_ = stepping_ = between_ = waiting_ = {};
}

StepTimes StepClock::times() const {
  const std::lock_guard lock(mutex_);
  return all_;
}

}  // namespace penstock::zero
