#pragma once

#include "zero/config/schema.hpp"

namespace penstock::zero::config {

// The parts of the schema, each in its own source file.
[[nodiscard]] std::span<const Key> training_keys();  ///< batches, precision, optimizer and all others
[[nodiscard]] std::span<const Key> scheduler_keys();
[[nodiscard]] std::span<const Key> zero_keys();     ///< zero_optimization
[[nodiscard]] std::span<const Key> machine_keys();  ///< aio and penstock
[[nodiscard]] std::span<const Key> feature_keys();  ///< DeepSpeed's features that are not supported

}  // namespace penstock::zero::config
