#include "swap/runtime_limit.hpp"
#include "swap/runtime_internals.hpp"
#include "swap/runtime_state.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::swap {

namespace {

constexpr ByteCount page = tiers::HostArena::page;
constexpr Alignment granule{4096};  // of ranges

/// The least that the memory can be limited to. With the lock held.
struct Least {
  ByteCount bytes;
  const char* reason;
  const std::string* object = nullptr;  // for which it is so
  ByteCount kept_end = {};              // where what stays in memory ends
  const std::string* last = nullptr;    // of that; null: nothing stays
  ByteCount engines = {};               // what they need for progress, where that decides
};
Least least_of(const RuntimeState& state) {
  Least least{};
  ByteCount largest;
  for (const tiers::TensorId tensor : state.store.tensors()) {
    const auto& description = state.store.description(tensor);
    const tiers::Reservation& range = state.store.copy(tensor).reservation;
    if (!description.stays_in_memory()) {
      const ByteCount size = description.extent ? description.extent->length : description.size;
      if (size <= largest) continue;
      largest = size;
      least.object = &description.name;
    } else if (range.held() && ByteCount(range.offset()) + range.size() > least.kept_end) {
      least.kept_end = ByteCount(range.offset()) + range.size();
      least.last = &description.name;
    }
  }
  // What moves needs room beyond what stays.
  least.bytes = least.kept_end + std::max(largest, state.staging_least);
  least.reason = "the largest tensor would have no room beside those that stay in memory";
  if (largest > state.staging_least) return least;
  least.engines = state.staging_least;
  least.object = least.engines.is_zero() ? least.last : nullptr;
  least.reason = least.engines.is_zero() ? "a tensor that stays in memory is beyond that"
                                         : "the runtime's engines need more host memory for progress";
  return least;
}

/// `end`: the lower limit in whole units of allocation. `wanted`: what the caller gave, and `other` the other limit, if
/// there is one.
Result<void> check_limit(const Least& least, ByteCount end, ByteCount wanted,
                         std::optional<ByteCount> other) {
  if (end >= least.bytes) return ok();
  Error error = Error(ErrorCode::budget_too_small, "Runtime::limit_memory")
                    .reason(least.reason)
                    .wanted(round_up(least.bytes, granule))
                    .got(wanted)
                    .advice("limit it to memory_least() or more, or end the engines that need it");
  if (other && *other < wanted) {
    error = std::move(error).note("limit   " + to_string(*other) +
                                  " is another one, and the lower one of the two applies");
  }
  if (!least.engines.is_zero())
    error = std::move(error).note("engines " + to_string(least.engines) + " for what moves");
  if (least.object != nullptr) error = std::move(error).object(*least.object);
  if (least.last == nullptr) return error;
  return std::move(error).note("stays   " + *least.last + ", the last one, up to " +
                               to_string(least.kept_end));
}

}  // namespace

void Runtime::Limited::give_back(const RuntimeInternals& internals, std::span<const HostSpan> free) {
  std::vector<HostSpan> more;
  for (const HostSpan& range : free) {
    const HostSpan whole = tiers::HostArena::whole_pages(range);
    std::optional<std::uint64_t> begin;  // of pages that are not given back
    for (std::uint64_t at = 0; at <= whole.size().value(); at += page.value()) {
      const bool is_new = at < whole.size().value() && !pages.contains(whole.data() + at);
      if (is_new && !begin) begin = at;
      if (is_new || !begin) continue;
      more.push_back(whole.subspan(ByteCount(*begin), ByteCount(at - *begin)));
      begin.reset();
    }
  }
  if (more.empty()) return;
  if (memory.ranges.empty()) {
    memory = internals.give_back_memory(more);
    if (memory.ranges.empty()) return;  // and the reason is there
  } else {
    (void)internals.give_back_more(memory, more);
  }
  for (const HostSpan& range : more) {
    for (std::uint64_t at = 0; at < range.size().value(); at += page.value()) pages.insert(range.data() + at);
  }
}

Result<void> Runtime::Limited::take_back(const RuntimeInternals& internals, const std::byte* end) {
  PENSTOCK_TRY(internals.take_back_memory(memory, end));
  pages.erase(pages.begin(), pages.lower_bound(end));
  return ok();
}

Result<ByteCount> Runtime::limit_memory(ByteCount most) {
  return limit_memory(Limiter::caller, most);
}

Result<ByteCount> RuntimeInternals::limit_memory(Runtime& runtime, ByteCount most) {
  return runtime.limit_memory(Runtime::Limiter::reserve, most);
}

Result<ByteCount> Runtime::limit_memory(Limiter limiter, ByteCount wanted) {
  constexpr const char* operation = "Runtime::limit_memory";
  RuntimeState& s = *state_;
  const RuntimeInternals internals(*this);
  const ByteCount size = s.budget.size();
  const std::lock_guard one_at_a_time(s.limit_mutex);
  if (limited_ == nullptr) limited_ = std::make_unique<Limited>(size);
  std::array<ByteCount, 2> limits = limited_->limits;
  const auto mine = static_cast<std::size_t>(limiter);
  limits[mine] = std::min(wanted, size);
  const ByteCount other = limits[1 - mine],
                  end = std::min(round_up(std::min(limits[mine], other), granule), size);
  if (std::string reason = internals.cannot_limit(); !reason.empty() && end < size) {
    return Error::unsupported(operation).object("host memory").reason("it is not given back: " + reason);
  }
  const auto check = [&]() -> Result<void> {
    PENSTOCK_TRY(s.check_not_parked(operation));
    if (s.vacated_count > 0) {
      return Error(ErrorCode::failed_state, operation)
          .reason("an engine of the runtime has parked what has its home in the memory")
          .advice("call it before park() of that engine, or after its unpark()");
    }
    return check_limit(least_of(s), end, wanted, other < size ? std::optional(other) : std::nullopt);
  };
  {
    const std::lock_guard lock(s.mutex);
    PENSTOCK_TRY(check());
  }
  // Their pages are there before anything is allocated in them.
  PENSTOCK_TRY(limited_->take_back(internals, s.arena.bytes().data() + end.value()));
  std::vector<HostSpan> free;
  {
    const std::lock_guard lock(s.mutex);
    PENSTOCK_TRY(check());  // again: an engine or a tensor may have come
    s.residency.limit_memory(end);
    s.memory_limit = end;
    limited_->limits = limits;
    s.advance();
    for (const auto& range : s.budget.free_beyond())
      free.push_back(s.arena.bytes().subspan(ByteCount(range.begin), ByteCount(range.length)));
  }
  s.wake();
  if (limited_->refused != end) limited_->give_back(internals, free);
  const RuntimeInternals::GivenBack& memory = limited_->memory;
  if (memory.ranges.empty() && !memory.reason.empty() && limited_->refused != end) {
    limited_->refused = end;
    internals.add_message("limit_memory() gave no host memory back: " + memory.reason);
  }
  return size - limited_->memory.bytes;
}

ByteCount Runtime::memory_least() const {
  const std::lock_guard lock(state_->mutex);
  return std::min(state_->budget.size(), round_up(least_of(*state_).bytes, granule));
}

}  // namespace penstock::swap
