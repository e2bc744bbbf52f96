#pragma once

#include <penstock/tiers/io/file_system.hpp>

#include <optional>

// The errors of file operations, the same for every file system: real, simulated and faulty.
namespace penstock::tiers {

/// What a user can do when a call on a file or directory fails with `errno_value`; empty if that is not known.
[[nodiscard]] const char* advice_for(int errno_value);

/// Adds what a user can do about `errno_value`, and the cause where the kernel's text does not name it.
[[nodiscard]] Error explain(Error error, int errno_value);

/// A call on a file, directory or file system failed with `errno_value`.
[[nodiscard]] Error file_error(const char* operation, const std::string& object, int errno_value);

/// A file of `size` bytes cannot be created. `free` is the free space, if known.
[[nodiscard]] Error reserve_error(const char* operation, const std::filesystem::path& path, ByteCount size,
                                  int errno_value, const Result<ByteCount>& free);

/// DirectIo::required on a file system that has none.
[[nodiscard]] Error no_direct_io(const char* operation, const std::filesystem::path& path,
                                 const std::string& why);

/// A file cannot be extended to `size` bytes.
[[nodiscard]] Error extend_error(const std::string& file, ByteCount size, int errno_value);

/// A transfer of `length` bytes failed with `errno_value`.
[[nodiscard]] Error transfer_error(const char* operation, const std::string& file, FileOffset offset,
                                   ByteCount length, int errno_value);

/// A read of `length` bytes reached the end of the file after `got`.
[[nodiscard]] Error file_too_short(const std::string& file, FileOffset offset, ByteCount length,
                                   ByteCount got);

/// A transfer reports `moved` bytes, more than it was asked for. A file system in user space can do this; the memory
/// behind the buffer of a read may have been written.
[[nodiscard]] Error moved_too_much(const char* operation, ByteCount moved);

/// A file or directory could not be synced.
[[nodiscard]] Error sync_error(const char* operation, const std::string& object, int errno_value);

/// A directory is locked already, by process `holder` if known.
[[nodiscard]] Error locked_error(const std::filesystem::path& directory, std::optional<int> holder);

/// File::clone() is not possible for `file`.
[[nodiscard]] Error no_clone(const std::string& file, const std::string& why);

/// "FROM to TO", the object of an error of rename().
[[nodiscard]] std::string renamed(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace penstock::tiers
