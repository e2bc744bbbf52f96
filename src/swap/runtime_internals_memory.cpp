#include "swap/runtime_internals.hpp"

#include "swap/runtime_state.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <utility>

// Host memory of a runtime: registered with a device and with engines, given back while it is parked, and taken back.

namespace penstock::swap {

using tiers::TensorId;

namespace {

/// In the order of their addresses, adjacent ones as one: more of their pages are whole.
std::vector<HostSpan> joined(std::span<const HostSpan> ranges) {
  std::vector<HostSpan> sorted(ranges.begin(), ranges.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const HostSpan& a, const HostSpan& b) { return a.data() < b.data(); });
  std::vector<HostSpan> result;
  for (const HostSpan& range : sorted) {
    HostSpan* const last = result.empty() ? nullptr : &result.back();
    if (last != nullptr && last->data() + last->size().value() == range.data()) {
      *last = HostSpan(last->data(), last->size() + range.size());
    } else {
      result.push_back(range);
    }
  }
  return result;
}

}  // namespace

Result<void> RuntimeInternals::pin(tiers::Device& device) const {
  const std::lock_guard lock(state_.memory_mutex);
  if (state_.registered_with == nullptr && state_.given_back_count == 0) {
    PENSTOCK_TRY(device.pin(state_.arena.bytes()));
    state_.registered_with = &device;
  }
  state_.pinned_for = &device;
  ++state_.pin_count;
  return ok();
}

void RuntimeInternals::unpin(tiers::Device& device) const {
  const std::lock_guard lock(state_.memory_mutex);
  if (--state_.pin_count > 0) return;
  state_.pinned_for = nullptr;
  if (std::exchange(state_.registered_with, nullptr) != nullptr) device.unpin(state_.arena.bytes());
}

HostSpan RuntimeInternals::kept_range(TensorId tensor) const {
  const std::lock_guard lock(state_.mutex);
  const HostSpan payload = state_.moves.payload(tensor);
  return {payload.data(), round_up(payload.size(), Alignment(4096))};
}

/// False if an engine may still use the pages that it had registered before.
bool RuntimeInternals::register_with_paths(HostSpan memory) const {
  for (const auto& path : state_.paths) path->replace_buffers(memory);
  bool detached = true;
  for (const auto& path : state_.paths) {
    wait_ignoring_stores([&path] { return path->buffers_replaced(); });
    detached = path->buffers_detached() && detached;
  }
  return detached;
}

std::size_t RuntimeInternals::user_count() const {
  const std::lock_guard lock(state_.mutex);
  return state_.users.size();
}

std::string RuntimeInternals::keeps_memory() const {
  const std::lock_guard lock(state_.memory_mutex);
  // Copies of all engines use the registration, also of those that have not asked for it.
  const bool separate =
      state_.registered_with != nullptr && state_.registered_with->memory() == tiers::DeviceMemory::separate;
  return separate && user_count() > 1 ? "it is registered with the device for several engines" : "";
}

RuntimeInternals::GivenBack RuntimeInternals::give_back_memory(std::span<const HostSpan> ranges) const {
  if (std::string reason = keeps_memory(); !reason.empty()) return {.reason = std::move(reason)};
  GivenBack memory{.ranges = joined(ranges)};
  std::erase_if(memory.ranges,
                [](const HostSpan& range) { return tiers::HostArena::whole_pages(range).empty(); });
  if (memory.ranges.empty())
    return {.reason = "it fills no page of " + to_string(tiers::HostArena::page) + " alone"};
  const std::lock_guard lock(state_.memory_mutex);
  if (state_.given_back_count == 0 && !register_with_paths({})) {
    (void)register_with_paths(state_.arena.bytes());
    return {.reason = "the I/O engine of a path does not release it"};
  }
  ++state_.given_back_count;
  if (tiers::Device* const device = std::exchange(state_.registered_with, nullptr))
    device->unpin(state_.arena.bytes());
  ByteCount whole;
  for (const HostSpan& range : memory.ranges) {
    whole += tiers::HostArena::whole_pages(range).size();
    memory.bytes += state_.arena.give_back(range);
  }
  memory.reason = memory.bytes < whole ? "the kernel has not taken it" : "parts of 2 MiB pages";
  return memory;
}

ByteCount RuntimeInternals::give_back_more(GivenBack& memory, std::span<const HostSpan> ranges) const {
  const std::lock_guard lock(state_.memory_mutex);
  PENSTOCK_CHECK(!memory.ranges.empty());
  ByteCount taken;
  for (const HostSpan& range : ranges) taken += state_.arena.give_back(range);
  memory.bytes += taken;
  memory.ranges.insert(memory.ranges.end(), ranges.begin(), ranges.end());
  memory.ranges = joined(memory.ranges);
  return taken;
}

std::string RuntimeInternals::cannot_limit() const {
  const std::lock_guard lock(state_.memory_mutex);
  if (state_.arena.page_kind() == tiers::PageKind::huge)
    return "its pages are of the machine's pool of huge ones";
  const bool separate =
      state_.registered_with != nullptr && state_.registered_with->memory() == tiers::DeviceMemory::separate;
  return separate ? "it is registered with the device; set pin_memory to false" : "";
}

Result<std::string> RuntimeInternals::take_back_memory(GivenBack& memory) const {
  const HostSpan all = state_.arena.bytes();
  return take_back_memory(memory, all.data() + all.size().value());
}

Result<std::string> RuntimeInternals::take_back_memory(GivenBack& memory, const std::byte* end) const {
  const std::lock_guard lock(state_.memory_mutex);
  std::vector<HostSpan> before, rest;
  for (const HostSpan& range : memory.ranges) {
    // To the end of the page in which `end` is.
    std::uint64_t size = 0;
    if (range.data() < end)
      size = round_up(static_cast<std::uint64_t>(end - range.data()), tiers::HostArena::page.value());
    const ByteCount first = std::min(range.size(), ByteCount(size));
    if (!first.is_zero()) before.push_back(range.subspan({}, first));
    if (first < range.size()) rest.push_back(range.subspan(first, range.size() - first));
  }
  if (before.empty()) return std::string();
  for (const HostSpan& range : before) {
    auto taken = state_.arena.take_back(range);
    if (taken) continue;
    // Nothing has registered them: not while any are given back.
    for (const HostSpan& again : before) (void)state_.arena.give_back(again);
    return taken.error();
  }
  if (!rest.empty()) {
    for (const HostSpan& range : before) memory.bytes -= std::min(memory.bytes, range.size());
    memory.ranges = std::move(rest);
    return std::string();
  }
  memory = {};
  PENSTOCK_CHECK(state_.given_back_count > 0);
  --state_.given_back_count;
  return register_if_complete();
}

void RuntimeInternals::abandon_memory(GivenBack memory) const {
  if (memory.ranges.empty()) return;
  const std::lock_guard lock(state_.memory_mutex);
  PENSTOCK_CHECK(state_.given_back_count > 0);
  --state_.given_back_count;
  state_.abandoned.insert(state_.abandoned.end(), memory.ranges.begin(), memory.ranges.end());
  // Populating them takes time and memory: not for a runtime that is destroyed next.
  if (user_count() > 1) take_back_abandoned();
}

/// For a user that comes, or is left. Memory that is not there now is populated when it is written.
void RuntimeInternals::take_back_abandoned() const {
  if (state_.abandoned.empty() || state_.given_back_count > 0) return;
  for (const HostSpan& range : std::exchange(state_.abandoned, {})) (void)state_.arena.take_back(range);
  (void)register_if_complete();
}

/// Registers the memory with paths and device once no page is given back. Returns what is refused.
std::string RuntimeInternals::register_if_complete() const {
  if (state_.given_back_count > 0) return {};
  (void)register_with_paths(
      state_.arena.bytes());  // an engine that is refused is slower, and its notes say so
  if (state_.pin_count == 0 || state_.registered_with != nullptr) return {};
  if (auto pinned = state_.pinned_for->pin(state_.arena.bytes()); !pinned)
    return "host memory is not registered with the device again: " + pinned.error().message();
  state_.registered_with = state_.pinned_for;
  return {};
}

}  // namespace penstock::swap
