#pragma once

#include <penstock/base/result.hpp>
#include <penstock/zero/config/config.hpp>
#include <penstock/zero/layout/model_layout.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace penstock::zero {

/// What all ranks of a job must have in common, one line each: the settings, and the layout of the model. At most half
/// of a message of the control channel.
[[nodiscard]] std::string describe_run(const Config& config, const ModelLayout& model);

/// Every rank's bytes for a label, as ControlChannel::gather().
using GatherBytes = std::function<Result<std::vector<std::vector<std::byte>>>(const std::string& label,
                                                                              std::span<const std::byte>)>;

/// Compares the descriptions of all ranks; every rank calls it. Errors: those of `gather`; invalid_argument, on every
/// rank, naming the first line in which a rank differs from rank 0, and the ranks that differ.
Result<void> check_same_run(std::uint32_t rank, const GatherBytes& gather, const std::string& description);

}  // namespace penstock::zero
