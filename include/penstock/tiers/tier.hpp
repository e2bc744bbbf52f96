#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace penstock::tiers {

/// A kind of memory, ordered from fastest to slowest.
enum class Tier : std::uint8_t { device, host, nvme };
inline constexpr std::size_t tier_count = 3;

/// Whether the kernel may move host memory or swap it out (mlock).
enum class Pinning : std::uint8_t { none, preferred, required };

/// What bytes are used for.
enum class Purpose : std::uint8_t {
  parameter_shard,  ///< this rank's slice of a flat of parameters
  gathered_flat,    ///< a whole flat, gathered from the shards of all ranks
  full_gradient,    ///< the gradient of a whole flat, before it is reduced
  gradient_shard,   ///< this rank's slice of the gradient, reduced
  optimizer_tile,   ///< master and moments
  scratch,          ///< partial sums, reduction buffers
  checkpoint,       ///< activations that a trainer keeps from forward to backward
  staging,  ///< host copies of tensors on disk, and gradients on their way from the device to their shard
  parked,   ///< what has left its place, see zero::Engine::park()
  commit,   ///< copies of what is only in memory, see zero::Engine::commit()
};
inline constexpr std::size_t purpose_count = 10;

[[nodiscard]] constexpr std::string_view to_string(Tier tier) {
  constexpr std::array<std::string_view, tier_count> names = {"device", "host", "nvme"};
  const auto index = static_cast<std::size_t>(tier);
  return index < names.size() ? names[index] : "unknown";
}
[[nodiscard]] constexpr std::string_view to_string(Purpose purpose) {
  constexpr std::array<std::string_view, purpose_count> names = {
      "parameter shards", "gathered flats", "full gradients", "gradient shards", "optimizer tiles",
      "scratch",          "checkpoints",    "staging",        "parked",          "commits"};
  const auto index = static_cast<std::size_t>(purpose);
  return index < names.size() ? names[index] : "unknown";
}

}  // namespace penstock::tiers
