#include "tiers/io/sim_disk_state.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace penstock::tiers {

std::shared_ptr<SimFile> SimDiskState::make_file(ByteCount size, bool named) {
  if (size > options.capacity - used) return nullptr;
  std::shared_ptr<SimFile> file;
  if (!got_memory([&] { file = std::make_shared<SimFile>(size, named, used); })) return nullptr;
  return file;
}

File SimDiskState::open_file(FileSystem& file_system, std::shared_ptr<SimFile> file, std::string name,
                             DirectIo direct) {
  const FileHandle handle{next_handle++};
  open[handle] = std::move(file);
  return File(file_system, {.handle = handle,
                            .name = std::move(name),
                            .direct = direct != DirectIo::off,
                            .alignment = options.alignment,
                            .direct_note = {},
                            .reserve_note = {}});
}

SimFile* SimDiskState::find(FileHandle handle) const noexcept {
  const auto found = open.find(handle);
  return found == open.end() ? nullptr : found->second.get();
}

bool SimDiskState::misaligned(FileOffset offset, ConstHostSpan buffer) const noexcept {
  const Alignment alignment = options.alignment;
  return !is_aligned(buffer.data(), alignment) || !is_aligned(buffer.size(), alignment) ||
         !is_aligned(offset, alignment);
}

std::int64_t SimDiskState::read_at(FileHandle handle, FileOffset offset, HostSpan into) const noexcept {
  SimFile* const file = find(handle);
  if (file == nullptr) return -EBADF;
  if (offset.value() >= file->size().value() || into.empty()) return 0;
  if (into.data() == nullptr) return -EFAULT;
  const std::uint64_t length = std::min(into.size().value(), file->size().value() - offset.value());
  std::memcpy(into.data(), file->bytes().data() + offset.value(), length);
  return static_cast<std::int64_t>(length);
}

std::int64_t SimDiskState::write_at(FileHandle handle, FileOffset offset, ConstHostSpan bytes) noexcept {
  SimFile* const file = find(handle);
  if (file == nullptr) return -EBADF;
  if (bytes.empty()) return 0;
  if (bytes.data() == nullptr) return -EFAULT;
  if (offset.value() + bytes.size().value() < offset.value()) return -EFBIG;
  if (file->missing(ByteCount(offset.value()) + bytes.size()) > options.capacity - used) return -ENOSPC;
  if (!got_memory([&] { file->write(offset, bytes); })) return -ENOSPC;
  return static_cast<std::int64_t>(bytes.size().value());
}

bool SimDiskState::change() noexcept {
  if (has_power && change_count == power_ends_at) {
    has_power = false;
    loses_power ? cut_power(power_seed) : end_process(power_seed);
  }
  if (has_power) ++change_count;
  return has_power;
}

int SimDiskState::sync(SimFile& file, std::uint64_t changes) noexcept {
  if (next_sync_fails()) {
    file.lose_some(changes, sync_random);
    return EIO;
  }
  file.make_durable(changes);
  return 0;
}

}  // namespace penstock::tiers
