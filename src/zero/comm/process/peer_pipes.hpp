#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/time.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::zero {

/// Streams of bytes between this process and each of its peers. They keep the order and lose nothing. Nothing blocks
/// but wait().
///
/// Used by one thread; any thread may call wake().
class PeerPipes {
 public:
  PeerPipes() = default;
  PeerPipes(const PeerPipes&) = delete;
  PeerPipes& operator=(const PeerPipes&) = delete;
  virtual ~PeerPipes() = default;

  /// How many of the first `bytes` were taken; their memory is not read after the call. 0: none now. `peer` is the
  /// number of another rank.
  ///
  /// Errors: peer_failed, where the stream has ended.
  [[nodiscard]] virtual Result<std::size_t> write(std::uint32_t peer, ConstHostSpan bytes) = 0;
  /// How many bytes were put at the begin of `bytes`; the memory is not written after the call. 0: none now.
  ///
  /// Errors: peer_failed, where the stream has ended.
  [[nodiscard]] virtual Result<std::size_t> read(std::uint32_t peer, HostSpan bytes) = 0;

  /// What wait() waits for.
  struct Interest {
    bool write = false, read = false;
  };
  /// Returns once write() or read() of a peer may take bytes or return an error, if interests[peer] says so, once
  /// wake() was called since the last wait(), after `at_most`, or earlier. interests[rank of this process] is empty.
  virtual void wait(std::span<const Interest> interests, TimePoint at_most) noexcept = 0;
  virtual void wake() noexcept = 0;
};

}  // namespace penstock::zero
