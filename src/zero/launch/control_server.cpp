#include "zero/launch/control_server.hpp"

#include "base/duration_text.hpp"
#include "zero/comm/job_control.hpp"

#include <algorithm>

namespace penstock::zero::control {

namespace {

constexpr const char* operation = "ControlChannel";

std::string name_of(const Hello& hello) {
  return "rank " + std::to_string(hello.rank) + " (" + hello.host + ", process " +
         std::to_string(hello.process) + ")";
}

}  // namespace

ControlServer::ControlServer(std::string job, std::string build, std::uint32_t ranks,
                             const Patience& patience)
    : job_(std::move(job)),
      build_(std::move(build)),
      patience_(patience),
      running_(*patience.clock, patience.heartbeat()),
      next_heartbeat_(running_.end_of(patience.heartbeat())),
      end_of_join_(running_.end_of(patience.join)),
      members_(ranks),
      gatherings_{} {
  begin_epoch();
}

void ControlServer::opened(ConnectionId id, std::string address) {
  (void)running_.update();
  connections_[id] = {.address = std::move(address), .reader = {}, .heard = running_.elapsed(), .rank = {}};
  if (connections_.size() <= 2 * members_.size() + strangers_max) return;
  // The one that has been silent for longest: a rank says at once who it is.
  const auto oldest =
      std::ranges::find_if(connections_, [](const auto& one) { return !one.second.rank.has_value(); });
  refuse(oldest->first,
         Error(ErrorCode::in_use, operation).reason("it sends no greeting, and too many connections wait"));
}

void ControlServer::received(ConnectionId id, std::span<const std::byte> bytes) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;  // it was refused
  (void)running_.update();
  found->second.heard = running_.elapsed();
  found->second.reader.feed(bytes);
  // A message may end the connection.
  for (auto at = found; at != connections_.end(); at = connections_.find(id)) {
    auto message = at->second.reader.next();
    if (!message) {
      if (!at->second.rank) return refuse(id, message.error());
      const Hello& hello = members_[*at->second.rank].hello;
      return fail(Error(ErrorCode::peer_failed, operation)
                      .reason(name_of(hello) + " sends what cannot be understood")
                      .note("cause   " + message.error().message()));
    }
    if (!*message) return;
    take(id, **std::move(message));
  }
}

void ControlServer::take(ConnectionId id, Message message) {
  const std::optional<std::uint32_t> rank = connections_.at(id).rank;
  if (!rank) {
    if (auto* const hello = std::get_if<Hello>(&message)) return join(id, std::move(*hello));
    return refuse(id, Error(ErrorCode::corrupted, operation).reason("its first message is no greeting"));
  }
  if (std::holds_alternative<Heartbeat>(message)) return;
  if (std::holds_alternative<Leave>(message)) return leave(*rank);
  if (auto* const mine = std::get_if<Gather>(&message)) return gather(*rank, std::move(*mine));
  if (auto* const cause = std::get_if<Interrupt>(&message)) return interrupt(std::move(*cause));
  if (auto* const failure = std::get_if<Failure>(&message)) return fail(std::move(*failure));
  fail(Error(ErrorCode::peer_failed, operation)
           .reason(name_of(members_[*rank].hello) + " sends a message that only rank 0 may send"));
}

void ControlServer::join(ConnectionId id, Hello hello) {
  if (hello.job != job_) {
    return refuse(id, Error(ErrorCode::permission, operation)
                          .reason("the process belongs to another job than the rank 0 that it has reached")
                          .wanted('"' + job_ + '"')
                          .got('"' + hello.job + '"')
                          .advice("give each job a MASTER_PORT of its own, and all ranks of a job the same "
                                  "PENSTOCK_JOB"));
  }
  if (failure_) {
    outgoing_.push_back({id, encode(*failure_), true});
    connections_.erase(id);
    return;
  }
  auto wrong = disagreement(hello);
  if (wrong && all_joined()) return refuse(id, *wrong);  // it comes to a job that runs, which goes on
  if (wrong) {
    outgoing_.push_back({id, encode(failure_of(*wrong)), true});
    connections_.erase(id);
    return fail(*std::move(wrong));
  }
  Connection& connection = connections_.at(id);
  connection.rank = hello.rank;
  connection.reader.limit(payload_bytes_max);
  members_[hello.rank] = {.connection = id, .hello = std::move(hello), .left = false};
  if (!all_joined()) return;
  Welcome welcome;
  for (const Member& member : members_)
    welcome.peers.push_back({member.hello.machine, member.hello.host, member.hello.process});
  broadcast(welcome);
}

/// Why a rank of this job cannot take part in it.
std::optional<Error> ControlServer::disagreement(const Hello& hello) const {
  const auto error = [](ErrorCode code) { return Error(code, operation); };
  if (hello.ranks != members_.size()) {
    return error(ErrorCode::invalid_argument)
        .reason("ranks were started with different numbers of ranks")
        .object(name_of(hello))
        .wanted(std::to_string(members_.size()) + ", as rank 0")
        .got(hello.ranks)
        .advice("start every rank with the same WORLD_SIZE or --world");
  }
  if (hello.rank >= members_.size()) {
    return error(ErrorCode::invalid_argument)
        .object(name_of(hello))
        .wanted("a rank below " + std::to_string(members_.size()))
        .got(hello.rank)
        .advice("ranks are counted from 0");
  }
  if (hello.build != build_) {
    return error(ErrorCode::invalid_argument)
        .reason("ranks run different builds of the program")
        .object(name_of(hello))
        .wanted(build_ + ", as rank 0")
        .got(hello.build)
        .advice("install the same build on every host");
  }
  const Member& member = members_[hello.rank];
  if (member.left) {
    return error(ErrorCode::failed_state)
        .reason("rank " + std::to_string(hello.rank) + " has left the job, and none comes in its place")
        .object(name_of(member.hello) + " and " + name_of(hello))
        .advice("end the other ranks, and start all of them again");
  }
  if (!member.connection) return std::nullopt;
  return error(ErrorCode::already_exists)
      .reason("two processes are rank " + std::to_string(hello.rank))
      .object(name_of(member.hello) + " and " + name_of(hello))
      .advice("give each process a RANK or --rank of its own");
}

/// The first of an epoch. Those that were sent before their ranks knew of it are without effect.
void ControlServer::interrupt(Interrupt cause) {
  if (cause.epoch != epoch_) return;
  cause.epoch = ++epoch_;
  begin_epoch();
  broadcast(cause);
}

void ControlServer::begin_epoch() {
  for (Gathering& gathering : gatherings_)
    gathering = {.round = 0, .of_ranks = std::vector<std::optional<Gather>>(members_.size())};
}

void ControlServer::gather(std::uint32_t rank, Gather mine) {
  if (mine.epoch < epoch_) return;
  const std::string name = name_of(members_[rank].hello);
  auto& [round, of_ranks] = gatherings_[static_cast<std::size_t>(mine.by)];
  if (!all_joined() || mine.epoch != epoch_ || mine.round != round || of_ranks[rank]) {
    return fail(Error(ErrorCode::peer_failed, operation).reason(name + " gathers out of turn"));
  }
  for (std::uint32_t other = 0; other < members_.size(); ++other) {
    if (members_[other].left) return fail(has_left(other));
    if (!of_ranks[other] || of_ranks[other]->label == mine.label) continue;
    if (of_ranks[other]->label == JobControl::leave_label) return fail(has_left(other));
    if (mine.label == JobControl::leave_label) return fail(has_left(rank));
    return fail(Error(ErrorCode::invalid_argument, operation)
                    .reason("ranks exchange different things")
                    .wanted(of_ranks[other]->label + ", as " + name_of(members_[other].hello))
                    .got(mine.label + ", of " + name)
                    .advice("make the same calls in the same order on every rank"));
  }
  Gathered gathered{.by = mine.by, .epoch = epoch_, .round = round, .all = {}};
  of_ranks[rank] = std::move(mine);
  std::uint64_t size = 0;
  for (auto& one : of_ranks) {
    if (!one) return;
    size += one->bytes.size();
  }
  if (size > gathered_bytes_max || gathered_bytes(members_.size(), 0) + size > payload_bytes_max) {
    return fail(Error(ErrorCode::invalid_argument, operation)
                    .reason("ranks exchange too many bytes")
                    .object(of_ranks[0]->label)
                    .wanted("at most " + std::to_string(gathered_bytes_max) + " of all ranks")
                    .got(size));
  }
  for (auto& one : of_ranks) {
    gathered.all.push_back(std::move(one->bytes));
    one.reset();
  }
  ++round;
  broadcast(gathered);
}

bool ControlServer::is_member(ConnectionId connection) const {
  const auto found = connections_.find(connection);
  return found != connections_.end() && found->second.rank;
}

Error ControlServer::has_left(std::uint32_t rank) const {
  return Error(ErrorCode::peer_failed, operation)
      .reason(name_of(members_[rank].hello) + " has left, and others still wait for it");
}

void ControlServer::leave(std::uint32_t rank) {
  members_[rank].left = true;
  const bool waited_for = std::any_of(gatherings_.begin(), gatherings_.end(), [](const Gathering& gathering) {
    return std::any_of(gathering.of_ranks.begin(), gathering.of_ranks.end(),
                       [](const auto& one) { return one.has_value(); });
  });
  if (waited_for || !all_joined()) fail(has_left(rank));
}

void ControlServer::closed(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const Connection connection = std::move(found->second);
  connections_.erase(found);
  if (!connection.rank) {
    if (!connection.reader.is_between_frames())
      messages_.push_back("refused the connection of " + connection.address + ": it ended within a message");
    return;
  }
  Member& member = members_[*connection.rank];
  member.connection.reset();
  if (member.left) return;
  fail(Error(ErrorCode::peer_failed, operation)
           .reason(name_of(member.hello) + " has ended: its connection is closed")
           .advice("look for its first error, and for the kernel's out-of-memory killer (dmesg)"));
}

void ControlServer::pass_time() {
  (void)running_.update();
  if (running_.elapsed() < next_heartbeat_) return;
  next_heartbeat_ = running_.end_of(patience_.heartbeat());
  check_strangers();
  check_members();
  if (failure_) return;
  broadcast(Heartbeat{});
  tell_absent();
}

void ControlServer::tell_absent() {
  for (std::size_t by = 0; by < gatherers; ++by) {
    const auto& [round, of_ranks] = gatherings_[by];
    Absent absent{.by = Gatherer(by), .epoch = epoch_, .round = round, .ranks = {}};
    for (std::uint32_t rank = 0; rank < of_ranks.size(); ++rank) {
      if (!of_ranks[rank]) absent.ranks.push_back(rank);
    }
    if (absent.ranks.size() < of_ranks.size()) broadcast(absent);
  }
}

void ControlServer::check_strangers() {
  std::vector<ConnectionId> silent;
  for (const auto& [id, connection] : connections_) {
    if (!connection.rank && running_.elapsed() - connection.heard >= patience_.silence) silent.push_back(id);
  }
  for (const ConnectionId id : silent)
    refuse(id, Error(ErrorCode::deadline_exceeded, operation).reason("it sends no greeting"));
}

void ControlServer::check_members() {
  if (failure_) return;
  for (const Member& member : members_) {
    if (!member.connection || member.left) continue;
    if (running_.elapsed() - connections_.at(*member.connection).heard < patience_.silence) continue;
    return fail(Error(ErrorCode::peer_failed, operation)
                    .reason(name_of(member.hello) + " has shown no sign of life for " +
                            duration_text(patience_.silence))
                    .advice("look whether its host or its network is down, or the process stopped"));
  }
  if (all_joined() || running_.elapsed() < end_of_join_) return;
  Error late = Error(ErrorCode::deadline_exceeded, operation)
                   .reason("ranks are missing in the job")
                   .wanted(std::to_string(members_.size()) + " ranks")
                   .got(missing() + " did not come in " + duration_text(patience_.join))
                   .advice(
                       "look for the first error of the missing ranks, and whether their hosts reach rank 0 "
                       "at MASTER_ADDR");
  if (!last_refusal_.empty()) late = std::move(late).note(last_refusal_);
  fail(late);
}

std::string ControlServer::missing() const {
  std::string ranks;
  for (std::uint32_t rank = 0; rank < members_.size(); ++rank) {
    if (!members_[rank].connection) ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(rank);
  }
  return ranks;
}

TimePoint ControlServer::next_due() const {
  return running_.next_update(next_heartbeat_);
}

bool ControlServer::has_ended() const {
  return failure_ ||
         std::all_of(members_.begin(), members_.end(), [](const Member& one) { return one.left; });
}

bool ControlServer::all_joined() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& one) { return one.connection.has_value() || one.left; });
}

/// The job goes on.
void ControlServer::refuse(ConnectionId id, const Error& error) {
  outgoing_.push_back({id, encode(failure_of(error)), true});
  last_refusal_ = "refused the connection of " + connections_.at(id).address + ": " + error.message();
  messages_.push_back(last_refusal_);
  connections_.erase(id);
}

void ControlServer::fail_as_rank_0(const Error& error) {
  fail(Error(ErrorCode::peer_failed, operation)
           .reason("rank 0 has failed")
           .note("cause   " + error.message()));
}
void ControlServer::fail(const Error& error) {
  fail(failure_of(error));
}
void ControlServer::fail(Failure failure) {
  if (failure_) return;
  failure_ = std::move(failure);
  broadcast(*failure_);
}

void ControlServer::broadcast(const Message& message) {
  const std::vector<std::byte> frame = encode(message);
  for (const Member& member : members_) {
    if (member.connection && !member.left) outgoing_.push_back({*member.connection, frame, false});
  }
}

}  // namespace penstock::zero::control
