#pragma once

#include <penstock/base/time.hpp>
#include <penstock/tiers/io/file_system.hpp>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::tiers {

/// One fault of a file system's plan: which calls it changes, and how.
///
///     FileSystemFault::fail(FileSystemFault::Operation::create_scratch, 1, ENOSPC)      // the second swap file fails
struct FileSystemFault {
  enum class Operation : std::uint8_t {
    create_scratch,
    create,
    open,
    rename,
    remove,
    create_directory,
    remove_directory,
    list,
    sync_directory,
    lock,
    free_space,
    // of a file
    size,
    extend,
    clone,
    read,
    write,
    sync,
  };
  static constexpr std::size_t operation_count = 17;
  enum class Effect : std::uint8_t {
    fail,      ///< returns `error`, with the message of the real file system, and does nothing
    buffered,  ///< a create_scratch, create or open: the file has no direct I/O
    delay,     ///< the call is made `delay` later
    kill,      ///< SIGKILL ends the process before the call
  };

  std::optional<Operation> operation;  ///< none: every operation
  std::uint64_t occurrence = 0;  ///< first call that it changes, counted from 0 over the file system's life
  std::uint64_t count = 1;       ///< how many calls in a row it changes
  Effect effect = Effect::fail;
  int error = EIO;
  TimePoint delay{};

  [[nodiscard]] static FileSystemFault fail(std::optional<Operation> operation, std::uint64_t occurrence,
                                            int error, std::uint64_t count = 1) {
    return {.operation = operation, .occurrence = occurrence, .count = count, .error = error};
  }
};

using FileSystemFaultPlan = std::vector<FileSystemFault>;

/// Wraps a file system and injects the faults of a plan, so that an embedder can see how its trainer handles them.
/// Calls that no fault concerns pass unchanged. Where several concern a call, the first of the plan applies.
///
///     FaultFileSystem files(real_file_system(), {FileSystemFault::fail(FileSystemFault::Operation::open, 0, EIO)});
///
/// A sync() or sync_directory() that it fails loses nothing: the next one makes the same changes durable. On a disk,
/// they may be lost; SimDisk::fail_syncs() simulates that.
///
/// Safe from any thread, if the wrapped file system is. Outlives its files; a lock belongs to the wrapped file
/// system.
class FaultFileSystem final : public FileSystem {
 public:
  using Operation = FileSystemFault::Operation;

  /// `wrapped` outlives it.
  FaultFileSystem(FileSystem& wrapped, FileSystemFaultPlan plan);
  ~FaultFileSystem() override;

  Result<File> create_scratch(const std::filesystem::path& directory, ByteCount size,
                              DirectIo direct) override;
  Result<File> create(const std::filesystem::path& path, ByteCount size, DirectIo direct) override;
  Result<File> open(const std::filesystem::path& path, DirectIo direct) override;
  Result<void> rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  Result<void> remove(const std::filesystem::path& path) override;
  Result<void> create_directory(const std::filesystem::path& path) override;
  Result<void> remove_directory(const std::filesystem::path& path) override;
  Result<std::vector<std::string>> list(const std::filesystem::path& directory) override;
  Result<void> sync_directory(const std::filesystem::path& directory) override;
  Result<DirectoryLock> lock(const std::filesystem::path& directory) override;
  Result<ByteCount> free_space(const std::filesystem::path& directory) override;
  Result<bool> is_named(FileHandle file, const std::filesystem::path& path) override;
  std::string type_name(const std::filesystem::path& directory) override;

  /// Appends a fault to the plan.
  void add(const FileSystemFault& fault);
  /// Calls so far, of one kind or of all; those that failed are among them.
  [[nodiscard]] std::uint64_t accepted(std::optional<Operation> operation = {}) const;
  /// Faults injected so far.
  [[nodiscard]] std::uint64_t injected() const;

 private:
  void close(FileHandle handle) noexcept override;
  Result<ByteCount> size(const File::Properties& file) override;
  Result<void> extend(const File::Properties& file, ByteCount size) override;
  Result<void> clone(const File::Properties& source, FileOffset from, const File::Properties& file,
                     FileOffset to, ByteCount length) override;
  Result<void> read(const File::Properties& file, FileOffset offset, HostSpan into) override;
  Result<void> write(const File::Properties& file, FileOffset offset, ConstHostSpan bytes) override;
  Result<void> sync(const File::Properties& file) override;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::tiers
