#pragma once

#include <penstock/tiers/store/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace penstock::tiers {

/// A TensorId is the number of its store, 16 bits; the number of tensors that have used its slot before, 16 bits; and
/// the slot, 32 bits, which a later tensor uses again. So an id of a removed tensor differs from that of the tensor
/// that has its slot now, one of another store from all ids of this one, and a default TensorId from all: no store has
/// number 0.
[[nodiscard]] constexpr std::size_t slot_of(TensorId id) {
  return static_cast<std::uint32_t>(id);
}

[[nodiscard]] constexpr TensorId first_in_slot(std::uint16_t store, std::size_t slot) {
  return TensorId((std::uint64_t{store} << 48) | slot);
}

/// The id of the next tensor in the slot of `id`; none after the last one that can be told apart.
[[nodiscard]] constexpr std::optional<TensorId> next_in_slot(TensorId id) {
  const std::uint64_t next = static_cast<std::uint64_t>(id) + (std::uint64_t{1} << 32);
  const bool same_store = next >> 48 == static_cast<std::uint64_t>(id) >> 48;
  return same_store ? std::optional(TensorId(next)) : std::nullopt;
}

}  // namespace penstock::tiers
