#pragma once

#include <penstock/tiers/io/file_system.hpp>

#include <array>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::tiers {

/// One fault of a file system's plan: which call it strikes, and what becomes of it.
///
///     FileSystemFault::fail(FileSystemFault::Operation::create_scratch, 1, ENOSPC)      // the second swap file
struct FileSystemFault {
  enum class Operation : std::uint8_t { create_scratch, free_space };
  enum class Effect : std::uint8_t {
    fail,      ///< ends with `error`, worded as the real file system words it, and does nothing
    buffered,  ///< a create_scratch that finds no direct I/O
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
/// Safe from any thread, if the file system within is. Its files belong to that one and may outlive this.
class FaultFileSystem final : public FileSystem {
 public:
  using Operation = FileSystemFault::Operation;

  /// `within` outlives it.
  FaultFileSystem(FileSystem& within, FileSystemFaultPlan plan) : within_(within), plan_(std::move(plan)) {}

  Result<File> create_scratch(const std::filesystem::path& directory, ByteCount size,
                              DirectIo direct) override;
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
  // Never asked: each file belongs to the one within.
  void close(FileHandle) noexcept override {}
  Result<void> extend(const File::Properties&, ByteCount) override { return ok(); }

  FileSystem& within_;
  const FileSystemFaultPlan plan_;
  mutable std::mutex mutex_;
  std::array<std::uint64_t, 2> accepted_{};  // by operation
  std::uint64_t struck_ = 0;
};

}  // namespace penstock::tiers
