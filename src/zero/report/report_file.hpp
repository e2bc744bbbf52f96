#pragma once

#include <penstock/base/result.hpp>

#include <filesystem>

namespace penstock::zero {

/// Whether save_report() can write that file now. Errors: its own.
[[nodiscard]] Result<void> check_report_file(const std::filesystem::path& file);

}  // namespace penstock::zero
