#pragma once

#include <penstock/base/result.hpp>
#include <penstock/tiers/io/io_engine.hpp>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace penstock::tiers {

/// Whether transfers bypass the page cache.
enum class DirectIo : std::uint8_t {
  preferred,  ///< direct where possible, else buffered; the file's direct_note gives the reason
  required,   ///< an error where the file system has no direct I/O
  off,        ///< buffered
};

class FileSystem;

/// An open file and its properties. Closed on destruction. The file system outlives it.
///
/// Used by one thread at a time; its members block. A transfer moves the whole buffer: short transfers and interrupted
/// calls are continued. On a direct file, address, length and offset are multiples of properties().alignment. Calls on
/// a default or moved-from File return invalid_argument.
class File {
 public:
  struct Properties {
    FileHandle handle = FileHandle::none;
    std::string name;          ///< for messages: the path, or "scratch file in DIR"
    bool direct = false;       ///< the page cache is bypassed
    Alignment alignment;       ///< of memory, offset and length, for direct I/O
    std::string direct_note;   ///< why a file with DirectIo::preferred is not direct; else empty
    std::string reserve_note;  ///< why its bytes are not reserved; empty when they are
    ByteCount allocated;       ///< what an existing file had of the disk when it was opened
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
  /// Leaves the file open until the process ends, for a request that has not completed and may still name its handle.
  /// Operations of this object then fail as those of a default one.
  void leave_open() noexcept { file_system_ = nullptr; }

  [[nodiscard]] FileHandle handle() const { return properties_.handle; }
  [[nodiscard]] const Properties& properties() const { return properties_; }

  /// The current length.
  [[nodiscard]] Result<ByteCount> size() const;
  /// Makes the file at least `size` bytes long. Reserves no space for the added bytes: a write there may fail with
  /// no_space.
  ///
  /// Errors: no_space, when the file system or the limit on file sizes allows no file of that length, even if it has it
  /// already; io.
  Result<void> extend(ByteCount size);
  /// Fills `into` with the bytes from `offset`.
  ///
  /// Errors: truncated (wanted, got), when the file ends earlier; invalid_argument, for a misaligned transfer of a
  /// direct file; io.
  [[nodiscard]] Result<void> read(FileOffset offset, HostSpan into) const;
  /// Writes all of `bytes` at `offset`, and extends the file if necessary. After an error, any part of them may have
  /// been written. Durable only after sync().
  ///
  /// Errors: no_space; invalid_argument, for a misaligned transfer of a direct file; io.
  [[nodiscard]] Result<void> write(FileOffset offset, ConstHostSpan bytes);
  /// Makes `length` bytes from `to` on share the storage of those of `source` from `from` on, as a reflink: later
  /// writes to one of the files do not change the other. Extends the file if necessary. Offsets and length are
  /// multiples of the file system's block, 4096 in most.
  ///
  /// Errors: unsupported, where the file system has no reflinks, `source` is on another one, or the range is misaligned
  /// (nothing has changed); no_space; io.
  Result<void> clone(const File& source, FileOffset from, FileOffset to, ByteCount length);
  /// Makes all writes and the file's length durable; sync_directory() makes its name durable.
  ///
  /// After an error, any write since the last successful sync() may be lost. The kernel reports lost writes only once;
  /// therefore a later sync() may succeed although data is lost. Write the data to another file.
  [[nodiscard]] Result<void> sync();

 private:
  friend class DirectoryLock;
  void swap(File& other) noexcept {
    std::swap(file_system_, other.file_system_);
    std::swap(properties_, other.properties_);
  }
  FileSystem* file_system_ = nullptr;
  Properties properties_;
};

/// An exclusive lock on a directory, from FileSystem::lock() until destruction or the end of the process.
///
/// A child that was forked without exec inherits a copy of this object. Destroying the copy does not release the lock;
/// destroying the original in the process that took the lock does.
class DirectoryLock {
 public:
  /// The locked file in the directory. It is not removed with the lock: if it were, two processes could hold locks on
  /// two files of this name.
  static constexpr const char* file_name = "penstock.lock";

  DirectoryLock() = default;
  /// Takes ownership of `lock_file`, which this process has locked. Before it closes the file, the destructor calls
  /// FileSystem::unlock(), because closing may not release the lock.
  explicit DirectoryLock(File lock_file);
  DirectoryLock(DirectoryLock&& other) noexcept { swap(other); }
  DirectoryLock& operator=(DirectoryLock&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DirectoryLock();

 private:
  void swap(DirectoryLock& other) noexcept {
    std::swap(lock_file_, other.lock_file_);
    std::swap(owner_, other.owner_);
  }
  File lock_file_;
  int owner_ = 0;  // process id
};

/// The file operations that the library uses. Implementations: the operating system (real_file_system), SimDisk, and
/// FaultFileSystem, which injects errors. An embedder may implement its own.
///
/// Example: replaces a file so that a power cut leaves either the old or the new contents.
///
///     PENSTOCK_TRY_ASSIGN(File file, files.create(directory / "manifest.new", size, DirectIo::off));
///     PENSTOCK_TRY(file.write(FileOffset(0), bytes));
///     PENSTOCK_TRY(file.sync());
///     PENSTOCK_TRY(files.rename(directory / "manifest.new", directory / "manifest"));
///     PENSTOCK_TRY(files.sync_directory(directory));
///
/// Safe from any thread. Every call may block. A call that fails has changed nothing, unless its comment says
/// otherwise.
class FileSystem {
 public:
  FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;
  virtual ~FileSystem() = default;

  /// Opens a file without a name in `directory` (O_TMPFILE, else unlinked right after creation), so that the kernel
  /// removes it however the process ends. Mode 0600. Reserves `size` bytes; if the file system cannot reserve space, it
  /// only checks that `size` bytes are free. The alignment comes from the file system and is verified by a read.
  ///
  /// Errors: not_found and permission, of the directory; no_space (wanted, free); unsupported, for
  /// DirectIo::required on a file system without direct I/O; io. A file whose name cannot be removed, not even after
  /// it is closed, is named in the error.
  virtual Result<File> create_scratch(const std::filesystem::path& directory, ByteCount size,
                                      DirectIo direct) = 0;

  /// Creates the file `path` with mode 0600 and `size` bytes, reserved as by create_scratch(). Does not follow links
  /// and does not open an existing file.
  ///
  /// Errors: already_exists, also for a link; those of create_scratch.
  virtual Result<File> create(const std::filesystem::path& path, ByteCount size, DirectIo direct) = 0;

  /// Opens the existing file `path` for reading and writing. Reserves no space.
  ///
  /// Errors: not_found; permission; invalid_argument, for a path that is not a regular file, such as a link or
  /// a directory; unsupported, for DirectIo::required on a file system without direct I/O.
  virtual Result<File> open(const std::filesystem::path& path, DirectIo direct) = 0;

  /// Opens the existing file `path` for reading alone, also one that may not be written, such as on a file system that
  /// is mounted read-only. By default open().
  ///
  /// Errors: those of open().
  virtual Result<File> open_to_read(const std::filesystem::path& path, DirectIo direct);

  /// Renames `from` to `to` atomically and replaces an existing file `to`. Durable after sync_directory() of both
  /// directories.
  ///
  /// Errors: not_found, also for a directory that does not exist; permission; invalid_argument, when `to` is a
  /// directory or on another file system.
  virtual Result<void> rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;

  /// Removes the name of a file. Its bytes stay until the last handle to it is closed. Durable after
  /// sync_directory().
  ///
  /// Errors: not_found; permission; invalid_argument, for a directory.
  virtual Result<void> remove(const std::filesystem::path& path) = 0;

  /// Makes the directory `path` with mode 0700. Durable after sync_directory() of the one above it.
  ///
  /// Errors: already_exists, for any file of this name; not_found and permission, of the directory above it; no_space.
  virtual Result<void> create_directory(const std::filesystem::path& path) = 0;

  /// Removes the empty directory `path`. Durable after sync_directory() of the one above it.
  ///
  /// Errors: not_found; permission; invalid_argument, for a directory that is not empty and for a file.
  virtual Result<void> remove_directory(const std::filesystem::path& path) = 0;

  /// The names in `directory`, in ascending order of their bytes.
  ///
  /// Errors: not_found; permission.
  virtual Result<std::vector<std::string>> list(const std::filesystem::path& directory) = 0;

  /// Makes every create(), rename() and remove() in `directory` that has returned durable.
  ///
  /// Errors: not_found; permission; io, after which any of these changes may be lost.
  virtual Result<void> sync_directory(const std::filesystem::path& directory) = 0;

  /// Locks `directory` exclusively, against other processes of this machine and other callers in this one. Does not
  /// wait. If the process ends without destroying the DirectoryLock, for example by a signal, the kernel releases the
  /// lock, but only after all children that were forked without exec have ended or destroyed their copies.
  ///
  /// Errors: in_use, naming the process that holds the lock if it is known; not_found and permission, of the directory;
  /// no_space, for the lock file; invalid_argument, if the lock file's name is a link.
  virtual Result<DirectoryLock> lock(const std::filesystem::path& directory) = 0;

  /// Bytes that an unprivileged process can still write under `directory`; the maximum file length where the
  /// file system has no limit.
  virtual Result<ByteCount> free_space(const std::filesystem::path& directory) = 0;

  /// Whether `path` is a name of the open file, and not of another one that has replaced it. By default true: the file
  /// system does not know.
  ///
  /// Errors: those of reading a directory, but none for a name that does not exist.
  virtual Result<bool> is_named(FileHandle file, const std::filesystem::path& path);

  /// "ext4", "tmpfs", …, or the file system's magic number in hexadecimal.
  virtual std::string type_name(const std::filesystem::path& directory) = 0;

 private:
  friend class File;
  friend class DirectoryLock;
  // Called by DirectoryLock before close(), in the process that took the lock.
  virtual void unlock(FileHandle) noexcept {}
  // Called by the members of File. Each error names the file.
  virtual void close(FileHandle handle) noexcept = 0;
  virtual Result<ByteCount> size(const File::Properties& file) = 0;
  virtual Result<void> extend(const File::Properties& file, ByteCount size) = 0;
  virtual Result<void> read(const File::Properties& file, FileOffset offset, HostSpan into) = 0;
  virtual Result<void> write(const File::Properties& file, FileOffset offset, ConstHostSpan bytes) = 0;
  /// By default this file system has no reflinks.
  virtual Result<void> clone(const File::Properties& source, FileOffset from, const File::Properties& file,
                             FileOffset to, ByteCount length);
  virtual Result<void> sync(const File::Properties& file) = 0;
};

/// The machine's own file systems. One instance, stateless.
[[nodiscard]] FileSystem& real_file_system();

}  // namespace penstock::tiers
