#pragma once

#include "zero/config/schema.hpp"

namespace penstock::zero::config {

// The schema's parts, one source each.
[[nodiscard]] std::span<const Key> training_keys();  ///< batches, precision, optimizer and what is left
[[nodiscard]] std::span<const Key> zero_keys();      ///< zero_optimization
[[nodiscard]] std::span<const Key> machine_keys();   ///< aio and penstock
[[nodiscard]] std::span<const Key> feature_keys();   ///< blocks of DeepSpeed that no key here replaces

}  // namespace penstock::zero::config
