#include "tiers/io/sim_disk_state.hpp"
#include "tiers/io/sim_random.hpp"

#include <penstock/tiers/io/sim_disk.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace penstock::tiers {

namespace {
constexpr ByteCount request_max = 1_GiB;
// Of one transfer: the sum of many is still a TimePoint.
constexpr TimePoint transfer_time_max = std::chrono::hours(24);

bool has_a_buffer(const IoRequest& request) {
  return request.buffer.data() != nullptr || request.buffer.empty();
}

/// A buffer has no promised contents until its read has completed.
void fill_with_garbage(HostSpan buffer, std::uint64_t& random) {
  std::byte* const bytes = buffer.data();
  const std::uint64_t size = buffer.size().value();
  for (std::uint64_t at = 0; at < size; at += sizeof(std::uint64_t)) {
    const std::uint64_t value = splitmix64_next(random);
    std::memcpy(bytes + at, &value, std::min<std::uint64_t>(size - at, sizeof value));
  }
}
}  // namespace

struct SimEngine::State {
  struct Pending {
    IoRequest request;
    TimePoint due;
    std::uint64_t changes = 0;  // of the file when a flush was submitted: the flush makes these durable
  };
  [[nodiscard]] std::int64_t perform(const Pending& completed) noexcept;
  /// The same, while the disk has power.
  [[nodiscard]] std::int64_t perform_counted(const Pending& completed) noexcept;

  SimDiskState& disk;
  const SimClock& clock;
  std::uint64_t random;
  const std::uint32_t depth;
  bool closed = false;
  TimePoint device_free{};
  std::vector<Pending> pending{};
  std::vector<IoCompletion> done{};
};

std::int64_t SimEngine::State::perform(const Pending& completed) noexcept {
  const IoRequest& request = completed.request;
  SimFile* const file = disk.find(request.file);
  if (file == nullptr) return -EBADF;
  if (request.operation == IoOperation::flush) {
    const int error = disk.sync(*file, completed.changes);
    if (error == 0) ++disk.flush_count;
    return -error;
  }
  if (request.operation > IoOperation::flush) return -EINVAL;
  if (!has_a_buffer(request)) return -EFAULT;
  if (disk.misaligned(request.offset, request.buffer)) return -EINVAL;
  const HostSpan bytes = request.buffer.subspan(0_B, std::min(request.buffer.size(), request_max));
  return request.operation == IoOperation::read ? disk.read_at(request.file, request.offset, bytes)
                                                : disk.write_at(request.file, request.offset, bytes);
}

std::int64_t SimEngine::State::perform_counted(const Pending& completed) noexcept {
  const bool reads = completed.request.operation == IoOperation::read;
  return (reads ? disk.has_power : disk.change()) ? perform(completed) : -EIO;
}

SimEngine::SimEngine(SimDisk& disk, const SimClock& clock, std::uint64_t seed, std::uint32_t depth)
    : state_(new State{.disk = *disk.state_, .clock = clock, .random = seed, .depth = depth}) {
  state_->disk.engines.push_back(this);
}

SimEngine::~SimEngine() {
  (void)SimEngine::close(forever);
  std::erase(state_->disk.engines, this);
}

IoLimits SimEngine::limits() const noexcept {
  return {.request_max = request_max, .depth = state_->depth};
}

std::uint32_t SimEngine::in_flight() const noexcept {
  return static_cast<std::uint32_t>(state_->pending.size() + state_->done.size());
}

std::size_t SimEngine::submit(std::span<const IoRequest> requests) noexcept {
  if (state_->closed) return 0;
  const std::size_t accepted = std::min<std::size_t>(requests.size(), state_->depth - in_flight());
  for (const IoRequest& request : requests.first(accepted)) {
    if (request.operation == IoOperation::read && has_a_buffer(request)) {
      fill_with_garbage(request.buffer, state_->random);
    }
    const SimDisk::Options& disk = state_->disk.options;
    const double nanoseconds =
        static_cast<double>(request.buffer.size().value()) * 1e9 / static_cast<double>(disk.bytes_per_second);
    const TimePoint transfer(
        static_cast<TimePoint::rep>(std::min(nanoseconds, static_cast<double>(transfer_time_max.count()))));
    state_->device_free = std::max(state_->device_free, state_->clock.now()) + transfer;
    const TimePoint jitter(static_cast<TimePoint::rep>(
        splitmix64_next(state_->random) % static_cast<std::uint64_t>(2 * disk.latency.count() + 1)));
    const SimFile* const file = state_->disk.find(request.file);
    state_->pending.push_back(
        {request, state_->device_free + jitter, file != nullptr ? file->change_count() : 0});
  }
  return accepted;
}

std::size_t SimEngine::reap(std::span<IoCompletion> completions, TimePoint) noexcept {
  for (auto at = state_->pending.begin(); at != state_->pending.end();) {
    if (at->due > state_->clock.now()) {
      ++at;
      continue;
    }
    state_->done.push_back({at->request.tag, state_->perform_counted(*at)});
    at = state_->pending.erase(at);
  }
  const std::size_t count = std::min(completions.size(), state_->done.size());
  for (std::size_t i = 0; i < count; ++i) {
    std::swap(state_->done[splitmix64_next(state_->random) % state_->done.size()], state_->done.back());
    completions[i] = state_->done.back();
    state_->done.pop_back();
  }
  return count;
}

bool SimEngine::close(TimePoint) noexcept {
  state_->closed = true;
  for (const State::Pending& pending : state_->pending)
    state_->done.push_back({pending.request.tag, -ECANCELED});
  state_->pending.clear();
  return true;
}

/// A write in flight may have reached the disk, as a completed write that was not flushed.
void SimEngine::lose_power(std::uint64_t& random) noexcept {
  for (const State::Pending& pending : state_->pending) {
    const bool reached = splitmix64_next(random) % 2 == 0;
    if (pending.request.operation == IoOperation::write && reached) (void)state_->perform(pending);
  }
}

TimePoint SimEngine::next_due() const noexcept {
  if (!state_->done.empty()) return state_->clock.now();
  TimePoint due = forever;
  for (const State::Pending& pending : state_->pending) due = std::min(due, pending.due);
  return due;
}

}  // namespace penstock::tiers
