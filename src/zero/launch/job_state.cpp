#include "zero/launch/job_state.hpp"

#include <utility>

namespace penstock::zero::control {

bool JobState::publish(ControlClient& client) {
  const bool joined = client.peers() && !peers_, failed = client.failure() && !failure_,
             recovered = client.recoveries() != recoveries_,
             interrupted = client.interruption() && (recovered || !interruption_);
  bool gathered = false;
  for (std::size_t by = 0; by < gatherers; ++by) {
    auto slots = client.take_gathered(Gatherer(by));
    if (!slots) continue;
    of(Gatherer(by)).gathered = std::move(slots);
    gathered = true;
  }
  if (joined) peers_ = client.peers();
  if (failed) failure_ = client.failure();
  if (recovered) {
    recoveries_ = client.recoveries();
    recovers_ = false;
    recovered_ = true;
    interruption_.reset();
    of(Gatherer::collectives) = {};  // a caller that recovers does not ask for it any more
  }
  if (interrupted) {
    interruption_ = Failure{ErrorCode::interrupted, *client.interruption()};
    for (Gathering& one : gatherings_) {
      if (std::exchange(one.in_flight, one.gathered.has_value()) && !one.gathered)
        one.interruption = interruption_;
    }
  }
  for (std::size_t by = 0; by < gatherers; ++by) gatherings_[by].absent = client.absent(Gatherer(by));
  return joined || failed || recovered || interrupted || gathered;
}

std::optional<Error> JobState::failure() const {
  return failure_ ? std::optional(error_of(*failure_)) : std::nullopt;
}

std::optional<Error> JobState::obstacle() const {
  return !failure_ && interruption_ ? std::optional(error_of(*interruption_)) : failure();
}

Result<void> JobState::start_gather(Gatherer by) {
  if (auto error = obstacle()) return *error;
  if (of(by).in_flight) {
    return Error(ErrorCode::failed_state, "ControlChannel::gather").reason("another gathering is in flight");
  }
  of(by) = {.in_flight = true};
  return ok();
}

Result<std::optional<JobState::Slots>> JobState::poll_gather(Gatherer by) {
  Gathering& mine = of(by);
  if (mine.gathered) {
    mine.in_flight = false;
    return std::exchange(mine.gathered, std::nullopt);
  }
  if (auto error = obstacle()) return *error;
  if (mine.interruption) return error_of(*mine.interruption);
  return std::optional<Slots>();
}

Result<void> JobState::start_recovery() {
  if (auto error = failure()) return *error;
  if (!interruption_ || recovers_) {
    return Error(ErrorCode::failed_state, "ControlChannel::start_recovery")
        .reason(recovers_ ? "the recovery has started already" : "the job is not interrupted");
  }
  recovers_ = true;
  recovered_ = false;
  return ok();
}

Result<bool> JobState::poll_recovery() const {
  if (recovered_) return true;
  if (auto error = failure()) return *error;
  return false;
}

}  // namespace penstock::zero::control
