#pragma once

#include <penstock/base/units.hpp>
#include <penstock/tiers/tier.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::zero {

/// What Engine::park() moves, combined with `|`. In the words of DeepSpeed's OffloadStateTypeEnum:
enum class ParkKinds : std::uint8_t {
  none = 0,
  parameters = 1,  ///< lp_params: shards, gathered flats, and what only a forward and backward use
  gradients = 2,   ///< lp_grads, contiguous_grad_buffer: accumulated gradients
  optimizer = 4,   ///< optim_states, hp_params: masters and moments, and the slots in which tiles are updated
  all = 7,
};
[[nodiscard]] constexpr ParkKinds operator|(ParkKinds a, ParkKinds b) {
  return static_cast<ParkKinds>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
[[nodiscard]] constexpr ParkKinds operator&(ParkKinds a, ParkKinds b) {
  return static_cast<ParkKinds>(static_cast<unsigned>(a) & static_cast<unsigned>(b));
}
/// "parameters and optimizer".
[[nodiscard]] std::string to_string(ParkKinds kinds);

/// What Engine::park() or unpark() has changed on this rank.
struct ParkReport {
  struct Bytes {
    ByteCount given_back;  ///< to the device's driver, to the operating system, or to the file system
    ByteCount taken;       ///< from them
  };
  std::array<Bytes, tiers::tier_count> tiers = {};
  [[nodiscard]] const Bytes& operator[](tiers::Tier tier) const {
    return tiers[static_cast<std::size_t>(tier)];
  }
  [[nodiscard]] Bytes& operator[](tiers::Tier tier) { return tiers[static_cast<std::size_t>(tier)]; }
  /// What of these kinds stays where it was, with its bytes and why, one line each.
  std::vector<std::string> stays;
  /// What is done otherwise than asked for, one line each: files that are not used or have no direct I/O; memory that
  /// is not registered again.
  std::vector<std::string> notes;
};

}  // namespace penstock::zero
