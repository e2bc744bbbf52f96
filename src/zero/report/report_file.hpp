#pragma once

#include <penstock/base/result.hpp>

#include <cstdint>
#include <filesystem>

namespace penstock::zero {

/// The name of the file of a rank: of several, ".rank" and its number are put before the extension.
[[nodiscard]] std::filesystem::path name_of_rank(std::filesystem::path file, std::uint32_t rank,
                                                 std::uint32_t ranks);
/// Errors: invalid_config, where both are the same file.
[[nodiscard]] Result<void> check_different(const std::filesystem::path& report,
                                           const std::filesystem::path& timeline);
/// Whether save_report() can write that file now. Errors: its own.
[[nodiscard]] Result<void> check_report_file(const std::filesystem::path& file);

}  // namespace penstock::zero
