#pragma once

#include <penstock/base/result.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace penstock::zero::control {

// The messages of the control channel. A frame is a header of 12 bytes (magic, version, kind, size of the payload) and
// the payload; numbers are little-endian, a text or an array is its size and its elements.

constexpr std::uint16_t protocol_version = 2;

/// The first message of a rank.
struct Hello {
  std::string job, build, machine, host;  ///< `machine` is equal for ranks that share host memory and disks
  std::uint32_t rank = 0, ranks = 0, process = 0;
  bool operator==(const Hello&) const = default;
};
struct Peer {
  std::string machine, host;
  std::uint32_t process = 0;
  bool operator==(const Peer&) const = default;
};
/// To every rank, once all have joined: rank r is peers[r].
struct Welcome {
  std::vector<Peer> peers;
  bool operator==(const Welcome&) const = default;
};
/// Who gathers: the gatherings of one have an order, and those of different ones run side by side.
enum class Gatherer : std::uint8_t { collectives, trainer };
constexpr std::size_t gatherers = 2;

/// One rank's bytes for a gathering; `label` says what they are, and is equal on all ranks. Rounds are counted from 0
/// in each epoch; an interruption begins the next epoch.
struct Gather {
  Gatherer by{};
  std::uint64_t epoch = 0, round = 0;
  std::string label;
  std::vector<std::byte> bytes;
  bool operator==(const Gather&) const = default;
};
/// To every rank: those of rank r are all[r].
struct Gathered {
  Gatherer by{};
  std::uint64_t epoch = 0, round = 0;
  std::vector<std::vector<std::byte>> all;
  bool operator==(const Gathered&) const = default;
};
/// The gathering in progress will not complete. From a rank, with the epoch that it knows; then to every rank, with the
/// epoch that begins.
struct Interrupt {
  std::uint64_t epoch = 0;
  std::string text;  ///< the cause
  bool operator==(const Interrupt&) const = default;
};
/// A sign of life, in both directions.
struct Heartbeat {
  bool operator==(const Heartbeat&) const = default;
};
/// The job has failed: from the rank that knows it, and then to every rank.
struct Failure {
  ErrorCode code{};
  std::string text;  ///< what a user reads, on every rank
  bool operator==(const Failure&) const = default;
};
[[nodiscard]] Failure failure_of(const Error& error);
/// With the message of the error of which the failure was made.
[[nodiscard]] Error error_of(const Failure& failure);
/// The rank has done its work.
struct Leave {
  bool operator==(const Leave&) const = default;
};

/// To every rank, with the signs of life: the ranks that have not come to a gathering to which others have.
struct Absent {
  Gatherer by{};
  std::uint64_t epoch = 0, round = 0;
  std::vector<std::uint32_t> ranks;
  bool operator==(const Absent&) const = default;
};

using Message = std::variant<Hello, Welcome, Gather, Gathered, Interrupt, Heartbeat, Failure, Leave, Absent>;

/// The largest payloads: of a connection that has not said which rank it is, and of a rank.
constexpr std::uint32_t hello_bytes_max = 4096;
/// What one gather holds of all ranks, and a message with it, with sizes and a label.
constexpr std::uint32_t gathered_bytes_max = 1 << 20, payload_bytes_max = gathered_bytes_max + (1 << 16);

/// The frame of a message. Precondition: its payload is not above payload_bytes_max.
[[nodiscard]] std::vector<std::byte> encode(const Message& message);
/// The bytes of a Gathered's payload for `ranks` ranks that each give `bytes`.
[[nodiscard]] std::uint64_t gathered_bytes(std::uint64_t ranks, std::uint64_t bytes);

/// Cuts a stream of bytes into messages. Used by one thread.
class FrameReader {
 public:
  /// Messages above `payload_max` are refused.
  void limit(std::uint32_t payload_max) { payload_max_ = payload_max; }
  void feed(std::span<const std::byte> bytes);
  /// The next whole message, if there is one. Errors: corrupted, for bytes that are no message; the reader then returns
  /// nothing else.
  [[nodiscard]] Result<std::optional<Message>> next();
  /// Whether the stream may end here.
  [[nodiscard]] bool is_between_frames() const { return begin_ == bytes_.size(); }

 private:
  std::vector<std::byte> bytes_;
  std::size_t begin_ = 0;
  std::uint32_t payload_max_ = hello_bytes_max;
};

}  // namespace penstock::zero::control
