#pragma once

#include "zero/engine/engine_context.hpp"

#include <penstock/tiers/tier.hpp>

#include <functional>
#include <string>
#include <vector>

namespace penstock::zero {

/// Contents of an engine's memory, kept elsewhere with a checksum for each block. Used by the trainer's thread. Its
/// members that copy block until the copies have ended.
class ParkedContents {
 public:
  ParkedContents() = default;
  ParkedContents(const ParkedContents&) = delete;
  ParkedContents& operator=(const ParkedContents&) = delete;
  virtual ~ParkedContents() = default;

  /// Verifies every block and copies it to where it was: on the device, to `now_at(range)`, of the same size.
  ///
  /// Errors: corrupted, naming the range; those of the device and of the disk. Everything is still parked.
  virtual Result<void> copy_back(EngineContext& context,
                                 const std::function<DeviceSpan(DeviceSpan)>& now_at) = 0;
  /// What it has allocated in `tier`.
  [[nodiscard]] virtual ByteCount held(tiers::Tier tier) const = 0;
  struct Traffic {
    ByteCount read, written;
  };
  /// Bytes of disk I/O so far.
  [[nodiscard]] virtual Traffic traffic() const { return {}; }
  /// What happened since the last call that is no error, one line each.
  [[nodiscard]] virtual std::vector<std::string> take_messages() { return {}; }
};

}  // namespace penstock::zero
