#include "zero/launch/control_client.hpp"

#include "base/duration_text.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>

namespace penstock::zero::control {

namespace {

constexpr const char* operation = "ControlChannel";

}  // namespace

ControlClient::ControlClient(Hello hello, const Patience& patience)
    : hello_(std::move(hello)),
      patience_(patience),
      running_(*patience.clock, patience.heartbeat()),
      next_heartbeat_(running_.end_of(patience.heartbeat())),
      heard_(running_.elapsed()) {
  reader_.limit(payload_bytes_max);
}

void ControlClient::opened() {
  is_open_ = true;
  (void)running_.update();
  heard_ = running_.elapsed();
  send(hello_);
}

void ControlClient::received(std::span<const std::byte> bytes) {
  (void)running_.update();
  heard_ = running_.elapsed();
  has_heard_ = true;
  reader_.feed(bytes);
  while (!failure_) {
    auto message = reader_.next();
    if (!message) {
      failure_ = failure_of(Error(ErrorCode::peer_failed, operation)
                                .reason(rank_0() + " sends what cannot be understood")
                                .note("cause   " + message.error().message()));
      return;
    }
    if (!*message) return;
    take(**std::move(message));
  }
}

void ControlClient::take(Message message) {
  if (std::holds_alternative<Heartbeat>(message)) return;
  if (auto* const failure = std::get_if<Failure>(&message)) {
    failure_ = std::move(*failure);
    return;
  }
  if (auto* const welcome = std::get_if<Welcome>(&message);
      welcome != nullptr && !peers_ && welcome->peers.size() == hello_.ranks) {
    peers_ = std::move(welcome->peers);
    return;
  }
  if (auto* const gathered = std::get_if<Gathered>(&message); gathered != nullptr && peers_)
    return take(std::move(*gathered));
  if (auto* const cause = std::get_if<Interrupt>(&message); cause != nullptr && peers_)
    return take(std::move(*cause));
  if (auto* const absent = std::get_if<Absent>(&message); absent != nullptr && peers_)
    return take(std::move(*absent));
  fail_out_of_turn(message.index());
}

void ControlClient::take(Gathered gathered) {
  Gathering& mine = of(gathered.by);
  const bool in_turn = gathered.epoch == epoch_ && gathered.round + 1 == mine.rounds &&
                       (!mine.gathered || interruption_) && gathered.all.size() == hello_.ranks;
  if (!in_turn) return fail_out_of_turn(Message(Gathered()).index());
  mine.absent.clear();
  if (waits_for_epoch_) return;  // it was complete before the server knew of the interruption
  if (!interruption_) {
    mine.gathered = std::move(gathered.all);
    return;
  }
  mine.gathered.reset();  // of before: a rank that recovers does not ask for it
  interruption_.reset();
  recovers_ = false;
  ++recoveries_;
}

void ControlClient::take(Interrupt cause) {
  if (cause.epoch != epoch_ + 1) return fail_out_of_turn(Message(Interrupt()).index());
  epoch_ = cause.epoch;
  // What is complete is so on every rank: rank 0 has sent it before this.
  for (Gathering& one : gatherings_) one = {.rounds = 0, .gathered = std::move(one.gathered)};
  interruption_ = std::move(cause.text);
  waits_for_epoch_ = false;
  if (recovers_) send_recovery();
}

void ControlClient::take(Absent absent) {
  const auto is_no_rank = [this](std::uint32_t rank) { return rank >= hello_.ranks; };
  if (absent.epoch != epoch_ || std::ranges::any_of(absent.ranks, is_no_rank))
    return fail_out_of_turn(Message(Absent()).index());
  Gathering& mine = of(absent.by);
  const auto is_absent = [&absent](std::uint32_t rank) {
    return std::ranges::find(absent.ranks, rank) != absent.ranks.end();
  };
  // This rank is not in that gathering, or its part had not come when rank 0 sent this.
  if (absent.round + 1 != mine.rounds || is_absent(hello_.rank)) return;
  mine.absent = std::move(absent.ranks);
}

void ControlClient::fail_out_of_turn(std::size_t kind) {
  failure_ = failure_of(Error(ErrorCode::peer_failed, operation)
                            .reason(rank_0() + " sends a message out of turn")
                            .object("message of kind " + std::to_string(kind)));
}

void ControlClient::closed(const std::string& why) {
  is_open_ = false;
  if (failure_ || has_left_) return;
  if (!has_heard_) {
    failure_ = failure_of(not_rank_0().note("cause   " + why));
    return;
  }
  failure_ = failure_of(Error(ErrorCode::peer_failed, operation)
                            .reason(rank_0() + " has ended: its control connection is closed")
                            .note("cause   " + why)
                            .advice("look for its first error, and for the kernel's out-of-memory killer "
                                    "(dmesg)"));
}

void ControlClient::pass_time() {
  (void)running_.update();
  if (running_.elapsed() < next_heartbeat_) return;
  next_heartbeat_ = running_.end_of(patience_.heartbeat());
  if (!is_open_ || failure_ || has_left_) return;
  if (!has_heard_ && running_.elapsed() - heard_ >= std::min(patience_.join, patience_.silence)) {
    failure_ = failure_of(not_rank_0());
    return;
  }
  if (running_.elapsed() - heard_ >= patience_.silence) {
    failure_ = failure_of(
        Error(ErrorCode::peer_failed, operation)
            .reason(rank_0() + " has shown no sign of life for " + duration_text(patience_.silence))
            .advice("look whether its host or its network is down, or the process stopped"));
    return;
  }
  send(Heartbeat{});
}

Error ControlClient::not_rank_0() const {
  return Error(ErrorCode::peer_failed, operation)
      .reason("what listens on the port does not answer as rank 0 of this job")
      .advice(
          "look which program listens on the port after MASTER_PORT of rank 0's host, or set MASTER_PORT to "
          "another number, the same on every rank");
}

TimePoint ControlClient::next_due() const {
  return running_.next_update(next_heartbeat_);
}

void ControlClient::gather(Gatherer by, std::string label, std::vector<std::byte> bytes) {
  PENSTOCK_CHECK(peers_ && !of(by).gathered && !interruption_);
  send(Gather{.by = by,
              .epoch = epoch_,
              .round = of(by).rounds++,
              .label = std::move(label),
              .bytes = std::move(bytes)});
}

std::optional<std::vector<std::vector<std::byte>>> ControlClient::take_gathered(Gatherer by) {
  return std::exchange(of(by).gathered, std::nullopt);
}

void ControlClient::interrupt(std::string cause) {
  if (interruption_ || failure_ || has_left_ || !peers_) return;
  interruption_ = cause;
  waits_for_epoch_ = true;
  send(Interrupt{.epoch = epoch_, .text = std::move(cause)});
}

void ControlClient::recover() {
  PENSTOCK_CHECK(interruption_ && !recovers_);
  recovers_ = true;
  if (!waits_for_epoch_) send_recovery();
}

void ControlClient::send_recovery() {
  send(Gather{.by = Gatherer::collectives,
              .epoch = epoch_,
              .round = of(Gatherer::collectives).rounds++,
              .label = "recovery",
              .bytes = {}});
}

void ControlClient::fail(Failure failure) {
  if (failure_ || has_left_) return;
  failure_ = std::move(failure);
  send(*failure_);
}

void ControlClient::leave() {
  if (!std::exchange(has_left_, true) && !failure_) send(Leave{});
}

void ControlClient::send(const Message& message) {
  if (!is_open_) return;
  const std::vector<std::byte> frame = encode(message);
  outgoing_.insert(outgoing_.end(), frame.begin(), frame.end());
}

std::string ControlClient::rank_0() const {
  if (!peers_) return "rank 0";
  const Peer& peer = peers_->front();
  return "rank 0 (" + peer.host + ", process " + std::to_string(peer.process) + ")";
}

}  // namespace penstock::zero::control
