#pragma once

#include "swap/trace_rules.hpp"

#include <penstock/swap/access_trace.hpp>
#include <penstock/tiers/store/tensor.hpp>

#include <cstdint>
#include <unordered_map>
#include <utility>

namespace penstock::swap {

/// Writes down the uses of tensors. Pure; owned by one thread.
class TraceRecorder {
 public:
  void use(tiers::TensorId tensor, const tiers::TensorDescription& description, Access access) {
    const auto [found, is_new] = numbers_.emplace(tensor, static_cast<std::uint32_t>(trace_.tensors.size()));
    if (is_new) {
      trace_.tensors.push_back({.name = name_in_trace(description),
                                .size = description.size,
                                .purpose = description.purpose,
                                .on_disk = description.extent.has_value(),
                                .write_behind = description.write_behind,
                                .retain = description.retain,
                                .home_in_memory = description.home_in_memory && description.extent,
                                .transient = description.transient});
    }
    trace_.uses.push_back({found->second, access});
  }
  /// The uses so far.
  [[nodiscard]] AccessTrace end() && { return std::move(trace_); }

 private:
  AccessTrace trace_;
  std::unordered_map<tiers::TensorId, std::uint32_t> numbers_;  // indices into trace_.tensors
};

}  // namespace penstock::swap
