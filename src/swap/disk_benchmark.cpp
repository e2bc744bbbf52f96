#include <penstock/swap/disk_benchmark.hpp>

#include "base/process_cpu_time.hpp"
#include "swap/path/path.hpp"
#include "tiers/memory/host_arena.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

namespace penstock::swap {

using tiers::BlockFile;
using tiers::IoOperation;

namespace {

std::uint64_t slot_count(const PathOptions& path, ByteCount transfer, std::uint32_t spare) {
  return ceil_divide(path.in_flight_max.value(), transfer.value()) + spare;
}

/// Bytes that neither file system nor device can compress or deduplicate.
void fill_with_noise(HostSpan bytes) {
  std::uint64_t state = 0x9e3779b97f4a7c15u;
  for (std::uint64_t& word : bytes.as<std::uint64_t>()) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    word = state;
  }
}

}  // namespace

std::string_view to_string(BenchmarkPattern pattern) {
  switch (pattern) {
    case BenchmarkPattern::read: return "read";
    case BenchmarkPattern::write: return "write";
    case BenchmarkPattern::mixed: return "mixed";
    case BenchmarkPattern::swap: return "swap";
  }
  return "unknown";
}

double BenchmarkSample::bytes_per_second() const {
  if (elapsed <= TimePoint::zero()) return 0;
  return static_cast<double>(total().value()) / std::chrono::duration<double>(elapsed).count();
}

/// Used by the thread of run(), except `notify`, which drivers call.
struct DiskBenchmark::State {
  /// The transfers of one path.
  struct Lane {
    ByteCount size;  // of the file, in whole transfers
    std::vector<HostSpan> slots;
    std::vector<FileOffset> read_from;  // by slot, in the swap pattern
    FileOffset next_read, next_write;
    std::uint64_t posted = 0;
    std::size_t busy = 0;
  };

  State(Options options, ByteCount transfer, tiers::HostArena arena,
        std::vector<std::unique_ptr<Path>> paths);
  ~State();
  Result<void> start_drivers();
  Result<void> prewrite();
  Result<BenchmarkSample> run(BenchmarkPattern pattern, TimePoint duration);
  void post(std::size_t lane, std::size_t slot, IoOperation operation);
  void post_at(std::size_t lane, std::size_t slot, IoOperation operation, FileOffset offset);
  Result<void> go_on(std::size_t lane, const BlockFile::Finished& finished, BenchmarkPattern pattern,
                     bool more);
  [[nodiscard]] IoOperation next_operation(const Lane& lane, BenchmarkPattern pattern) const;
  void wait_for_outcomes();
  template <typename GoOn>
  Result<void> drive(const GoOn& go_on);
  [[nodiscard]] BenchmarkSample counters() const;

  Options options_;
  ByteCount transfer_;
  tiers::HostArena arena_;  // outlives the paths
  std::vector<std::unique_ptr<Path>> paths_;
  std::vector<Lane> lanes_;
  std::vector<BlockFile::Finished> outcomes_;

  std::mutex mutex_;
  std::condition_variable arrived_;
  bool notified_ = false;
};

namespace {

/// Rounds the capacities down to whole transfers. The memory of all transfers together.
Result<ByteCount> size_files(std::vector<PathOptions>& paths, ByteCount transfer, std::uint32_t spare) {
  constexpr const char* operation = "DiskBenchmark::create";
  if (paths.empty()) return Error::invalid_argument(operation).object("paths").wanted("at least one").got(0u);
  if (transfer.is_zero() || !is_aligned(transfer, Alignment(512))) {
    return Error::invalid_argument(operation).object("transfer").wanted("a multiple of 512 B").got(transfer);
  }
  ByteCount memory;
  for (PathOptions& path : paths) {
    PENSTOCK_TRY(check_options(path));
    const std::uint64_t slots = slot_count(path, transfer, spare), pieces = path.capacity / transfer;
    if (slots == 0 || pieces / 2 < slots) {
      // A product beyond 2^64 is given as the most.
      constexpr ByteCount most(~std::uint64_t{0});
      const std::uint64_t wanted = std::max<std::uint64_t>(slots, 1);
      return Error::invalid_argument(operation)
          .reason("the file is too short to keep its queue full")
          .object(path.directory.string())
          .wanted("at least " + to_exact_string(wanted > most / transfer / 2 ? most : transfer * wanted * 2))
          .got(path.capacity);
    }
    path.capacity = transfer * pieces;
    memory += transfer * slots;
  }
  return memory;
}

}  // namespace

Result<std::unique_ptr<DiskBenchmark>> DiskBenchmark::create(Options options) {
  ByteCount transfer = options.transfer;
  if (transfer.is_zero() && !options.paths.empty()) transfer = options.paths.front().request_max;
  PENSTOCK_TRY_ASSIGN(const ByteCount memory, size_files(options.paths, transfer, options.spare));
  PENSTOCK_TRY_ASSIGN(auto arena, tiers::HostArena::create({.size = memory}));
  fill_with_noise(arena.bytes());

  std::vector<std::unique_ptr<Path>> paths;
  for (const PathOptions& path : options.paths) {
    PENSTOCK_TRY_ASSIGN(auto created, Path::create(path));
    created->attach(arena.bytes());
    paths.push_back(std::move(created));
  }
  auto state = std::make_unique<State>(std::move(options), transfer, std::move(arena), std::move(paths));
  PENSTOCK_TRY(state->start_drivers());
  PENSTOCK_TRY(state->prewrite());
  return std::unique_ptr<DiskBenchmark>(new DiskBenchmark(std::move(state)));
}

DiskBenchmark::DiskBenchmark(std::unique_ptr<State> state) : state_(std::move(state)) {}
DiskBenchmark::~DiskBenchmark() = default;

Result<BenchmarkSample> DiskBenchmark::run(BenchmarkPattern pattern, TimePoint duration) {
  if (to_string(pattern) == "unknown") {
    return Error::invalid_argument("DiskBenchmark::run")
        .object("pattern")
        .wanted("an enumerator")
        .got(static_cast<unsigned>(pattern));
  }
  return state_->run(pattern, duration);
}

std::vector<PathReport> DiskBenchmark::paths() const {
  std::vector<PathReport> reports;
  for (const auto& path : state_->paths_) reports.push_back(path->report());
  return reports;
}

std::string DiskBenchmark::describe_memory() const {
  const tiers::HostArena& arena = state_->arena_;
  std::string text =
      to_string(arena.bytes().size()) + " on " + std::string(tiers::to_string(arena.page_kind()));
  if (!arena.notes().empty()) text += " (" + arena.notes() + ")";
  return text;
}

ByteCount DiskBenchmark::transfer() const {
  return state_->transfer_;
}

DiskBenchmark::State::State(Options options, ByteCount transfer, tiers::HostArena arena,
                            std::vector<std::unique_ptr<Path>> paths)
    : options_(std::move(options)), transfer_(transfer), arena_(std::move(arena)), paths_(std::move(paths)) {
  ByteCount begin;
  for (const auto& path : paths_) {
    Lane& lane = lanes_.emplace_back();
    lane.size = path->options().capacity;
    const std::uint64_t slots = slot_count(path->options(), transfer_, options_.spare);
    for (std::uint64_t i = 0; i < slots; ++i, begin += transfer_) {
      lane.slots.push_back(arena_.bytes().subspan(begin, transfer_));
    }
    lane.read_from.resize(slots);
  }
}

Result<void> DiskBenchmark::State::start_drivers() {
  for (const auto& path : paths_) {
    PENSTOCK_TRY(path->start_driver([this] {
      const std::lock_guard lock(mutex_);
      notified_ = true;
      arrived_.notify_one();
    }));
  }
  return ok();
}

DiskBenchmark::State::~State() {
  bool finished = true;
  for (const auto& path : paths_) finished &= path->stop_driver();
  if (!finished) arena_.leak();
}

IoOperation DiskBenchmark::State::next_operation(const Lane& lane, BenchmarkPattern pattern) const {
  switch (pattern) {
    case BenchmarkPattern::write: return IoOperation::write;
    case BenchmarkPattern::mixed: return lane.posted % 2 == 0 ? IoOperation::read : IoOperation::write;
    case BenchmarkPattern::read:
    case BenchmarkPattern::swap: break;
  }
  return IoOperation::read;
}

void DiskBenchmark::State::post(std::size_t index, std::size_t slot, IoOperation operation) {
  Lane& lane = lanes_[index];
  FileOffset& next = operation == IoOperation::read ? lane.next_read : lane.next_write;
  const FileOffset offset = next;
  next = next + transfer_;
  if (next.value() == lane.size.value()) next = FileOffset(0);
  post_at(index, slot, operation, offset);
}

void DiskBenchmark::State::post_at(std::size_t index, std::size_t slot, IoOperation operation,
                                   FileOffset offset) {
  Lane& lane = lanes_[index];
  lane.read_from[slot] = offset;
  ++lane.posted;
  ++lane.busy;
  paths_[index]->post({.operation = operation, .offset = offset, .buffer = lane.slots[slot], .tag = slot});
}

/// Starts the next transfer of a slot. A transfer that the swap pattern has read is written even after the end of the
/// duration.
Result<void> DiskBenchmark::State::go_on(std::size_t index, const BlockFile::Finished& finished,
                                         BenchmarkPattern pattern, bool more) {
  Lane& lane = lanes_[index];
  const std::size_t slot = finished.tag;
  if (pattern == BenchmarkPattern::swap && finished.operation == IoOperation::read) {
    if (options_.between) PENSTOCK_TRY(options_.between({index, lane.read_from[slot], lane.slots[slot]}));
    post_at(index, slot, IoOperation::write, lane.read_from[slot]);
  } else if (more) {
    post(index, slot, next_operation(lane, pattern));
  }
  return ok();
}

/// Runs until no transfer is in flight. `go_on(lane, finished)` may post the next transfer of a free slot; after an
/// error no transfer is posted.
template <typename GoOn>
Result<void> DiskBenchmark::State::drive(const GoOn& go_on) {
  Result<void> outcome;
  while (std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.busy > 0; })) {
    wait_for_outcomes();
    for (std::size_t index = 0; index < lanes_.size(); ++index) {
      outcomes_.clear();
      paths_[index]->take_outcomes(outcomes_);
      for (const BlockFile::Finished& finished : outcomes_) {
        --lanes_[index].busy;
        if (!outcome) continue;
        outcome = finished.result ? go_on(index, finished) : finished.result;
      }
    }
  }
  return outcome;
}

void DiskBenchmark::State::wait_for_outcomes() {
  TimePoint interval = forever;
  for (const auto& path : paths_) interval = std::min(interval, path->watch_interval());
  std::unique_lock lock(mutex_);
  const auto is_notified = [this] { return notified_; };
  if (interval == forever) {
    arrived_.wait(lock, is_notified);
  } else {
    arrived_.wait_for(lock, interval, is_notified);
  }
  notified_ = false;
}

Result<BenchmarkSample> DiskBenchmark::State::run(BenchmarkPattern pattern, TimePoint duration) {
  const auto now = [] { return Clock::steady().now(); };
  const BenchmarkSample before = counters();

  const TimePoint began = now();
  for (std::size_t index = 0; index < lanes_.size(); ++index) {
    Lane& lane = lanes_[index];
    lane.next_read =
        FileOffset((lane.next_write.value() + (transfer_ * (lane.slots.size() - options_.spare)).value()) %
                   lane.size.value());
    for (std::size_t slot = 0; slot < lane.slots.size(); ++slot)
      post(index, slot, next_operation(lane, pattern));
  }
  PENSTOCK_TRY(drive([&](std::size_t index, const BlockFile::Finished& finished) {
    return go_on(index, finished, pattern, now() - began < duration);
  }));

  BenchmarkSample sample = counters();
  sample.elapsed = now() - began;
  sample.moved -= before.moved;
  sample.process_cpu -= before.process_cpu;
  sample.driver_cpu -= before.driver_cpu;
  for (std::size_t i = 0; i < sample.bytes.size(); ++i) sample.bytes[i] -= before.bytes[i];
  return sample;
}

Result<void> DiskBenchmark::State::prewrite() {
  std::vector<std::uint64_t> left;
  for (const Lane& lane : lanes_) left.push_back(lane.size / transfer_);
  const auto write_next = [&](std::size_t index, std::size_t slot) -> Result<void> {
    if (left[index] == 0) return ok();
    --left[index];
    const Lane& lane = lanes_[index];
    if (options_.initial) PENSTOCK_TRY(options_.initial({index, lane.next_write, lane.slots[slot]}));
    post(index, slot, IoOperation::write);
    return ok();
  };
  for (std::size_t index = 0; index < lanes_.size(); ++index) {
    for (std::size_t slot = 0; slot < lanes_[index].slots.size(); ++slot)
      PENSTOCK_TRY(write_next(index, slot));
  }
  return drive([&](std::size_t index, const BlockFile::Finished& finished) {
    return write_next(index, finished.tag);
  });
}

/// The sum of all counters.
BenchmarkSample DiskBenchmark::State::counters() const {
  BenchmarkSample sample;
  sample.process_cpu = process_cpu_time();
  for (const auto& path : paths_) {
    const tiers::FileCounters moved = path->counters();
    sample.moved += moved;
    sample.bytes.push_back(moved.bytes_read + moved.bytes_written);
    sample.driver_cpu += path->driver_cpu_time();
  }
  return sample;
}

}  // namespace penstock::swap
