#pragma once

#include <penstock/tiers/io/file_system.hpp>

#include <array>
#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::tiers {

/// One fault of a file system's plan: which call it strikes, and what becomes of it.
///
///     FileSystemFault::fail(FileSystemFault::Operation::create_scratch, 1, ENOSPC)      // the second swap file
struct FileSystemFault {
  enum class Operation : std::uint8_t {
    create_scratch,
    create,
    open,
    rename,
    remove,
    list,
    sync_directory,
    lock,
    free_space,
    // of a file
    size,
    extend,
    read,
    write,
    sync,
  };
  static constexpr std::size_t operation_count = 14;
  enum class Effect : std::uint8_t {
    fail,      ///< ends with `error`, worded as the real file system words it, and does nothing
    buffered,  ///< a create_scratch, create or open that finds no direct I/O
  };

  std::optional<Operation> operation;  ///< none: whatever comes
  std::uint64_t occurrence = 0;        ///< of such calls, counted from 0 over the file system's life
  std::uint64_t count = 1;             ///< it, and those after it
  Effect effect = Effect::fail;
  int error = EIO;

  [[nodiscard]] static FileSystemFault fail(std::optional<Operation> operation, std::uint64_t occurrence,
                                            int error, std::uint64_t count = 1) {
    return {.operation = operation, .occurrence = occurrence, .count = count, .error = error};
  }
};

using FileSystemFaultPlan = std::vector<FileSystemFault>;

/// Any file system with faults injected, so that an embedder can see its own trainer meet them. A call that no
/// fault of the plan strikes passes unchanged. Where several strike, the first of the plan does.
///
/// Safe from any thread, if the file system within is. Outlives its files; a lock belongs to the file system within.
class FaultFileSystem final : public FileSystem {
 public:
  using Operation = FileSystemFault::Operation;

  /// `within` outlives it.
  FaultFileSystem(FileSystem& within, FileSystemFaultPlan plan) : within_(within), plan_(std::move(plan)) {}

  Result<File> create_scratch(const std::filesystem::path& directory, ByteCount size,
                              DirectIo direct) override;
  Result<File> create(const std::filesystem::path& path, ByteCount size, DirectIo direct) override;
  Result<File> open(const std::filesystem::path& path, DirectIo direct) override;
  Result<void> rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  Result<void> remove(const std::filesystem::path& path) override;
  Result<std::vector<std::string>> list(const std::filesystem::path& directory) override;
  Result<void> sync_directory(const std::filesystem::path& directory) override;
  Result<DirectoryLock> lock(const std::filesystem::path& directory) override;
  Result<ByteCount> free_space(const std::filesystem::path& directory) override;
  std::string type_name(const std::filesystem::path& directory) override {
    return within_.type_name(directory);
  }

  /// Calls so far, of one kind or of all; those that failed are among them.
  [[nodiscard]] std::uint64_t accepted(std::optional<Operation> operation = {}) const;
  /// Faults that have struck so far.
  [[nodiscard]] std::uint64_t struck() const;

 private:
  [[nodiscard]] std::optional<FileSystemFault> strike(Operation operation);
  [[nodiscard]] std::uint64_t count_of(std::optional<Operation> operation) const;
  /// Has `make`, a Result<File>(DirectIo), make a file within, without direct I/O if a fault says so.
  template <class Make>
  [[nodiscard]] Result<File> make_file(const std::optional<FileSystemFault>& fault, const char* operation,
                                       const std::filesystem::path& path, DirectIo direct, const Make& make);
  [[nodiscard]] File adopt(File file, std::string direct_note);
  [[nodiscard]] File& within(const File::Properties& file);
  void close(FileHandle handle) noexcept override;
  Result<ByteCount> size(const File::Properties& file) override;
  Result<void> extend(const File::Properties& file, ByteCount size) override;
  Result<void> read(const File::Properties& file, FileOffset offset, HostSpan into) override;
  Result<void> write(const File::Properties& file, FileOffset offset, ConstHostSpan bytes) override;
  Result<void> sync(const File::Properties& file) override;

  FileSystem& within_;
  const FileSystemFaultPlan plan_;
  mutable std::mutex mutex_;
  std::array<std::uint64_t, FileSystemFault::operation_count> accepted_{};  // by operation
  std::uint64_t struck_ = 0;
  std::map<FileHandle, File> files_;  // of the file system within, by the handle that they share with ours
};

}  // namespace penstock::tiers
