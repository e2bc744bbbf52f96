#include <penstock/tiers/io/sim_disk.hpp>

#include "tiers/io/file_errors.hpp"
#include "tiers/io/sim_names.hpp"
#include "tiers/io/sim_random.hpp"

#include <penstock/base/check.hpp>

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

namespace penstock::tiers {

SimDisk::SimDisk(const Options& options) : options_(options), names_(std::make_unique<SimNames>()) {}

SimDisk::~SimDisk() = default;

File SimDisk::add_handle(std::shared_ptr<SimFile> file, std::string name, DirectIo direct) {
  const FileHandle handle{next_handle_++};
  open_[handle] = std::move(file);
  return File(*this, {.handle = handle,
                      .name = std::move(name),
                      .direct = direct != DirectIo::off,
                      .alignment = options_.alignment,
                      .direct_note = {},
                      .reserve_note = {}});
}

Result<File> SimDisk::create_scratch(const std::filesystem::path& directory, ByteCount size,
                                     DirectIo direct) {
  if (size > options_.capacity - used_) {
    return reserve_error("FileSystem::create_scratch", directory, size, ENOSPC, free_space(directory));
  }
  return add_handle(std::make_shared<SimFile>(size, /*named=*/false, used_),
                    "simulated file in " + directory.string(), direct);
}

Result<File> SimDisk::create(const std::filesystem::path& path, ByteCount size, DirectIo direct) {
  constexpr const char* operation = "FileSystem::create";
  if (!names_->is_directory(path.parent_path())) return file_error(operation, path.string(), ENOENT);
  if (names_->find(path) || names_->is_directory(path)) return file_error(operation, path.string(), EEXIST);
  if (size > options_.capacity - used_) {
    return reserve_error(operation, path, size, ENOSPC, free_space(path));
  }
  auto file = std::make_shared<SimFile>(size, /*named=*/true, used_);
  names_->add(path, file);
  return add_handle(std::move(file), path.string(), direct);
}

Result<File> SimDisk::open(const std::filesystem::path& path, DirectIo direct) {
  auto file = names_->find(path);
  if (!file)
    return file_error("FileSystem::open", path.string(), names_->is_directory(path) ? EISDIR : ENOENT);
  return add_handle(std::move(file), path.string(), direct);
}

Result<void> SimDisk::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  int error = 0;
  if (!names_->find(from) || !names_->is_directory(to.parent_path())) error = ENOENT;
  if (error == 0 && names_->is_directory(to)) error = EISDIR;
  if (error != 0) return file_error("FileSystem::rename", renamed(from, to), error);
  names_->rename(from, to);
  return ok();
}

Result<void> SimDisk::remove(const std::filesystem::path& path) {
  if (!names_->find(path)) {
    return file_error("FileSystem::remove", path.string(), names_->is_directory(path) ? EISDIR : ENOENT);
  }
  names_->remove(path);
  return ok();
}

Result<std::vector<std::string>> SimDisk::list(const std::filesystem::path& directory) {
  if (!names_->is_directory(directory)) return file_error("FileSystem::list", directory.string(), ENOENT);
  return names_->list(directory);
}

Result<void> SimDisk::sync_directory(const std::filesystem::path& directory) {
  if (!names_->is_directory(directory)) {
    return file_error("FileSystem::sync_directory", directory.string(), ENOENT);
  }
  names_->sync(directory);
  return ok();
}

Result<DirectoryLock> SimDisk::lock(const std::filesystem::path& directory) {
  const std::filesystem::path path = SimNames::normal(directory / DirectoryLock::file_name);
  if (!names_->is_directory(directory)) return file_error("FileSystem::lock", path.string(), ENOENT);
  const bool held =
      std::any_of(locks_.begin(), locks_.end(), [&](const auto& lock) { return lock.second == path; });
  if (held) return locked_error(directory, ::getpid());
  auto file = names_->find(path);
  if (!file) names_->add(path, file = std::make_shared<SimFile>(0_B, /*named=*/true, used_));
  File lock_file = add_handle(std::move(file), path.string(), DirectIo::off);
  locks_[lock_file.handle()] = path;
  return DirectoryLock(std::move(lock_file));
}

Result<ByteCount> SimDisk::free_space(const std::filesystem::path&) {
  return options_.capacity - used_;
}

void SimDisk::make_directory(const std::filesystem::path& directory) {
  names_->make_directory(directory);
}

void SimDisk::power_cut(std::uint64_t seed) {
  for (SimEngine* engine : engines_) engine->lose_power(seed);
  names_->lose_power(seed);
  open_.clear();
  locks_.clear();
  first_handle_ = next_handle_;
}

HostSpan SimDisk::bytes(FileHandle file) {
  return HostSpan(std::span(open_.at(file)->bytes()));
}

SimFile* SimDisk::find(FileHandle handle) const noexcept {
  const auto found = open_.find(handle);
  return found == open_.end() ? nullptr : found->second.get();
}

void SimDisk::close(FileHandle handle) noexcept {
  locks_.erase(handle);
  PENSTOCK_CHECK(open_.erase(handle) == 1 || static_cast<int>(handle) < first_handle_);
}

Result<ByteCount> SimDisk::size(const File::Properties& file) {
  const SimFile* const found = find(file.handle);
  if (found == nullptr) return file_error("File::size", file.name, EBADF);
  return found->size();
}

Result<void> SimDisk::extend(const File::Properties& file, ByteCount size) {
  SimFile* const found = find(file.handle);
  if (found == nullptr) return extend_error(file.name, size, EBADF);
  if (size > found->size()) found->grow(size);
  return ok();
}

bool SimDisk::misaligned(FileOffset offset, ConstHostSpan buffer) const noexcept {
  const Alignment alignment = options_.alignment;
  return !is_aligned(buffer.data(), alignment) || !is_aligned(buffer.size(), alignment) ||
         !is_aligned(offset, alignment);
}

Result<void> SimDisk::read(const File::Properties& file, FileOffset offset, HostSpan into) {
  const std::int64_t moved =
      file.direct && misaligned(offset, into) ? -EINVAL : read_at(file.handle, offset, into);
  if (moved < 0)
    return transfer_error("File::read", file.name, offset, into.size(), static_cast<int>(-moved));
  const ByteCount got(static_cast<std::uint64_t>(moved));
  if (got < into.size()) return file_too_short(file.name, offset, into.size(), got);
  return ok();
}

Result<void> SimDisk::write(const File::Properties& file, FileOffset offset, ConstHostSpan bytes) {
  const std::int64_t moved =
      file.direct && misaligned(offset, bytes) ? -EINVAL : write_at(file.handle, offset, bytes);
  if (moved >= 0) return ok();
  return transfer_error("File::write", file.name, offset, bytes.size(), static_cast<int>(-moved));
}

Result<void> SimDisk::sync(const File::Properties& file) {
  SimFile* const found = find(file.handle);
  if (found == nullptr) return sync_error("File::sync", file.name, EBADF);
  found->make_durable(found->change_count());
  return ok();
}

std::int64_t SimDisk::read_at(FileHandle handle, FileOffset offset, HostSpan into) noexcept {
  SimFile* const file = find(handle);
  if (file == nullptr) return -EBADF;
  if (offset.value() >= file->size().value()) return 0;
  const std::uint64_t length = std::min(into.size().value(), file->size().value() - offset.value());
  std::memcpy(into.data(), file->bytes().data() + offset.value(), length);
  return static_cast<std::int64_t>(length);
}

std::int64_t SimDisk::write_at(FileHandle handle, FileOffset offset, ConstHostSpan bytes) noexcept {
  SimFile* const file = find(handle);
  if (file == nullptr) return -EBADF;
  if (bytes.empty()) return 0;
  if (file->missing(ByteCount(offset.value()) + bytes.size()) > options_.capacity - used_) return -ENOSPC;
  file->write(offset, bytes);
  return static_cast<std::int64_t>(bytes.size().value());
}

SimEngine::SimEngine(SimDisk& disk, const SimClock& clock, std::uint64_t seed, std::uint32_t depth)
    : disk_(disk), clock_(clock), random_(seed), depth_(depth) {
  disk_.engines_.push_back(this);
}

SimEngine::~SimEngine() {
  (void)SimEngine::close(forever);
  std::erase(disk_.engines_, this);
}

std::size_t SimEngine::submit(std::span<const IoRequest> requests) noexcept {
  if (closed_) return 0;
  const std::size_t accepted = std::min<std::size_t>(requests.size(), depth_ - in_flight());
  for (const IoRequest& request : requests.first(accepted)) {
    if (request.operation == IoOperation::read) {
      for (ByteCount at; at < request.buffer.size(); at += 1_B) {
        request.buffer.data()[at.value()] = std::byte(splitmix64_next(random_));
      }
    }
    const SimDisk::Options& disk = disk_.options();
    const TimePoint transfer(static_cast<TimePoint::rep>(request.buffer.size().value() * 1'000'000'000.0 /
                                                         static_cast<double>(disk.bytes_per_second)));
    device_free_ = std::max(device_free_, clock_.now()) + transfer;
    const TimePoint jitter(static_cast<TimePoint::rep>(
        splitmix64_next(random_) % static_cast<std::uint64_t>(2 * disk.latency.count() + 1)));
    const SimFile* const file = disk_.find(request.file);
    pending_.push_back({request, device_free_ + jitter, file != nullptr ? file->change_count() : 0});
  }
  return accepted;
}

std::int64_t SimEngine::perform(const Pending& pending) noexcept {
  const IoRequest& request = pending.request;
  SimFile* const file = disk_.find(request.file);
  if (file == nullptr) return -EBADF;
  if (request.operation == IoOperation::flush) {
    file->make_durable(pending.changes);
    return ++disk_.flush_count_, 0;
  }
  if (disk_.misaligned(request.offset, request.buffer)) return -EINVAL;
  const HostSpan bytes = request.buffer.subspan(0_B, std::min(request.buffer.size(), request_max));
  return request.operation == IoOperation::read ? disk_.read_at(request.file, request.offset, bytes)
                                                : disk_.write_at(request.file, request.offset, bytes);
}

std::size_t SimEngine::reap(std::span<IoCompletion> completions, TimePoint) noexcept {
  for (auto at = pending_.begin(); at != pending_.end();) {
    if (at->due > clock_.now()) {
      ++at;
      continue;
    }
    done_.push_back({at->request.tag, perform(*at)});
    at = pending_.erase(at);
  }
  const std::size_t count = std::min(completions.size(), done_.size());
  for (std::size_t i = 0; i < count; ++i) {
    std::swap(done_[splitmix64_next(random_) % done_.size()], done_.back());
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

/// A write in flight may have reached the disk, like one that has completed and was not flushed.
void SimEngine::lose_power(std::uint64_t& random) noexcept {
  for (const Pending& pending : pending_) {
    const bool reached = splitmix64_next(random) % 2 == 0;
    if (pending.request.operation == IoOperation::write && reached) (void)perform(pending);
  }
}

TimePoint SimEngine::next_due() const noexcept {
  if (!done_.empty()) return clock_.now();
  TimePoint due = forever;
  for (const Pending& pending : pending_) due = std::min(due, pending.due);
  return due;
}

}  // namespace penstock::tiers
