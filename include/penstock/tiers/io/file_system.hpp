#pragma once

#include <penstock/base/result.hpp>
#include <penstock/tiers/io/io_engine.hpp>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace penstock::tiers {

/// Whether the page cache may stand between us and the device.
enum class DirectIo : std::uint8_t {
  preferred,  ///< buffered where the file system has no direct I/O, and said so
  required,   ///< an error where the file system has no direct I/O
  off,        ///< buffered
};

class FileSystem;

/// An open file and what opening it found out. Owned by the caller that opened it; closes itself. The file system outlives it.
///
/// Its members block, and belong to one thread at a time. They take whole buffers: short transfers and interrupted
/// calls are continued. On a direct file address, length and offset are multiples of properties().alignment.
class File {
 public:
  struct Properties {
    FileHandle handle = FileHandle::none;
    std::string name;          ///< for messages: the path, or "scratch file in DIR"
    bool direct = false;       ///< the page cache is bypassed
    Alignment alignment;       ///< of memory, offset and length, for direct I/O
    std::string direct_note;   ///< why it is not direct, when that was preferred
    std::string reserve_note;  ///< why its bytes are not reserved; empty when they are
  };

  File() = default;
  File(FileSystem& file_system, Properties properties)
      : file_system_(&file_system), properties_(std::move(properties)) {}
  File(File&& other) noexcept { swap(other); }
  File& operator=(File&& other) noexcept {
    swap(other);
    return *this;
  }
  ~File();

  [[nodiscard]] FileHandle handle() const { return properties_.handle; }
  [[nodiscard]] const Properties& properties() const { return properties_; }

  /// Its length now.
  [[nodiscard]] Result<ByteCount> size() const;
  /// Makes it `size` bytes long; one that is longer already stays. What is added is not reserved: writing there may
  /// find the disk full.
  ///
  /// Errors: no_space, when no file may be that long; those of the file system.
  Result<void> extend(ByteCount size);
  /// Fills `into` with the bytes from `offset`.
  ///
  /// Errors: truncated (wanted, got), when the file ends before; invalid_argument, for a misaligned transfer of a
  /// direct file; io.
  [[nodiscard]] Result<void> read(FileOffset offset, HostSpan into) const;
  /// Writes all of `bytes` at `offset`; the file grows where that is beyond its end. After an error, any part of them
  /// may have been written. Nothing is durable before sync().
  ///
  /// Errors: no_space; invalid_argument, for a misaligned transfer of a direct file; io.
  [[nodiscard]] Result<void> write(FileOffset offset, ConstHostSpan bytes);
  /// Makes durable what was written and the file's length. Not its name: that is sync_directory's.
  ///
  /// After an error every write since the last sync may be lost, and the kernel will not say so again: a later sync
  /// that succeeds proves nothing. Write another file.
  [[nodiscard]] Result<void> sync();

 private:
  void swap(File& other) noexcept {
    std::swap(file_system_, other.file_system_);
    std::swap(properties_, other.properties_);
  }
  FileSystem* file_system_ = nullptr;
  Properties properties_;
};

/// The exclusive right to a directory, from FileSystem::lock() until this goes or the process ends.
class DirectoryLock {
 public:
  /// The file in the directory that is locked. It stays when the lock goes: removing it would let two processes hold
  /// locks on two files of that name.
  static constexpr const char* file_name = "penstock.lock";

  DirectoryLock() = default;
  /// `lock_file` is locked, and unlocked when it is closed.
  explicit DirectoryLock(File lock_file) : lock_file_(std::move(lock_file)) {}

 private:
  File lock_file_;
};

/// The operating system's file operations that the library uses, so that a test can stand between any two.
///
/// To replace a file so that a power cut leaves the old or the new one: create() under another name, write(),
/// File::sync(), rename() over the old name, sync_directory().
///
/// Safe from any thread. Every call may block. A call that fails has changed nothing, unless it says otherwise.
class FileSystem {
 public:
  FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;
  virtual ~FileSystem() = default;

  /// Opens a file in `directory` that has no name, so that the kernel removes it whatever kills the process
  /// (O_TMPFILE, else unlinked right after it was made), readable by its owner alone, with all of `size`
  /// reserved, or free where the file system cannot reserve. The alignment is the file system's own answer,
  /// checked by a read.
  ///
  /// Errors: not_found and permission, of the directory; no_space (wanted, free); unsupported, when
  /// DirectIo::required meets a file system that has none.
  virtual Result<File> create_scratch(const std::filesystem::path& directory, ByteCount size,
                                      DirectIo direct) = 0;

  /// Makes the file `path`, readable by its owner alone, `size` bytes long and reserved as by create_scratch().
  /// Follows no link and opens nothing that exists.
  ///
  /// Errors: already_exists, also for a link; those of create_scratch.
  virtual Result<File> create(const std::filesystem::path& path, ByteCount size, DirectIo direct) = 0;

  /// Opens the file `path` for reading and writing, whatever its length. Reserves nothing.
  ///
  /// Errors: not_found; permission; invalid_argument, for a link, a directory or whatever else is no regular
  /// file; unsupported, when DirectIo::required meets a file system that has none.
  virtual Result<File> open(const std::filesystem::path& path, DirectIo direct) = 0;

  /// Gives the file `from` the name `to`, in one step: opening `to` finds the file that had that name before,
  /// or this one. Durable once the directories of both are synced.
  ///
  /// Errors: not_found, also for a directory that does not exist; permission; invalid_argument, when `to` is a
  /// directory or on another file system.
  virtual Result<void> rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;

  /// Removes the name of a file. Its bytes stay until it is not open any more. Durable once its directory is
  /// synced.
  ///
  /// Errors: not_found; permission; invalid_argument, for a directory.
  virtual Result<void> remove(const std::filesystem::path& path) = 0;

  /// The names in `directory`, in ascending order of their bytes.
  ///
  /// Errors: not_found; permission.
  virtual Result<std::vector<std::string>> list(const std::filesystem::path& directory) = 0;

  /// Makes durable which names `directory` holds: every create(), rename() and remove() there that has returned.
  ///
  /// Errors: not_found; permission; io, after which any of these may be lost.
  virtual Result<void> sync_directory(const std::filesystem::path& directory) = 0;

  /// Takes `directory` for this owner alone, without waiting. Excludes other processes of this machine, and other
  /// owners in this one. The kernel frees it when the process ends, however that happens; a child that was forked
  /// without exec, and outlives its parent, keeps it.
  ///
  /// Errors: in_use, naming the holder where it is known; not_found and permission, of the directory; no_space, for
  /// the lock file; invalid_argument, where a link has its name.
  virtual Result<DirectoryLock> lock(const std::filesystem::path& directory) = 0;

  /// Bytes that an unprivileged process can still write under `directory`; the length of the longest file where
  /// there is no limit.
  virtual Result<ByteCount> free_space(const std::filesystem::path& directory) = 0;

  /// "ext4", "tmpfs", …, or the file system's magic number in hexadecimal.
  virtual std::string type_name(const std::filesystem::path& directory) = 0;

 private:
  friend class File;
  // What the members of a File do; each error names the file.
  virtual void close(FileHandle handle) noexcept = 0;
  virtual Result<ByteCount> size(const File::Properties& file) = 0;
  virtual Result<void> extend(const File::Properties& file, ByteCount size) = 0;
  virtual Result<void> read(const File::Properties& file, FileOffset offset, HostSpan into) = 0;
  virtual Result<void> write(const File::Properties& file, FileOffset offset, ConstHostSpan bytes) = 0;
  virtual Result<void> sync(const File::Properties& file) = 0;
};

/// The machine's own file systems. One instance, stateless.
[[nodiscard]] FileSystem& real_file_system();

}  // namespace penstock::tiers
