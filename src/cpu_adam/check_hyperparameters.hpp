#pragma once

#include <penstock/base/result.hpp>

#include <cstdint>

// Validation of hyperparameters. Each error names the invalid one.
namespace penstock::cpu_adam::detail {

Result<void> check_step(const char* operation, std::uint64_t step);
Result<void> check_finite(const char* operation, const char* name, float value);
Result<void> check_not_negative(const char* operation, const char* name, float value);  ///< and finite
Result<void> check_beta(const char* operation, const char* name, float value);          ///< in [0, 1)

}  // namespace penstock::cpu_adam::detail
