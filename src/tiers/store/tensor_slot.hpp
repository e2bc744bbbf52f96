#pragma once

#include <penstock/tiers/store/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace penstock::tiers {

/// A TensorId is a slot, which a later tensor uses again, and the number of tensors that have used it: an id of a
/// removed tensor differs from that of the tensor that has its slot now, and a default TensorId from all.
[[nodiscard]] constexpr std::size_t slot_of(TensorId id) {
  return static_cast<std::uint32_t>(id);
}

[[nodiscard]] constexpr TensorId first_in_slot(std::size_t slot) {
  return TensorId((std::uint64_t{1} << 32) | slot);
}

/// The id of the next tensor in the slot of `id`; none after the last one that can be told apart.
[[nodiscard]] constexpr std::optional<TensorId> next_in_slot(TensorId id) {
  const std::uint64_t next = static_cast<std::uint64_t>(id) + (std::uint64_t{1} << 32);
  return next > static_cast<std::uint64_t>(id) ? std::optional(TensorId(next)) : std::nullopt;
}

}  // namespace penstock::tiers
