#pragma once

#include "zero/comm/process/peer_link.hpp"
#include "zero/comm/process/peer_pipes.hpp"

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace penstock::zero {

/// The bytes of collectives between this process and its peers: a PeerLink with each of them, on PeerPipes.
///
/// Used by one thread; any thread may call wake(). Only wait() blocks.
class PeerMesh {
 public:
  /// Rank `rank` of `ranks`.
  PeerMesh(std::uint32_t rank, std::uint32_t ranks, std::unique_ptr<PeerPipes> pipes);

  /// Begins a collective: operations[r] is what moves between this rank and rank r; that of this rank is not looked at.
  /// Its memory is read and written until is_done(), or until an interruption has ended.
  ///
  /// Precondition: is_done(), and not is_interrupted(). Errors: those of advance().
  Result<void> begin(std::span<const LinkOperation> operations);
  /// Gives up the collective in progress. See PeerLink::interrupt().
  void interrupt(std::uint64_t epoch);

  /// Moves what the pipes take now. True if bytes have moved.
  ///
  /// Errors: invalid_argument, for collectives that differ; corrupted; peer_failed, where a peer's stream has ended on
  /// which bytes are missing. All name the ranks. After an error the mesh moves nothing.
  [[nodiscard]] Result<bool> advance();
  /// Returns when advance() may move bytes or wake() was called, after `at_most`, or earlier.
  void wait(TimePoint at_most) noexcept;
  void wake() noexcept { pipes_->wake(); }

  [[nodiscard]] bool is_done() const;
  [[nodiscard]] bool is_interrupted() const;
  /// The peers that have not begun the collective in progress, or where all have, those that have not finished it;
  /// in an interruption, those whose word is missing.
  [[nodiscard]] std::vector<std::uint32_t> missing() const;

 private:
  struct Peer {
    PeerLink link;
    std::optional<Error> end;  ///< of its streams
    [[nodiscard]] bool is_needed() const { return !link.is_done() || link.is_interrupted(); }
  };

  [[nodiscard]] Result<bool> move();
  [[nodiscard]] Result<std::size_t> write(std::uint32_t r);
  [[nodiscard]] Result<std::size_t> read(std::uint32_t r);
  /// Of the peers for which `condition` is true.
  template <class Condition>
  [[nodiscard]] std::vector<std::uint32_t> ranks_where(const Condition& condition) const;

  const std::uint32_t rank_;
  std::vector<Peer> peers_;  // by rank; the one of this rank does nothing
  std::vector<PeerPipes::Interest> interests_;
  std::unique_ptr<PeerPipes> pipes_;
  std::optional<Error> error_;
  bool refused_ = false;  // a collective, because of the error: it is never done
};

}  // namespace penstock::zero
