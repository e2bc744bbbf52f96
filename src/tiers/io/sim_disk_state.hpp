#pragma once

#include "tiers/io/sim_names.hpp"

#include <penstock/tiers/io/sim_disk.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace penstock::tiers {

/// Runs `grow`, which makes a file longer. False if there is no memory for it.
template <class Grow>
[[nodiscard]] bool got_memory(const Grow& grow) {
  try {
    grow();
    return true;
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
  return false;
}

/// The files of a simulated disk, shared by its file system and its engines.
struct SimDiskState {
  explicit SimDiskState(const SimDisk::Options& disk_options) : options(disk_options) {}

  /// A file with `size` reserved bytes; null, if the disk or the memory has no room for them.
  [[nodiscard]] std::shared_ptr<SimFile> make_file(ByteCount size, bool named);
  /// Gives `file` a new handle, through which `file_system` serves it.
  [[nodiscard]] File open_file(FileSystem& file_system, std::shared_ptr<SimFile> file, std::string name,
                               DirectIo direct);
  /// Null for a handle that is closed, or that was open at the last power cut.
  [[nodiscard]] SimFile* find(FileHandle handle) const noexcept;
  [[nodiscard]] bool misaligned(FileOffset offset, ConstHostSpan buffer) const noexcept;
  // As the kernel answers: bytes moved, or a negative errno.
  [[nodiscard]] std::int64_t read_at(FileHandle handle, FileOffset offset, HostSpan into) const noexcept;
  [[nodiscard]] std::int64_t write_at(FileHandle handle, FileOffset offset, ConstHostSpan bytes) noexcept;

  /// Counts an operation that changes the disk. False without power.
  [[nodiscard]] bool change() noexcept;
  void cut_power(std::uint64_t seed);
  void end_process(std::uint64_t seed);

  /// Whether this sync fails, and counts it.
  [[nodiscard]] bool next_sync_fails() noexcept { return syncs_to_fail > 0 && syncs_to_fail-- > 0; }
  /// Makes the first `changes` of `file` durable. 0, or the errno of a sync that fails.
  [[nodiscard]] int sync(SimFile& file, std::uint64_t changes) noexcept;

  const SimDisk::Options options;
  ByteCount used;  // files add their reserved bytes, so that it outlives them
  std::uint64_t flush_count = 0, change_count = 0;
  std::uint64_t power_ends_at = ~std::uint64_t{0};  // a change_count
  std::uint64_t power_seed = 0;                     // of the cut then
  bool loses_power = true;                          // else only the process ends then
  bool has_power = true;
  std::uint64_t syncs_to_fail = 0;
  std::uint64_t sync_random = 0;  // chooses what they lose
  SimNames names;
  int next_handle = 1000;  // far from real descriptors, so that a mix-up fails
  std::map<FileHandle, std::shared_ptr<SimFile>> open;
  std::map<FileHandle, std::filesystem::path> locks;
  std::vector<SimEngine*> engines;
};

}  // namespace penstock::tiers
