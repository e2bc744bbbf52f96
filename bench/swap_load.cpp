#include "swap_load.hpp"

#include <sys/resource.h>
#include <algorithm>

namespace penstock::bench {

using tiers::BlockFile;

namespace {

/// Four more than fill the queue: the driver finds transfers waiting while this thread is not scheduled.
std::size_t slot_count(const SwapLoad::Options& options, ByteCount transfer) {
  return ceil_divide(options.in_flight.value(), transfer.value()) + 4;
}

/// Small requests are posted several at a time, as parts of one transfer, as a tile would be.
ByteCount transfer_size(ByteCount request) {
  return ByteCount(round_up((4_MiB).value(), request.value()));
}

/// User and system time of this process, its kernel workers included.
double process_cpu_seconds() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double to_seconds(TimePoint time) {
  return std::chrono::duration<double>(time).count();
}

/// Bytes that nobody between us and the device can compress or find twice.
void fill_with_noise(HostSpan bytes) {
  std::uint64_t state = 0x9e3779b97f4a7c15u;
  for (std::uint64_t& word : bytes.as<std::uint64_t>()) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    word = state;
  }
}

}  // namespace

const char* fio_word(Operation operation) {
  switch (operation) {
    case Operation::read: return "read";
    case Operation::write: return "write";
    case Operation::mixed: break;
  }
  return "rw";
}

Result<std::unique_ptr<SwapLoad>> SwapLoad::create(const Options& options) {
  const ByteCount transfer = transfer_size(options.request_size);
  auto arena = tiers::HostArena::create(
      {.size = transfer * slot_count(options, transfer) * options.directories.size()});
  if (!arena) return arena.error();
  fill_with_noise(arena->bytes());

  std::vector<std::unique_ptr<swap::Path>> paths;
  for (const auto& directory : options.directories) {
    auto path =
        swap::Path::create({.directory = directory,
                            .capacity = ByteCount(round_up(options.file_size.value(), transfer.value())),
                            .request_max = options.request_size,
                            .in_flight_max = options.in_flight,
                            .engine = options.engine});
    if (!path) return path.error();
    (*path)->attach(arena->bytes());
    paths.push_back(std::move(*path));
  }
  std::unique_ptr<SwapLoad> load(new SwapLoad(options, std::move(*arena), std::move(paths)));
  PENSTOCK_TRY(load->prewrite());
  return load;
}

SwapLoad::SwapLoad(const Options& options, tiers::HostArena arena,
                   std::vector<std::unique_ptr<swap::Path>> paths)
    : transfer_(transfer_size(options.request_size)),
      file_size_(round_up(options.file_size.value(), transfer_.value())),
      arena_(std::move(arena)),
      paths_(std::move(paths)) {
  const std::size_t count = slot_count(options, transfer_);
  ByteCount begin;
  for (const auto& path : paths_) {
    Lane& lane = lanes_.emplace_back();
    for (std::size_t i = 0; i < count; ++i, begin += transfer_) {
      lane.slots.push_back(arena_.bytes().subspan(begin, transfer_));
    }
    lane.next_write = FileOffset(file_size_.value() / 2 / transfer_.value() * transfer_.value());
    path->start_driver([this] {
      const std::lock_guard lock(mutex_);
      notified_ = true;
      arrived_.notify_one();
    });
  }
}

SwapLoad::~SwapLoad() {
  bool at_rest = true;
  for (const auto& path : paths_) at_rest &= path->stop_driver();
  if (!at_rest) arena_.leak();
}

void SwapLoad::post(std::size_t path, std::size_t slot, Operation operation) {
  Lane& lane = lanes_[path];
  const bool read = operation == Operation::mixed ? lane.posted % 2 == 0 : operation == Operation::read;
  FileOffset& next = read ? lane.next_read : lane.next_write;
  paths_[path]->post({.direction = read ? BlockFile::Direction::read : BlockFile::Direction::write,
                      .offset = next,
                      .buffer = lane.slots[slot],
                      .tag = slot});
  next = next + transfer_;
  if (next.value() == file_size_.value()) next = FileOffset(0);
  ++lane.posted;
  ++lane.busy;
}

void SwapLoad::wait_for_outcomes() {
  std::unique_lock lock(mutex_);
  arrived_.wait(lock, [this] { return notified_; });
  notified_ = false;
}

Result<Sample> SwapLoad::run(Operation operation, double seconds) {
  const auto now = [] { return Clock::steady().now(); };
  const double cpu_before = process_cpu_seconds();
  const TimePoint driver_before = driver_cpu_time();
  const std::uint64_t requests_before = request_count();
  std::uint64_t transfers = 0;
  std::optional<Error> failed;

  const TimePoint began = now();
  for (std::size_t path = 0; path < paths_.size(); ++path) {
    for (std::size_t slot = 0; slot < lanes_[path].slots.size(); ++slot) post(path, slot, operation);
  }
  const auto busy = [this] {
    return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.busy > 0; });
  };
  while (busy()) {
    wait_for_outcomes();
    const bool more = !failed && to_seconds(now() - began) < seconds;
    for (std::size_t path = 0; path < paths_.size(); ++path) {
      outcomes_.clear();
      paths_[path]->take_outcomes(outcomes_);
      for (const BlockFile::Finished& outcome : outcomes_) {
        --lanes_[path].busy;
        ++transfers;
        if (!outcome.result && !failed) failed = outcome.result.error();
        if (more) post(path, outcome.tag, operation);
      }
    }
  }
  const double elapsed = to_seconds(now() - began);

  if (failed) return *failed;
  const double gigabytes = static_cast<double>((transfers * transfer_).value()) * 1e-9;
  return Sample{.gb_per_second = gigabytes / elapsed,
                .cpu_s_per_gb = (process_cpu_seconds() - cpu_before) / gigabytes,
                .driver_s_per_gb = to_seconds(driver_cpu_time() - driver_before) / gigabytes,
                .requests = request_count() - requests_before};
}

Result<void> SwapLoad::prewrite() {
  const std::uint64_t count = file_size_ / transfer_;
  for (std::size_t path = 0; path < paths_.size(); ++path) {
    Lane& lane = lanes_[path];
    std::uint64_t written = 0;
    for (std::size_t slot = 0; slot < std::min<std::size_t>(count, lane.slots.size()); ++slot) {
      post(path, slot, Operation::write);
    }
    while (lane.busy > 0) {
      wait_for_outcomes();
      outcomes_.clear();
      paths_[path]->take_outcomes(outcomes_);
      for (const BlockFile::Finished& outcome : outcomes_) {
        --lane.busy;
        ++written;
        if (!outcome.result) return outcome.result.error();
        if (written + lane.busy < count) post(path, outcome.tag, Operation::write);
      }
    }
  }
  return ok();
}

TimePoint SwapLoad::driver_cpu_time() const {
  TimePoint total{};
  for (const auto& path : paths_) total += path->driver_cpu_time();
  return total;
}

std::uint64_t SwapLoad::request_count() const {
  std::uint64_t total = 0;
  for (const auto& path : paths_) total += path->counters().requests;
  return total;
}

}  // namespace penstock::bench
