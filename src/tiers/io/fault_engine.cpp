#include <penstock/tiers/io/fault_engine.hpp>

#include <algorithm>
#include <numeric>

namespace penstock::tiers {

namespace {
// What is held until the engine is closed.
constexpr TimePoint at_close = forever;
}  // namespace

FaultEngine::FaultEngine(std::unique_ptr<IoEngine> within, FaultPlan plan, const Clock& clock)
    : within_(std::move(within)), plan_(std::move(plan)), clock_(clock), slots_(within_->limits().depth) {
  for (auto slot = static_cast<std::uint32_t>(slots_.size()); slot > 0; --slot)
    free_slots_.push_back(slot - 1);
}

/// What a request reports that is said to have moved all that one can.
std::int64_t FaultEngine::whole(const IoRequest& request) const noexcept {
  return static_cast<std::int64_t>(std::min(request.buffer.size(), limits().request_max).value());
}

std::uint64_t FaultEngine::accepted(std::optional<IoOperation> operation) const noexcept {
  if (operation) return accepted_[static_cast<std::size_t>(*operation)];
  return std::accumulate(accepted_.begin(), accepted_.end(), std::uint64_t{0});
}

/// The fault that the next request of this kind meets.
std::optional<Fault> FaultEngine::strike(IoOperation operation) noexcept {
  for (const Fault& fault : plan_) {
    if (fault.operation && *fault.operation != operation) continue;
    const std::uint64_t number = accepted(fault.operation);
    if (number >= fault.occurrence && number - fault.occurrence < fault.count) return fault;
  }
  return std::nullopt;
}

std::size_t FaultEngine::submit(std::span<const IoRequest> requests) noexcept {
  std::size_t count = 0;
  while (count < requests.size() && !closed_ && in_flight_ < slots_.size() && start(requests[count])) ++count;
  return count;
}

bool FaultEngine::start(const IoRequest& request) noexcept {
  using Effect = Fault::Effect;
  const auto fault = strike(request.operation);
  const TimePoint now = clock_.now();
  if (fault && fault->effect == Effect::fail) {
    hold(request.tag, -fault->error, now);
  } else if (fault && fault->effect == Effect::hang) {
    hold(request.tag, -ECANCELED, at_close);
  } else if (fault && fault->effect == Effect::lose && request.operation != IoOperation::read) {
    hold(request.tag, whole(request), now);
  } else if (!pass_on(request, fault)) {
    return false;
  }
  if (fault) ++struck_;
  ++accepted_[static_cast<std::size_t>(request.operation)];
  ++in_flight_;
  return true;
}

bool FaultEngine::pass_on(const IoRequest& request, const std::optional<Fault>& fault) noexcept {
  using Effect = Fault::Effect;
  const std::uint32_t slot = free_slots_.back();
  IoRequest changed = request;
  changed.tag = slot;
  const bool cut = fault && request.operation != IoOperation::flush &&
                   (fault->effect == Effect::shorten || fault->effect == Effect::tear);
  if (cut) {
    // Direct I/O takes whole blocks; what is reported of a short one need not be.
    changed.buffer = request.buffer.subspan(
        ByteCount(), std::min(round_up(fault->length, Alignment(4096)), request.buffer.size()));
    if (changed.buffer.empty()) {
      hold(request.tag, fault->effect == Effect::tear ? whole(request) : 0, clock_.now());
      return true;
    }
  }
  if (fault && fault->effect == Effect::misdirect) {
    changed.offset = FileOffset(request.offset.value() + static_cast<std::uint64_t>(fault->distance));
  }
  if (within_->submit({&changed, 1}) == 0) return false;
  free_slots_.pop_back();
  slots_[slot] = {request, fault};
  return true;
}

/// Moves what has completed within to what is held, with the effects that come after.
void FaultEngine::take_from_within(TimePoint deadline) noexcept {
  using Effect = Fault::Effect;
  std::array<IoCompletion, 64> completions;
  const std::size_t count = within_->reap(completions, deadline);
  for (std::size_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::uint32_t>(completions[i].tag);
    const auto& [request, fault] = slots_[index];
    std::int64_t result = completions[i].result;
    TimePoint due = clock_.now();
    if (fault && result >= 0) {
      if (fault->effect == Effect::shorten) {
        result = std::min(result, static_cast<std::int64_t>(fault->length.value()));
      }
      if (fault->effect == Effect::tear || fault->effect == Effect::misdirect) result = whole(request);
      if (fault->effect == Effect::delay) due += fault->delay;
      if (fault->effect == Effect::flip_bit && request.operation == IoOperation::read && result > 0) {
        const std::uint64_t bit = fault->bit % (request.buffer.size().value() * 8);
        request.buffer.data()[bit / 8] ^= std::byte(1u << bit % 8);
      }
    }
    hold(request.tag, result, due);
    free_slots_.push_back(index);
  }
}

TimePoint FaultEngine::next_due() const noexcept {
  TimePoint due = forever;
  for (const Held& held : held_) due = std::min(due, held.due);
  return due;
}

std::size_t FaultEngine::reap(std::span<IoCompletion> completions, TimePoint deadline) noexcept {
  take_from_within(next_due() <= clock_.now() ? TimePoint::min() : std::min(deadline, next_due()));
  std::size_t count = 0;
  for (auto held = held_.begin(); held != held_.end() && count < completions.size();) {
    if (held->due > clock_.now() && !closed_) {
      ++held;
      continue;
    }
    completions[count++] = held->completion;
    held = held_.erase(held);
  }
  in_flight_ -= static_cast<std::uint32_t>(count);
  return count;
}

bool FaultEngine::close(TimePoint deadline) noexcept {
  if (closed_) return at_rest_;
  closed_ = true;
  at_rest_ = within_->close(deadline);
  while (at_rest_ && free_slots_.size() < slots_.size()) take_from_within(TimePoint::min());
  if (deadline != forever) {
    // What hangs is not cancelled in time.
    const auto hung = std::erase_if(held_, [](const Held& held) { return held.due == at_close; });
    at_rest_ &= hung == 0;
  }
  return at_rest_;
}

}  // namespace penstock::tiers
