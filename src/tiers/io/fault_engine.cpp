#include <penstock/tiers/io/fault_engine.hpp>

#include "tiers/io/kill_process.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <numeric>

namespace penstock::tiers {

namespace {

using Effect = Fault::Effect;

/// Whether the effect concerns requests of `operation`; see Effect.
constexpr bool concerns(Fault::Effect effect, IoOperation operation) {
  switch (effect) {
    case Fault::Effect::tear:
    case Fault::Effect::misdirect: return operation == IoOperation::write;
    case Fault::Effect::lose: return operation != IoOperation::read;
    case Fault::Effect::flip_bit: return operation == IoOperation::read;
    case Fault::Effect::shorten: return operation != IoOperation::flush;
    default: return true;
  }
}

// A delayed completion that is due only when the engine closes.
constexpr TimePoint at_close = forever;

constexpr std::size_t operation_count = 3;

/// Wrapped where a caller passes no engine: one that has failed.
class NoEngine final : public IoEngine {
 public:
  std::size_t submit(std::span<const IoRequest>) noexcept override { return 0; }
  std::size_t reap(std::span<IoCompletion>, TimePoint) noexcept override { return 0; }
  void wake() noexcept override {}
  void attach(FileHandle, HostSpan) noexcept override {}
  bool detach() noexcept override { return true; }
  bool close(TimePoint) noexcept override { return true; }
  IoLimits limits() const noexcept override { return {}; }
  std::uint32_t in_flight() const noexcept override { return 0; }
  const char* name() const noexcept override { return "none"; }
  std::string notes() const override { return failure(); }
  std::string failure() const override { return "FaultEngine was created without an engine"; }
};

}  // namespace

struct FaultEngine::State {
  /// A request that the wrapped engine has accepted, and the fault that changes it.
  struct Slot {
    IoRequest request;
    std::optional<Fault> fault;
  };
  struct Delayed {
    IoCompletion completion;
    TimePoint due{};
  };

  /// The fault that the next request of this kind meets.
  [[nodiscard]] std::optional<Fault> next_fault(IoOperation operation) const noexcept;
  [[nodiscard]] bool start(const IoRequest& request) noexcept;
  [[nodiscard]] bool pass_on(const IoRequest& request, const std::optional<Fault>& fault) noexcept;
  void complete(std::uint64_t tag, std::int64_t result, TimePoint due) {
    delayed.push_back({{tag, result}, due});
  }
  /// Reaps the wrapped engine and applies the effects that follow a completion.
  void reap_wrapped(TimePoint deadline) noexcept;
  /// The result of a request that moves as much as one request can.
  [[nodiscard]] std::int64_t complete_length(const IoRequest& request) const noexcept {
    return static_cast<std::int64_t>(std::min(request.buffer.size(), wrapped->limits().request_max).value());
  }
  [[nodiscard]] std::uint64_t accepted(std::optional<IoOperation> operation) const noexcept {
    if (operation) {
      const auto index = static_cast<std::size_t>(*operation);
      return index < operation_count ? accepted_by_operation[index].load() : 0;
    }
    return std::accumulate(accepted_by_operation.begin(), accepted_by_operation.end(), std::uint64_t{0});
  }
  [[nodiscard]] TimePoint next_due() const noexcept {
    TimePoint due = forever;
    for (const Delayed& completion : delayed) due = std::min(due, completion.due);
    return due;
  }

  std::unique_ptr<IoEngine> wrapped;
  FaultPlan plan;
  const Clock& clock;
  std::vector<Slot> slots{};
  std::vector<std::uint32_t> free_slots{};
  std::vector<Delayed> delayed{};
  std::array<std::atomic<std::uint64_t>, operation_count> accepted_by_operation{};
  mutable std::mutex plan_mutex;
  std::atomic<std::uint64_t> injected = 0;
  std::uint32_t in_flight = 0;
  bool closed = false, all_complete = true;
};

FaultEngine::FaultEngine(std::unique_ptr<IoEngine> wrapped, FaultPlan plan, const Clock& clock)
    : state_(new State{.wrapped = wrapped != nullptr ? std::move(wrapped) : std::make_unique<NoEngine>(),
                       .plan = std::move(plan),
                       .clock = clock}) {
  state_->slots.resize(state_->wrapped->limits().depth);
  for (auto slot = static_cast<std::uint32_t>(state_->slots.size()); slot > 0; --slot) {
    state_->free_slots.push_back(slot - 1);
  }
}

FaultEngine::~FaultEngine() {
  (void)FaultEngine::close(forever);
}

void FaultEngine::wake() noexcept {
  state_->wrapped->wake();
}
void FaultEngine::attach(FileHandle file, HostSpan buffers) noexcept {
  state_->wrapped->attach(file, buffers);
}
bool FaultEngine::detach() noexcept {
  return state_->wrapped->detach();
}
IoLimits FaultEngine::limits() const noexcept {
  return state_->wrapped->limits();
}
std::uint32_t FaultEngine::in_flight() const noexcept {
  return state_->in_flight;
}
const char* FaultEngine::name() const noexcept {
  return state_->wrapped->name();
}
std::string FaultEngine::notes() const {
  return state_->wrapped->notes();
}
std::string FaultEngine::failure() const {
  return state_->wrapped->failure();
}

void FaultEngine::add(const Fault& fault) {
  const std::lock_guard lock(state_->plan_mutex);
  state_->plan.push_back(fault);
}
std::uint64_t FaultEngine::accepted(std::optional<IoOperation> operation) const noexcept {
  return state_->accepted(operation);
}
std::uint64_t FaultEngine::injected() const noexcept {
  return state_->injected;
}
TimePoint FaultEngine::next_due() const noexcept {
  return state_->next_due();
}

std::size_t FaultEngine::submit(std::span<const IoRequest> requests) noexcept {
  State& state = *state_;
  std::size_t count = 0;
  while (count < requests.size() && !state.closed && state.in_flight < state.slots.size() &&
         state.start(requests[count])) {
    ++count;
  }
  return count;
}

std::size_t FaultEngine::reap(std::span<IoCompletion> completions, TimePoint deadline) noexcept {
  State& state = *state_;
  const TimePoint due = state.next_due();
  state.reap_wrapped(due <= state.clock.now() ? TimePoint::min() : std::min(deadline, due));
  std::size_t count = 0;
  for (auto delayed = state.delayed.begin(); delayed != state.delayed.end() && count < completions.size();) {
    if (delayed->due > state.clock.now() && !state.closed) {
      ++delayed;
      continue;
    }
    completions[count++] = delayed->completion;
    delayed = state.delayed.erase(delayed);
  }
  state.in_flight -= static_cast<std::uint32_t>(count);
  return count;
}

bool FaultEngine::close(TimePoint deadline) noexcept {
  State& state = *state_;
  if (state.closed) return state.all_complete;
  state.closed = true;
  state.all_complete = state.wrapped->close(deadline);
  while (state.all_complete && state.free_slots.size() < state.slots.size()) {
    state.reap_wrapped(TimePoint::min());
  }
  if (deadline != forever) {
    // A request that hangs is not cancelled before the deadline.
    const auto hung =
        std::erase_if(state.delayed, [](const State::Delayed& delayed) { return delayed.due == at_close; });
    state.all_complete &= hung == 0;
  }
  return state.all_complete;
}

std::optional<Fault> FaultEngine::State::next_fault(IoOperation operation) const noexcept {
  const std::lock_guard lock(plan_mutex);
  for (const Fault& fault : plan) {
    if (fault.operation && *fault.operation != operation) continue;
    if (!concerns(fault.effect, operation)) continue;
    const std::uint64_t number = accepted(fault.operation);
    if (number >= fault.occurrence && number - fault.occurrence < fault.count) return fault;
  }
  return std::nullopt;
}

bool FaultEngine::State::start(const IoRequest& request) noexcept {
  const auto fault = next_fault(request.operation);
  const TimePoint now = clock.now();
  const auto operation = static_cast<std::size_t>(request.operation);
  if (operation >= operation_count) {
    complete(request.tag, -EINVAL, now);
    ++in_flight;
    return true;
  }
  if (fault && fault->effect == Effect::fail) {
    complete(request.tag, -fault->error, now);
  } else if (fault && fault->effect == Effect::hang) {
    complete(request.tag, -ECANCELED, at_close);
  } else if (fault && fault->effect == Effect::lose) {
    complete(request.tag, complete_length(request), now);
  } else if (!pass_on(request, fault)) {
    return false;
  }
  if (fault) ++injected;
  ++accepted_by_operation[operation];
  ++in_flight;
  return true;
}

bool FaultEngine::State::pass_on(const IoRequest& request, const std::optional<Fault>& fault) noexcept {
  const std::uint32_t slot = free_slots.back();
  IoRequest changed = request;
  changed.tag = slot;
  const bool cut = fault && (fault->effect == Effect::shorten || fault->effect == Effect::tear);
  if (cut) {
    // Direct I/O moves whole blocks; the length that a shortened request reports is exact.
    changed.buffer = request.buffer.subspan(
        ByteCount(), std::min(round_up(fault->length, Alignment(4096)), request.buffer.size()));
    if (changed.buffer.empty()) {
      complete(request.tag, fault->effect == Effect::tear ? complete_length(request) : 0, clock.now());
      return true;
    }
  }
  if (fault && fault->effect == Effect::misdirect) {
    changed.offset = FileOffset(request.offset.value() + static_cast<std::uint64_t>(fault->distance));
  }
  if (wrapped->submit({&changed, 1}) == 0) return false;
  free_slots.pop_back();
  slots[slot] = {request, fault};
  if (fault && fault->effect == Effect::kill) kill_process();
  return true;
}

void FaultEngine::State::reap_wrapped(TimePoint deadline) noexcept {
  std::array<IoCompletion, 64> completions;
  const std::size_t count = wrapped->reap(completions, deadline);
  for (std::size_t i = 0; i < count; ++i) {
    if (completions[i].tag >= slots.size()) continue;  // an embedder's engine may break its contract
    const auto index = static_cast<std::uint32_t>(completions[i].tag);
    const auto& [request, fault] = slots[index];
    std::int64_t result = completions[i].result;
    TimePoint due = clock.now();
    if (fault && result >= 0) {
      if (fault->effect == Effect::shorten) {
        result = std::min(result, static_cast<std::int64_t>(fault->length.value()));
      }
      if (fault->effect == Effect::tear || fault->effect == Effect::misdirect)
        result = complete_length(request);
      if (fault->effect == Effect::delay) due += fault->delay;
      if (fault->effect == Effect::flip_bit && result > 0) {
        const std::uint64_t bit = fault->bit % (request.buffer.size().value() * 8);
        request.buffer.data()[bit / 8] ^= std::byte(1u << bit % 8);
      }
    }
    complete(request.tag, result, due);
    free_slots.push_back(index);
  }
}

}  // namespace penstock::tiers
