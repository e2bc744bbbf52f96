#pragma once

#include <penstock/base/dtype.hpp>
#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/zero/comm/communicator.hpp>

#include "zero/comm/transport.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero {

/// What one collective moves between this rank and a peer. Both sides have begun the same one.
struct LinkOperation {
  Transfer::Kind kind{};
  CollectiveSignature signature{};
  DType dtype{};
  struct Piece {
    ConstHostSpan send;
    /// As long as `send`. It may be the same memory: then what is received takes the place of what was sent.
    HostSpan receive;
  };
  std::vector<Piece> pieces;  ///< all in place, or none
};

/// The bytes of collectives between two processes, on a connection that keeps their order.
///
/// Moves no bytes: its owner writes what to_write() shows, and reads into what to_read() shows, as much as the
/// connection takes. A collective is cut into chunks of one piece, each with a header that says which collective it is
/// of, so that a difference is noticed, and that an interruption ends after a chunk.
///
/// Used by one thread.
class PeerLink {
 public:
  static constexpr std::size_t header_bytes = 80, chunk_bytes_max = 256 * 1024;

  /// Between this process, `rank`, and `peer`.
  PeerLink(std::uint32_t rank, std::uint32_t peer);

  /// Precondition: is_done() and not is_interrupted(). Errors: invalid_argument, where the peer has begun another one.
  Result<void> begin(const LinkOperation& operation);
  /// Everything is sent and received.
  [[nodiscard]] bool is_done() const { return !operation_; }
  /// The peer has begun the collective that is in progress.
  [[nodiscard]] bool peer_has_begun() const { return has_received_; }

  /// Gives the collective up that is in progress. `epoch` counts the interruptions of the job, on all ranks alike; it
  /// is above that of the last call.
  void interrupt(std::uint64_t epoch);
  /// Until both sides have interrupted: then nothing reads or writes the memory of what was given up.
  [[nodiscard]] bool is_interrupted() const { return sent_epoch_ != epoch_ || received_epoch_ != epoch_; }

  /// The bytes to write next; empty, if there are none now.
  [[nodiscard]] ConstHostSpan to_write();
  void wrote(std::size_t count);
  /// Where to read to next; empty, if the bytes that come next are not wanted now.
  [[nodiscard]] HostSpan to_read();
  /// Errors: invalid_argument, naming both collectives, where the peer has begun another one; corrupted.
  Result<void> read(std::size_t count);

 private:
  struct Header;
  /// What the bytes are that come next.
  enum class Incoming : std::uint8_t { header, wanted, unwanted, early };

  /// A place in the pieces of the collective in progress.
  struct Place {
    std::size_t piece = 0;
    std::uint64_t offset = 0;  // in the piece
    std::uint64_t total = 0;   // in all of them
  };

  void advance(Place& place, std::uint64_t count) const;
  [[nodiscard]] std::uint64_t left_in_piece(const Place& place) const;
  [[nodiscard]] Header header_of(std::uint64_t offset, std::uint64_t bytes) const;
  void next_chunk();
  Result<void> take_header();
  void expect_header();
  void end_if_done();
  [[nodiscard]] static std::string text_of(const Header& header);

  const std::uint32_t rank_, peer_;
  std::optional<LinkOperation> operation_;
  std::uint64_t number_ = 0;  // of collectives begun in this epoch
  std::uint64_t epoch_ = 0, sent_epoch_ = 0, received_epoch_ = 0;

  std::array<std::byte, header_bytes> header_out_{}, header_in_{};
  std::size_t header_left_ = 0, header_read_ = 0;
  ConstHostSpan chunk_out_;                // what is left of the chunk that is being sent
  std::uint64_t size_ = 0, contents_ = 0;  // of all pieces, and a hash of them and their sizes
  Place sent_, received_;
  bool has_sent_ = false, has_received_ = false;  // a chunk of it, perhaps an empty one
  Incoming incoming_ = Incoming::header;
  std::uint64_t chunk_left_ = 0;  // of the chunk that is being received
  std::vector<std::byte> unwanted_;
};

}  // namespace penstock::zero
