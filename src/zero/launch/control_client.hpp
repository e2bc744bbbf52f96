#pragma once

#include "tiers/io/running_time.hpp"
#include "zero/launch/control_message.hpp"
#include "zero/launch/patience.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::control {

/// A rank's end of the control channel. As ControlServer it moves no bytes: its owner calls it with what has happened,
/// and sends what take_outgoing() returns. Used by one thread.
class ControlClient {
 public:
  ControlClient(Hello hello, const Patience& patience);

  /// The connection to rank 0 is made: sends the greeting.
  void opened();
  void received(std::span<const std::byte> bytes);
  /// `why`: as the system says.
  void closed(const std::string& why);
  /// Call when next_due() has come, or earlier.
  void pass_time();
  [[nodiscard]] TimePoint next_due() const;
  [[nodiscard]] std::vector<std::byte> take_outgoing() { return std::exchange(outgoing_, {}); }

  /// All ranks of the job, by their numbers, once all have joined.
  [[nodiscard]] const std::optional<std::vector<Peer>>& peers() const { return peers_; }
  /// Gives `bytes` to all ranks, one gathering of `by` at a time. Precondition: peers(), no interruption(), and
  /// take_gathered() has returned the last one.
  void gather(Gatherer by, std::string label, std::vector<std::byte> bytes);
  /// The bytes of every rank, once, when they are here.
  [[nodiscard]] std::optional<std::vector<std::vector<std::byte>>> take_gathered(Gatherer by);
  /// The ranks that had not come to the gathering in progress at rank 0's last sign of life; empty before one.
  [[nodiscard]] const std::vector<std::uint32_t>& absent(Gatherer by) const {
    return gatherings_[static_cast<std::size_t>(by)].absent;
  }
  /// The gathering in progress will not complete, on any rank. Without effect while there is an interruption().
  void interrupt(std::string cause);
  /// The cause, until every rank has called recover().
  [[nodiscard]] const std::optional<std::string>& interruption() const { return interruption_; }
  /// Precondition: interruption(), and recover() was not called since.
  void recover();
  /// How many interruptions have ended.
  [[nodiscard]] std::uint64_t recoveries() const { return recoveries_; }
  /// Tells every rank that this one has failed.
  void fail(Failure failure);
  /// The rank has done its work: that the connection ends is no failure then.
  void leave();
  /// The first failure of a rank of the job, this one included.
  [[nodiscard]] const std::optional<Failure>& failure() const { return failure_; }

 private:
  void take(Message message);
  void take(Gathered gathered);
  void take(Interrupt cause);
  void take(Absent absent);
  void send_recovery();
  void fail_out_of_turn(std::size_t kind);
  void send(const Message& message);
  [[nodiscard]] std::string rank_0() const;
  [[nodiscard]] Error not_rank_0() const;

  const Hello hello_;
  const Patience patience_;
  tiers::RunningTime running_;
  TimePoint next_heartbeat_, heard_;
  FrameReader reader_;
  std::optional<std::vector<Peer>> peers_;
  /// Of one Gatherer: how many it has begun in this epoch, and the bytes of the last one.
  struct Gathering {
    std::uint64_t rounds = 0;
    std::optional<std::vector<std::vector<std::byte>>> gathered;
    std::vector<std::uint32_t> absent{};
  };
  [[nodiscard]] Gathering& of(Gatherer by) { return gatherings_[static_cast<std::size_t>(by)]; }

  std::array<Gathering, gatherers> gatherings_;
  std::uint64_t epoch_ = 0, recoveries_ = 0;
  std::optional<std::string> interruption_;
  /// Of the recovery: from the call of interrupt() until its epoch has begun; recover() was called.
  bool waits_for_epoch_ = false, recovers_ = false;
  std::optional<Failure> failure_;
  bool is_open_ = false, has_left_ = false, has_heard_ = false;
  std::vector<std::byte> outgoing_;
};

}  // namespace penstock::zero::control
