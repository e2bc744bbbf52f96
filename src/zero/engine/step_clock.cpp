#include "zero/engine/step_clock.hpp"

namespace penstock::zero {

void StepClock::enter(Phase phase) {
  const TimePoint now = clock_.now();
  const auto end = [&](TimePoint& sum, const char* part) {
    sum += now - since_;
    if (timeline_ != nullptr) timeline_->add("trainer", part, since_, now);
  };
  switch (phase_) {
    case Phase::between: break;
    case Phase::forward: end(forward_, "forward"); break;
    case Phase::backward: end(backward_, "backward"); break;
    case Phase::stepping: end(stepping_, "step"); break;
  }
  const TimePoint waited = waited_();
  if (phase_ != Phase::between) waiting_ += waited - waited_before_;
  phase_ = phase;
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
    all_.forward += forward_;
    all_.backward += backward_;
    all_.stepping += stepping_;
    all_.waiting += waiting_;
  }
  restart();
}

void StepClock::restart() {
  phase_ = Phase::between;
  reduced_.clear();
  forward_ = backward_ = stepping_ = waiting_ = {};
}

StepTimes StepClock::times() const {
  const std::lock_guard lock(mutex_);
  return all_;
}

}  // namespace penstock::zero
