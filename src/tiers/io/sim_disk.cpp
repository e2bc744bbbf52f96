#include <penstock/tiers/io/sim_disk.hpp>

#include "base/splitmix64.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace penstock::tiers {

Result<File> SimDisk::create_scratch(const std::filesystem::path& directory, ByteCount size,
                                     DirectIo direct) {
  if (size > options_.capacity - used_) return refused(directory, size, ENOSPC, free_space(directory));
  const FileHandle handle{next_handle_++};
  files_[handle] = {.bytes = std::vector<std::byte>(size.value()), .reserved = size};
  used_ += size;
  return File(*this, {.handle = handle,
                      .name = "simulated file in " + directory.string(),
                      .direct = direct != DirectIo::off,
                      .alignment = options_.alignment,
                      .direct_note = {},
                      .reserve_note = {}});
}

Result<ByteCount> SimDisk::free_space(const std::filesystem::path&) {
  return options_.capacity - used_;
}

HostSpan SimDisk::bytes(FileHandle file) {
  return HostSpan(std::span(files_.at(file).bytes));
}

void SimDisk::close(FileHandle handle) noexcept {
  const auto found = files_.find(handle);
  PENSTOCK_CHECK(found != files_.end());
  used_ -= found->second.reserved;
  files_.erase(found);
}

Result<void> SimDisk::extend(const File::Properties& file, ByteCount size) {
  files_.at(file.handle).bytes.resize(size.value());
  return ok();
}

std::uint64_t SimEngine::random() noexcept {
  return splitmix64_next(random_);
}

std::size_t SimEngine::submit(std::span<const IoRequest> requests) noexcept {
  if (closed_) return 0;
  const std::size_t accepted = std::min<std::size_t>(requests.size(), depth_ - in_flight());
  for (const IoRequest& request : requests.first(accepted)) {
    if (request.operation == IoOperation::read) {
      for (ByteCount at; at < request.buffer.size(); at += 1_B) {
        request.buffer.data()[at.value()] = std::byte(random());
      }
    }
    const SimDisk::Options& disk = disk_.options();
    const TimePoint transfer(static_cast<TimePoint::rep>(request.buffer.size().value() * 1'000'000'000.0 /
                                                         static_cast<double>(disk.bytes_per_second)));
    device_free_ = std::max(device_free_, clock_.now()) + transfer;
    const TimePoint jitter(
        static_cast<TimePoint::rep>(random() % static_cast<std::uint64_t>(2 * disk.latency.count() + 1)));
    pending_.push_back({request, device_free_ + jitter});
  }
  return accepted;
}

std::int64_t SimEngine::perform(const IoRequest& request) noexcept {
  if (request.operation == IoOperation::flush) return 0;
  const auto found = disk_.files_.find(request.file);
  if (found == disk_.files_.end()) return -EBADF;
  SimDisk::OpenFile& open = found->second;
  std::vector<std::byte>& file = open.bytes;

  const Alignment alignment = disk_.options().alignment;
  if (!is_aligned(request.buffer.data(), alignment) || !is_aligned(request.buffer.size(), alignment) ||
      !is_aligned(request.offset, alignment)) {
    return -EINVAL;
  }
  if (request.offset.value() >= file.size()) return request.operation == IoOperation::read ? 0 : -ENOSPC;
  const std::uint64_t length = std::min<std::uint64_t>(
      {request.buffer.size().value(), request_max.value(), file.size() - request.offset.value()});
  std::byte* at = file.data() + request.offset.value();
  const ByteCount end(request.offset.value() + length);
  if (request.operation == IoOperation::write && end > open.reserved) {
    if (end - open.reserved > disk_.options_.capacity - disk_.used_) return -ENOSPC;
    disk_.used_ += end - open.reserved;
    open.reserved = end;
  }
  if (request.operation == IoOperation::read) {
    std::memcpy(request.buffer.data(), at, length);
  } else {
    std::memcpy(at, request.buffer.data(), length);
  }
  return static_cast<std::int64_t>(length);
}

std::size_t SimEngine::reap(std::span<IoCompletion> completions, TimePoint) noexcept {
  for (auto at = pending_.begin(); at != pending_.end();) {
    if (at->due > clock_.now()) {
      ++at;
      continue;
    }
    done_.push_back({at->request.tag, perform(at->request)});
    at = pending_.erase(at);
  }
  const std::size_t count = std::min(completions.size(), done_.size());
  for (std::size_t i = 0; i < count; ++i) {
    std::swap(done_[random() % done_.size()], done_.back());
    completions[i] = done_.back();
    done_.pop_back();
  }
  return count;
}

bool SimEngine::close(TimePoint) noexcept {
  closed_ = true;
  for (const Pending& pending : pending_) done_.push_back({pending.request.tag, -ECANCELED});
  pending_.clear();
  return true;
}

TimePoint SimEngine::next_due() const noexcept {
  if (!done_.empty()) return clock_.now();
  TimePoint due = forever;
  for (const Pending& pending : pending_) due = std::min(due, pending.due);
  return due;
}

}  // namespace penstock::tiers
