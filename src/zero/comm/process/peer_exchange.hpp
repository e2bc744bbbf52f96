#pragma once

#include "zero/comm/process/peer_link.hpp"

#include <penstock/base/result.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace penstock::zero {

/// Moves the bytes of one collective after the other between this process and its peers. Used by one thread.
class PeerExchange {
 public:
  PeerExchange() = default;
  PeerExchange(const PeerExchange&) = delete;
  PeerExchange& operator=(const PeerExchange&) = delete;
  virtual ~PeerExchange() = default;

  /// Begins a collective: operations[r] is what moves between this rank and rank r; that of this rank is not looked at.
  /// Its memory is read and written until it is done, an interruption has ended, or stop() has returned.
  virtual void begin(std::vector<LinkOperation> operations) = 0;
  /// Gives up the collective in progress. See PeerLink::interrupt().
  virtual void interrupt(std::uint64_t epoch) = 0;

  struct Status {
    bool done = true;                    ///< with the collective that was begun last
    bool interrupted = false;            ///< the interruption has not ended: see PeerLink::is_interrupted()
    std::optional<Error> error;          ///< see PeerMesh::advance(); after it nothing moves
    std::vector<std::uint32_t> missing;  ///< see PeerMesh::missing()
  };
  [[nodiscard]] virtual Status poll() = 0;
  /// Sets the function that is called when poll() may return another status. An empty function ends the calls.
  virtual void set_wake(std::function<void()> wake) = 0;
  /// Ends everything. Other processes see the end of their streams.
  virtual void stop() noexcept = 0;
};

}  // namespace penstock::zero
