#pragma once

#include <penstock/tiers/io/file_system.hpp>

#include <optional>

// The errors of file operations, worded once for every file system: real, simulated and faulty.
namespace penstock::tiers {

/// A call on a file, a directory or a file system that ended with `errno_value`.
[[nodiscard]] Error file_error(const char* operation, const std::string& object, int errno_value);

/// A file of `size` bytes that cannot be made. `free` is what is free there, if that is known.
[[nodiscard]] Error reserve_error(const char* operation, const std::filesystem::path& path, ByteCount size,
                                  int errno_value, const Result<ByteCount>& free);

/// DirectIo::required on a file system that has none.
[[nodiscard]] Error no_direct_io(const char* operation, const std::filesystem::path& path,
                                 const std::string& why);

/// A file that cannot be made `size` bytes long.
[[nodiscard]] Error extend_error(const std::string& file, ByteCount size, int errno_value);

/// A transfer of `length` bytes that ended with `errno_value`.
[[nodiscard]] Error transfer_error(const char* operation, const std::string& file, FileOffset offset,
                                   ByteCount length, int errno_value);

/// A read of `length` bytes that found the file's end after `got` of them.
[[nodiscard]] Error file_too_short(const std::string& file, FileOffset offset, ByteCount length,
                                   ByteCount got);

/// A file or directory that could not be made durable.
[[nodiscard]] Error sync_error(const char* operation, const std::string& object, int errno_value);

/// A directory that is locked already: `holder` is a process, none when that is not known.
[[nodiscard]] Error locked_error(const std::filesystem::path& directory, std::optional<int> holder);

/// What an error of rename() names.
[[nodiscard]] std::string renamed(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace penstock::tiers
