#include <penstock/tiers/io/sim_disk.hpp>

#include "tiers/io/file_errors.hpp"
#include "tiers/io/sim_disk_state.hpp"

#include <unistd.h>
#include <algorithm>
#include <cerrno>

namespace penstock::tiers {

namespace {

/// Every disk has a speed, and no request takes longer than a TimePoint can say.
SimDisk::Options usable(SimDisk::Options options) {
  options.bytes_per_second = std::max<std::uint64_t>(options.bytes_per_second, 1);
  options.latency = std::clamp<TimePoint>(options.latency, TimePoint::zero(), std::chrono::hours(1));
  return options;
}

}  // namespace

SimDisk::SimDisk(const Options& options) : state_(std::make_unique<SimDiskState>(usable(options))) {}

SimDisk::~SimDisk() = default;

const SimDisk::Options& SimDisk::options() const {
  return state_->options;
}

std::size_t SimDisk::open_file_count() const {
  return state_->open.size();
}

std::uint64_t SimDisk::flush_count() const {
  return state_->flush_count;
}

Result<File> SimDisk::create_scratch(const std::filesystem::path& directory, ByteCount size,
                                     DirectIo direct) {
  if (!state_->change()) return file_error("FileSystem::create_scratch", directory.string(), EIO);
  auto file = state_->make_file(size, /*named=*/false);
  if (file == nullptr) {
    return reserve_error("FileSystem::create_scratch", directory, size, ENOSPC, free_space(directory));
  }
  return state_->open_file(*this, std::move(file), "simulated file in " + directory.string(), direct);
}

Result<File> SimDisk::create(const std::filesystem::path& path, ByteCount size, DirectIo direct) {
  constexpr const char* operation = "FileSystem::create";
  if (!state_->change()) return file_error(operation, path.string(), EIO);
  if (!state_->names.is_directory(path.parent_path())) return file_error(operation, path.string(), ENOENT);
  if (state_->names.find(path) || state_->names.is_directory(path))
    return file_error(operation, path.string(), EEXIST);
  auto file = state_->make_file(size, /*named=*/true);
  if (file == nullptr) return reserve_error(operation, path, size, ENOSPC, free_space(path));
  state_->names.add(path, file);
  return state_->open_file(*this, std::move(file), path.string(), direct);
}

Result<File> SimDisk::open(const std::filesystem::path& path, DirectIo direct) {
  if (!state_->has_power) return file_error("FileSystem::open", path.string(), EIO);
  auto file = state_->names.find(path);
  if (!file)
    return file_error("FileSystem::open", path.string(), state_->names.is_directory(path) ? EISDIR : ENOENT);
  return state_->open_file(*this, std::move(file), path.string(), direct);
}

Result<void> SimDisk::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (!state_->change()) return file_error("FileSystem::rename", renamed(from, to), EIO);
  int error = 0;
  if (!state_->names.find(from) || !state_->names.is_directory(to.parent_path())) error = ENOENT;
  if (error == 0 && state_->names.is_directory(to)) error = EISDIR;
  if (error != 0) return file_error("FileSystem::rename", renamed(from, to), error);
  state_->names.rename(from, to);
  return ok();
}

Result<void> SimDisk::remove(const std::filesystem::path& path) {
  if (!state_->change()) return file_error("FileSystem::remove", path.string(), EIO);
  if (!state_->names.find(path)) {
    return file_error("FileSystem::remove", path.string(),
                      state_->names.is_directory(path) ? EISDIR : ENOENT);
  }
  state_->names.remove(path);
  return ok();
}

Result<void> SimDisk::create_directory(const std::filesystem::path& path) {
  constexpr const char* operation = "FileSystem::create_directory";
  if (!state_->change()) return file_error(operation, path.string(), EIO);
  if (!state_->names.is_directory(path.parent_path())) return file_error(operation, path.string(), ENOENT);
  if (state_->names.find(path) || state_->names.is_directory(path))
    return file_error(operation, path.string(), EEXIST);
  state_->names.create_directory(path);
  return ok();
}

Result<void> SimDisk::remove_directory(const std::filesystem::path& path) {
  constexpr const char* operation = "FileSystem::remove_directory";
  if (!state_->change()) return file_error(operation, path.string(), EIO);
  if (!state_->names.is_directory(path))
    return file_error(operation, path.string(), state_->names.find(path) ? ENOTDIR : ENOENT);
  if (!state_->names.list(path).empty()) return file_error(operation, path.string(), ENOTEMPTY);
  state_->names.remove_directory(path);
  return ok();
}

Result<std::vector<std::string>> SimDisk::list(const std::filesystem::path& directory) {
  if (!state_->has_power) return file_error("FileSystem::list", directory.string(), EIO);
  if (!state_->names.is_directory(directory))
    return file_error("FileSystem::list", directory.string(), ENOENT);
  return state_->names.list(directory);
}

Result<void> SimDisk::sync_directory(const std::filesystem::path& directory) {
  if (!state_->change()) return sync_error("FileSystem::sync_directory", directory.string(), EIO);
  if (!state_->names.is_directory(directory)) {
    return file_error("FileSystem::sync_directory", directory.string(), ENOENT);
  }
  if (state_->next_sync_fails()) {
    state_->names.lose_some(directory, state_->sync_random);
    return sync_error("FileSystem::sync_directory", directory.string(), EIO);
  }
  state_->names.sync(directory);
  return ok();
}

Result<DirectoryLock> SimDisk::lock(const std::filesystem::path& directory) {
  const std::filesystem::path path = SimNames::normal(directory / DirectoryLock::file_name);
  if (!state_->change()) return file_error("FileSystem::lock", path.string(), EIO);
  if (!state_->names.is_directory(directory)) return file_error("FileSystem::lock", path.string(), ENOENT);
  const bool held = std::any_of(state_->locks.begin(), state_->locks.end(),
                                [&](const auto& lock) { return lock.second == path; });
  if (held) return locked_error(directory, ::getpid());
  auto file = state_->names.find(path);
  if (!file) state_->names.add(path, file = std::make_shared<SimFile>(0_B, /*named=*/true, state_->used));
  File lock_file = state_->open_file(*this, std::move(file), path.string(), DirectIo::off);
  state_->locks[lock_file.handle()] = path;
  return DirectoryLock(std::move(lock_file));
}

Result<bool> SimDisk::is_named(FileHandle file, const std::filesystem::path& path) {
  const SimFile* const open = state_->find(file);
  if (open == nullptr) return file_error("FileSystem::is_named", path.string(), EBADF);
  return state_->names.find(path).get() == open;
}

Result<ByteCount> SimDisk::free_space(const std::filesystem::path&) {
  return state_->options.capacity - state_->used;
}

void SimDisk::make_directory(const std::filesystem::path& directory) {
  state_->names.make_directory(directory);
}

void SimDisk::fail_syncs(std::uint64_t count, std::uint64_t seed) {
  state_->syncs_to_fail = count;
  state_->sync_random = seed;
}

void SimDiskState::cut_power(std::uint64_t seed) {
  end_process(seed);
  names.lose_power(seed);
}

void SimDiskState::end_process(std::uint64_t seed) {
  for (SimEngine* engine : engines) engine->lose_power(seed);
  open.clear();
  locks.clear();
}

void SimDisk::power_cut(std::uint64_t seed) {
  state_->cut_power(seed);
}

void SimDisk::power_cut_after(std::uint64_t count, std::uint64_t seed) {
  state_->power_ends_at = state_->change_count + count;
  state_->power_seed = seed;
  state_->loses_power = true;
}

void SimDisk::kill_after(std::uint64_t count, std::uint64_t seed) {
  power_cut_after(count, seed);
  state_->loses_power = false;
}

void SimDisk::power_on() {
  state_->has_power = true;
  state_->power_ends_at = ~std::uint64_t{0};
}

bool SimDisk::has_power() const {
  return state_->has_power;
}

std::uint64_t SimDisk::change_count() const {
  return state_->change_count;
}

HostSpan SimDisk::bytes(FileHandle file) {
  SimFile* const found = state_->find(file);
  return found != nullptr ? HostSpan(std::span(found->bytes())) : HostSpan();
}

void SimDisk::close(FileHandle handle) noexcept {
  state_->locks.erase(handle);
  state_->open.erase(handle);
}

Result<ByteCount> SimDisk::size(const File::Properties& file) {
  const SimFile* const found = state_->find(file.handle);
  if (found == nullptr) return file_error("File::size", file.name, EBADF);
  return found->size();
}

Result<void> SimDisk::extend(const File::Properties& file, ByteCount size) {
  if (!state_->change()) return extend_error(file.name, size, EIO);
  SimFile* const found = state_->find(file.handle);
  if (found == nullptr) return extend_error(file.name, size, EBADF);
  if (size > found->size() && !got_memory([&] { found->grow(size); }))
    return extend_error(file.name, size, EFBIG);
  return ok();
}

Result<void> SimDisk::read(const File::Properties& file, FileOffset offset, HostSpan into) {
  if (!state_->has_power) return transfer_error("File::read", file.name, offset, into.size(), EIO);
  const std::int64_t moved =
      file.direct && state_->misaligned(offset, into) ? -EINVAL : state_->read_at(file.handle, offset, into);
  if (moved < 0)
    return transfer_error("File::read", file.name, offset, into.size(), static_cast<int>(-moved));
  const ByteCount got(static_cast<std::uint64_t>(moved));
  if (got < into.size()) return file_too_short(file.name, offset, into.size(), got);
  return ok();
}

Result<void> SimDisk::write(const File::Properties& file, FileOffset offset, ConstHostSpan bytes) {
  if (!state_->change()) return transfer_error("File::write", file.name, offset, bytes.size(), EIO);
  const std::int64_t moved = file.direct && state_->misaligned(offset, bytes)
                                 ? -EINVAL
                                 : state_->write_at(file.handle, offset, bytes);
  if (moved >= 0) return ok();
  return transfer_error("File::write", file.name, offset, bytes.size(), static_cast<int>(-moved));
}

Result<void> SimDisk::sync(const File::Properties& file) {
  if (!state_->change()) return sync_error("File::sync", file.name, EIO);
  SimFile* const found = state_->find(file.handle);
  const int error = found != nullptr ? state_->sync(*found, found->change_count()) : EBADF;
  if (error != 0) return sync_error("File::sync", file.name, error);
  return ok();
}

}  // namespace penstock::tiers
