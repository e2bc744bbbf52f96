#pragma once

#include <penstock/base/result.hpp>
#include <penstock/tiers/io/io_engine.hpp>

#include <filesystem>
#include <string>
#include <utility>

namespace penstock::tiers {

/// Whether the page cache may stand between us and the device.
enum class DirectIo : std::uint8_t {
  preferred,  ///< buffered where the file system has no direct I/O, and said so
  required,   ///< an error where the file system has no direct I/O
  off,        ///< buffered
};

class FileSystem;

/// What opening a file found out. Owned by whoever opened it; closes itself.
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
  /// Makes it longer, up to `size`. What is added is not reserved: writing there may find the disk full.
  ///
  /// Errors: no_space, when no file may be that long; those of the file system.
  Result<void> extend(ByteCount size);
  /// The same file, of which a file system that stands before another one says something else.
  [[nodiscard]] File described_as(Properties properties) && {
    properties.handle = properties_.handle;
    properties_ = std::move(properties);
    return std::move(*this);
  }

 private:
  void swap(File& other) noexcept {
    std::swap(file_system_, other.file_system_);
    std::swap(properties_, other.properties_);
  }
  FileSystem* file_system_ = nullptr;
  Properties properties_;
};

/// The operating system's file operations that the library uses, so that a test can stand between any two.
///
/// Safe from any thread. Every call may block.
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

  /// Bytes that an unprivileged process can still write under `directory`; the length of the longest file where
  /// there is no limit.
  virtual Result<ByteCount> free_space(const std::filesystem::path& directory) = 0;

  /// "ext4", "tmpfs", …, or the file system's magic number in hexadecimal.
  virtual std::string type_name(const std::filesystem::path& directory) = 0;

 protected:
  // What create_scratch says, worded once for every file system.
  [[nodiscard]] static Error refused(const std::filesystem::path& directory, ByteCount size, int errno_value,
                                     const Result<ByteCount>& free);
  [[nodiscard]] static Error no_direct_io(const std::filesystem::path& directory, const std::string& why);

 private:
  friend class File;
  virtual void close(FileHandle handle) noexcept = 0;
  virtual Result<void> extend(const File::Properties& file, ByteCount size) = 0;
};

/// The machine's own file systems. One instance, stateless.
[[nodiscard]] FileSystem& real_file_system();

}  // namespace penstock::tiers
