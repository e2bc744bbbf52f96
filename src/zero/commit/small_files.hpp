#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/tiers/io/file_system.hpp>

#include <charconv>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::zero {

// Names and small files of durable directories and checkpoints. The calls block.

/// The number between `before` and `after`, if `name` is exactly that.
template <class Number>
[[nodiscard]] std::optional<Number> number_in(std::string_view name, std::string_view before,
                                              std::string_view after) {
  if (!name.starts_with(before) || !name.ends_with(after) || name.size() <= before.size() + after.size())
    return std::nullopt;
  const std::string_view digits = name.substr(before.size(), name.size() - before.size() - after.size());
  Number number{};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

/// The one that has the name of `directory`, which may end in "/"; "." for a relative name alone.
[[nodiscard]] std::filesystem::path directory_above(const std::filesystem::path& directory);

/// Makes a directory, if it is not there, and its name durable.
Result<void> ensure_directory(tiers::FileSystem& files, const std::filesystem::path& path);

Result<void> remove_if_there(tiers::FileSystem& files, const std::filesystem::path& name);

/// Makes `bytes` the contents of `name`, durably: after a power cut the file is the old or the new one. Until then they
/// are in `unfinished`, in the same directory.
///
/// Errors: those of FileSystem; the file may be the new one nevertheless.
Result<void> replace_file(tiers::FileSystem& files, const std::filesystem::path& name,
                          const std::string& unfinished, ConstHostSpan bytes);

/// Errors: those of FileSystem; invalid_argument, for a file of more than `most` bytes.
[[nodiscard]] Result<std::string> read_text(tiers::FileSystem& files, const std::filesystem::path& name,
                                            std::size_t most);

}  // namespace penstock::zero
