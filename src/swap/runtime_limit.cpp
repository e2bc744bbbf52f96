#include "swap/runtime_limit.hpp"
#include "swap/runtime_internals.hpp"
#include "swap/runtime_state.hpp"

#include <algorithm>
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
  const char* reason = "the runtime's engines need more host memory for progress";
  const std::string* tensor = nullptr;  // for which it is so
};
Least least_of(const RuntimeState& state) {
  Least least{state.host_least};
  for (const tiers::TensorId tensor : state.store.tensors()) {
    const auto& description = state.store.description(tensor);
    const tiers::Reservation& range = state.store.copy(tensor).reservation;
    if (!description.stays_in_memory()) {
      const ByteCount size = description.extent ? description.extent->length : description.size;
      if (size > least.bytes) least = {size, "a tensor would have no room", &description.name};
    } else if (range.held() && ByteCount(range.offset()) + description.size > least.bytes) {
      least = {ByteCount(range.offset()) + description.size, "a tensor that stays in memory is beyond that",
               &description.name};
    }
  }
  return least;
}

Result<void> check_limit(const Least& least, ByteCount end) {
  if (end >= least.bytes) return ok();
  Error error = Error(ErrorCode::budget_too_small, "Runtime::limit_memory")
                    .reason(least.reason)
                    .wanted(least.bytes)
                    .got(end);
  return least.tensor == nullptr ? error : std::move(error).object(*least.tensor);
}

}  // namespace

void Runtime::Limited::give_back(const RuntimeInternals& internals, std::span<const HostSpan> free) {
  std::vector<HostSpan> more;
  for (const HostSpan& range : free) {
    const HostSpan whole = tiers::HostArena::whole_pages(range);
    std::optional<std::uint64_t> begin;  // of pages that are not given back
    for (std::uint64_t at = 0; at <= whole.size().value(); at += page.value()) {
      const bool is_new = at < whole.size().value() && !given.contains(whole.data() + at);
      if (is_new && !begin) begin = at;
      if (is_new || !begin) continue;
      more.push_back(whole.subspan(ByteCount(*begin), ByteCount(at - *begin)));
      begin.reset();
    }
  }
  if (more.empty()) return;
  RuntimeInternals::GivenBack piece = internals.give_back_memory(more);
  if (piece.ranges.empty()) return;
  for (const HostSpan& range : piece.ranges) {
    for (std::uint64_t at = 0; at < range.size().value(); at += page.value()) given.insert(range.data() + at);
  }
  pieces.push_back(std::move(piece));
}

Result<void> Runtime::Limited::take_back_below(const RuntimeInternals& internals, const std::byte* end) {
  for (auto piece = pieces.begin(); piece != pieces.end();) {
    const bool is_below = std::any_of(piece->ranges.begin(), piece->ranges.end(),
                                      [&](const HostSpan& range) { return range.data() < end; });
    if (!is_below) {
      ++piece;
      continue;
    }
    const std::vector<HostSpan> ranges = piece->ranges;
    PENSTOCK_TRY(internals.take_back_memory(*piece));
    for (const HostSpan& range : ranges) {
      for (std::uint64_t at = 0; at < range.size().value(); at += page.value())
        given.erase(range.data() + at);
    }
    piece = pieces.erase(piece);
  }
  return ok();
}

Result<ByteCount> Runtime::limit_memory(ByteCount most) {
  RuntimeState& s = *state_;
  const RuntimeInternals internals(*this);
  const ByteCount size = s.budget.size();
  const ByteCount end = most >= size ? size : round_up(most, granule);
  const std::lock_guard one_at_a_time(s.limit_mutex);
  if (limited_ == nullptr) limited_ = std::make_unique<Limited>();
  {
    const std::lock_guard lock(s.mutex);
    PENSTOCK_TRY(s.check_not_parked("Runtime::limit_memory"));
    PENSTOCK_TRY(check_limit(least_of(s), end));
  }
  // Their pages are there before anything is allocated in them.
  PENSTOCK_TRY(limited_->take_back_below(internals, s.arena.bytes().data() + end.value()));
  std::vector<HostSpan> free;
  {
    const std::lock_guard lock(s.mutex);
    s.residency.limit_memory(end);
    s.memory_limit = end;
    s.advance();
    for (const auto& range : s.budget.free_beyond())
      free.push_back(s.arena.bytes().subspan(ByteCount(range.begin), ByteCount(range.length)));
  }
  s.wake();
  limited_->give_back(internals, free);
  return size - page * limited_->given.size();
}

ByteCount Runtime::memory_least() const {
  const std::lock_guard lock(state_->mutex);
  return std::min(state_->budget.size(), round_up(least_of(*state_).bytes, granule));
}

}  // namespace penstock::swap
