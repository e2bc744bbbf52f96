#include "zero/launch/job_state.hpp"

#include <utility>

namespace penstock::zero::control {

bool JobState::publish(ControlClient& client) {
  const bool joined = client.peers() && !peers_, failed = client.failure() && !failure_,
             recovered = client.recoveries() != recoveries_,
             interrupted = client.interruption() && (recovered || !interruption_);
  auto gathered = client.take_gathered();
  const bool has_gathered = gathered.has_value();
  if (has_gathered) gathered_ = std::move(gathered);
  if (joined) peers_ = client.peers();
  if (failed) failure_ = client.failure();
  if (recovered) {
    recoveries_ = client.recoveries();
    recovers_ = false;
    recovered_ = true;
    interruption_.reset();
  }
  if (interrupted) {
    interruption_ = Failure{ErrorCode::interrupted, *client.interruption()};
    gathers_ = false;
    gathered_.reset();
  }
  return joined || failed || recovered || interrupted || has_gathered;
}

std::optional<Error> JobState::failure() const {
  return failure_ ? std::optional(error_of(*failure_)) : std::nullopt;
}

std::optional<Error> JobState::obstacle() const {
  return !failure_ && interruption_ ? std::optional(error_of(*interruption_)) : failure();
}

Result<void> JobState::start_gather() {
  if (auto error = obstacle()) return *error;
  if (gathers_) {
    return Error(ErrorCode::failed_state, "ControlChannel::gather").reason("another gathering is in flight");
  }
  gathers_ = true;
  return ok();
}

Result<std::optional<JobState::Slots>> JobState::poll_gather() {
  if (gathered_) {
    gathers_ = false;
    return std::exchange(gathered_, std::nullopt);
  }
  if (auto error = obstacle()) return *error;
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
