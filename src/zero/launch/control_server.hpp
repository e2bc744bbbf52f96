#pragma once

#include "tiers/io/running_time.hpp"
#include "zero/launch/control_message.hpp"
#include "zero/launch/patience.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::control {

using ConnectionId = std::uint64_t;

/// What is to be sent on a connection, which is then closed if `last`.
struct Outgoing {
  ConnectionId to{};
  std::vector<std::byte> frame;
  bool last = false;
};

/// Rank 0's end of the control channel, to which all ranks connect, rank 0 too: brings the ranks of a job together,
/// gathers their bytes, and tells every rank the first failure of one.
///
/// Moves no bytes: its owner calls it with what has happened, and sends what it returns. Only time in which its owner
/// calls pass_time() counts, so that a process that was stopped does not take its peers for dead. Used by one thread.
class ControlServer {
 public:
  ControlServer(std::string job, std::string build, std::uint32_t ranks, const Patience& patience);

  /// `address` is the peer's, for messages.
  void opened(ConnectionId connection, std::string address);
  void received(ConnectionId connection, std::span<const std::byte> bytes);
  void closed(ConnectionId connection);
  /// Call when next_due() has come, or earlier.
  void pass_time();
  [[nodiscard]] TimePoint next_due() const;
  [[nodiscard]] std::vector<Outgoing> take_outgoing() { return std::exchange(outgoing_, {}); }
  /// What a user may want to know, one per line: the connections that were refused.
  [[nodiscard]] std::vector<std::string> take_messages() { return std::exchange(messages_, {}); }
  /// The process of rank 0 has failed before it was connected: tells the ranks that are here.
  void fail_as_rank_0(const Error& error);
  /// The ranks that have not come: "rank 1, rank 3".
  [[nodiscard]] std::string missing() const;
  /// Whether a rank has greeted on this connection.
  [[nodiscard]] bool is_member(ConnectionId connection) const;
  /// Whether every rank has left, or knows of the failure.
  [[nodiscard]] bool has_ended() const;

 private:
  struct Connection {
    std::string address;
    FrameReader reader;
    TimePoint heard{};  // running time
    std::optional<std::uint32_t> rank;
  };
  struct Member {
    std::optional<ConnectionId> connection;
    Hello hello;
    bool left = false;
  };

  void take(ConnectionId id, Message message);
  void join(ConnectionId id, Hello hello);
  void gather(std::uint32_t rank, Gather gather);
  void interrupt(Interrupt cause);
  void begin_epoch();
  void leave(std::uint32_t rank);
  void refuse(ConnectionId id, const Error& error);
  void fail(const Error& error);
  void fail(Failure failure);
  void broadcast(const Message& message);
  void tell_absent();
  void check_members();
  void check_strangers();
  [[nodiscard]] Error has_left(std::uint32_t rank) const;
  [[nodiscard]] std::optional<Error> disagreement(const Hello& hello) const;
  [[nodiscard]] bool all_joined() const;

  static constexpr std::size_t strangers_max = 64;

  const std::string job_, build_;
  const Patience patience_;
  tiers::RunningTime running_;
  TimePoint next_heartbeat_, end_of_join_;
  std::map<ConnectionId, Connection> connections_;
  std::vector<Member> members_;
  /// Of one Gatherer: the round in progress, and what ranks have given to it.
  struct Gathering {
    std::uint64_t round = 0;
    std::vector<std::optional<Gather>> of_ranks;
  };
  std::array<Gathering, gatherers> gatherings_;
  std::uint64_t epoch_ = 0;
  std::optional<Failure> failure_;
  std::vector<Outgoing> outgoing_;
  std::vector<std::string> messages_;
  std::string last_refusal_;
};

}  // namespace penstock::zero::control
