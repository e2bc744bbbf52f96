// What the thread of a control channel does.
#include "zero/launch/tcp_control_channel.hpp"

#include "base/build_id.hpp"
#include "base/duration_text.hpp"
#include "base/start_thread.hpp"
#include "zero/launch/listen.hpp"
#include "zero/launch/network_error.hpp"

#include <unistd.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <system_error>

namespace penstock::zero {

namespace {

using asio::ip::tcp;
using control::ConnectionId;
using namespace std::chrono_literals;

constexpr const char* operation = "ControlChannel::join";
constexpr std::chrono::milliseconds retry_after = 100ms, attempt_max = 5s;
/// How long rank 0, which listens already, tries to reach itself: its resolver may not be ready at once.
constexpr TimePoint own_host_max = 5s;
/// Of messages that no caller takes, no more are kept.
constexpr std::size_t messages_max = 100;

/// Equal in all containers of a machine, which share its memory and disks.
std::string machine_id(const std::string& host) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id.empty() ? host : id;
}

control::Hello greeting(const ControlChannel::Options& options) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return {.job = options.job,
          .build = build_id(),
          .machine = machine_id(host.data()),
          .host = host.data(),
          .rank = options.rank,
          .ranks = options.ranks,
          .process = static_cast<std::uint32_t>(::getpid())};
}

std::string text_of(const tcp::socket& socket) {
  asio::error_code error;
  const tcp::endpoint peer = socket.remote_endpoint(error);
  return error ? "an unknown address" : to_string(Endpoint{peer.address().to_string(), peer.port()});
}

}  // namespace

TcpControlChannel::TcpControlChannel(const Options& options)
    : options_(options), rank_0_(options.rank_0), client_(greeting(options), options.patience) {}

/// Errors name the port, because a user can choose another.
Result<void> TcpControlChannel::listen() {
  const auto& free_port = options_.free_port;
  const std::string at = free_port && !free_port->only_here ? "" : rank_0_.host;
  const asio::error_code error = zero::listen(acceptor_, at, free_port ? 0 : rank_0_.port);
  if (!error) {
    server_.emplace(options_.job, build_id(), options_.ranks, options_.patience);
    if (!free_port) return ok();
    rank_0_.port = acceptor_.local_endpoint().port();
    return free_port->tell(rank_0_.port);
  }
  const bool in_use = error == asio::error::address_in_use;
  if (!in_use) return network_error(operation, "rank 0 cannot listen at " + to_string(rank_0_), error);
  return Error(ErrorCode::in_use, operation)
      .reason("rank 0 cannot listen: " + error.message())
      .object(free_port ? "a free port"
                        : "port " + std::to_string(rank_0_.port) + ", the one after MASTER_PORT")
      .advice(
          "set MASTER_PORT to another number, the same on every rank; if two processes were started as rank "
          "0, give "
          "each a RANK of its own");
}

Result<void> TcpControlChannel::start() {
  began_ = options_.patience.clock->now();
  publish();
  if (server_) asio::post(context_, [this] { accept(); });
  asio::post(context_, [this] {
    connect();
    arm_timer();
  });
  PENSTOCK_TRY_ASSIGN(thread_, start_thread(operation, "the control channel", [this] {
                        const auto work = asio::make_work_guard(context_);
                        while (!run()) {
                        }
                      }));
  return ok();
}

/// Until the channel ends. False, if a handler could not have what it needs of the system: the rank has failed then.
bool TcpControlChannel::run() {
  try {
    context_.run();
    return true;
  } catch (const std::system_error& refused) {  // such as the thread of the resolver
    const Error error = network_error(operation, "the control channel cannot go on", refused.code());
    post([this, error] { end_with(error); });
    return false;
  }
}

void TcpControlChannel::leave() {
  leaves_ = true;
  asio::error_code ignored;
  acceptor_.close(ignored);
  client_.leave();
  send();
  if (to_rank_0_) to_rank_0_->end();
  publish();
}

/// Whether no other rank needs this end any more. After a failure its peers only need to be told.
bool TcpControlChannel::has_ended() const {
  if (!leaves_) return false;
  const auto ended = [this](const std::shared_ptr<control::Connection>& one) {
    return !one->is_open() || (client_.failure() && one->is_idle());
  };
  if (to_rank_0_ && !ended(to_rank_0_)) return false;
  return !server_ ||
         (server_->has_ended() && std::all_of(connections_.begin(), connections_.end(), [&](const auto& one) {
            return !server_->is_member(one.first) || ended(one.second);
          }));
}

void TcpControlChannel::connect() {
  if (client_.failure() || leaves_) return;
  const auto& [host, port] = rank_0_;
  resolver_.async_resolve(host, std::to_string(port),
                          [this](asio::error_code error, const tcp::resolver::results_type& found) {
                            const bool may_be_found_later = error == asio::error::host_not_found_try_again;
                            if (error && server_ && !may_be_found_later)
                              return end_without_own_host(error.message());
                            if (error) return retry(error.message());
                            addresses_of_rank_0_.clear();
                            for (const auto& one : found) addresses_of_rank_0_.push_back(one.endpoint());
                            connect_to(0);
                          });
}

/// Of the host's addresses, each has a time of its own.
void TcpControlChannel::connect_to(std::size_t number) {
  connecting_.emplace(context_);
  attempt_.expires_after(attempt_max);
  attempt_.async_wait([this](asio::error_code cancelled) {
    asio::error_code ignored;
    if (!cancelled && connecting_) connecting_->close(ignored);
  });
  connecting_->async_connect(addresses_of_rank_0_[number], [this, number](asio::error_code failed) {
    attempt_.cancel();
    // Where no program listens, a port of this machine may be connected with itself (simultaneous open).
    asio::error_code ignored;
    if (!failed && connecting_->local_endpoint(ignored) == connecting_->remote_endpoint(ignored))
      failed = asio::error::connection_refused;
    if (!failed) return open();
    if (is_exhausted(failed)) return end_with(network_error(operation, "rank 0 cannot be reached", failed));
    if (number + 1 < addresses_of_rank_0_.size()) return connect_to(number + 1);
    retry(failed == asio::error::operation_aborted ? "no answer" : failed.message());
  });
}

void TcpControlChannel::open() {
  close_in_children(connecting_->native_handle());
  note_addresses(*connecting_);
  to_rank_0_ = std::make_shared<control::Connection>(std::move(*connecting_));
  connecting_.reset();
  to_rank_0_->start(
      [this](std::span<const std::byte> bytes) {
        client_.received(bytes);
        send();
      },
      [this] { publish(); },
      [this](const std::string& why) {
        client_.closed(why);
        send();
      });
  client_.opened();
  send();
}

void TcpControlChannel::note_addresses(const tcp::socket& connected) {
  asio::error_code ignored;
  const std::lock_guard lock(mutex_);
  addresses_ = {.own = connected.local_endpoint(ignored).address().to_string(),
                .rank_0 = connected.remote_endpoint(ignored).address().to_string()};
}

/// Called by the thread, where this rank has failed. Rank 0 tells those that have reached it.
void TcpControlChannel::end_with(const Error& error) {
  client_.fail(control::failure_of(error));
  if (server_ && !to_rank_0_) server_->fail_as_rank_0(error);
  send();
}

void TcpControlChannel::retry(const std::string& reason) {
  attempt_.cancel();
  connecting_.reset();
  not_reached_ = reason;
  publish();
  const control::Patience& patience = options_.patience;
  const TimePoint elapsed = patience.clock->now() - began_;
  if (server_ && elapsed >= std::min(patience.join, own_host_max)) return end_without_own_host(reason);
  if (elapsed >= patience.join) {
    return end_with(
        Error(ErrorCode::deadline_exceeded, operation)
            .reason("rank 0 cannot be reached")
            .object(to_string(rank_0_))
            .got(reason + ", for " + duration_text(patience.join))
            .advice("look whether rank 0 runs, and whether MASTER_ADDR and MASTER_PORT name its host; "
                    "the port is the one after MASTER_PORT, which a firewall must let pass"));
  }
  retry_.expires_after(retry_after);
  retry_.async_wait([this](asio::error_code cancelled) {
    if (!cancelled) connect();
  });
}

/// The others cannot reach rank 0 either, so that there is no use in waiting for them.
void TcpControlChannel::end_without_own_host(const std::string& reason) {
  end_with(
      Error(ErrorCode::not_found, operation)
          .reason("rank 0 does not find itself at its own address")
          .object(to_string(rank_0_))
          .got(reason)
          .advice(
              "set MASTER_ADDR, or the host of --master, on every rank to a name or address of the "
              "machine of rank 0 that all ranks reach (getent ahosts NAME prints the addresses of a name)"));
}

void TcpControlChannel::accept() {
  acceptor_.async_accept([this](asio::error_code error, tcp::socket socket) {
    if (!error) {
      serve(std::move(socket));
      return accept();
    }
    if (leaves_) return;
    if (is_exhausted(error) && !client_.peers())
      return end_with(network_error(operation, "rank 0 cannot accept the connections of other ranks", error));
    accept_later_.expires_after(retry_after);
    accept_later_.async_wait([this](asio::error_code cancelled) {
      if (!cancelled) accept();
    });
  });
}

void TcpControlChannel::serve(tcp::socket socket) {
  close_in_children(socket.native_handle());
  const ConnectionId id = next_connection_++;
  const std::string address = text_of(socket);
  const auto connection = connections_[id] = std::make_shared<control::Connection>(std::move(socket));
  connection->start(
      [this, id](std::span<const std::byte> bytes) {
        server_->received(id, bytes);
        send();
      },
      [this] { publish(); },
      [this, id](const std::string&) {
        connections_.erase(id);
        server_->closed(id);
        send();
      });
  server_->opened(id, address);
  send();
}

void TcpControlChannel::arm_timer() {
  const TimePoint due = server_ ? std::min(client_.next_due(), server_->next_due()) : client_.next_due();
  timer_.expires_after(std::max<TimePoint>(due - options_.patience.clock->now(), 1ms));
  timer_.async_wait([this](asio::error_code cancelled) {
    if (cancelled) return;
    client_.pass_time();
    if (server_) server_->pass_time();
    send();
    arm_timer();
  });
}

/// Sends what both ends want to say, and tells callers what has changed.
void TcpControlChannel::send() {
  if (auto frames = client_.take_outgoing(); !frames.empty() && to_rank_0_)
    to_rank_0_->send(std::move(frames));
  if (server_) {
    for (control::Outgoing& out : server_->take_outgoing()) {
      const auto found = connections_.find(out.to);
      if (found == connections_.end()) continue;
      const auto connection = found->second;
      connection->send(std::move(out.frame), out.last);
    }
  }
  publish();
}

std::string TcpControlChannel::awaited() const {
  const std::string at = " at " + to_string(rank_0_);
  if (server_) return server_->missing() + " did not come yet" + at;
  if (to_rank_0_) return "rank 0" + at + " still awaits other ranks, and names them";
  return "rank 0 cannot be reached yet" + at + (not_reached_.empty() ? "" : ": " + not_reached_);
}

void TcpControlChannel::publish() {
  bool news = false;
  {
    const std::lock_guard lock(mutex_);
    news = job_.publish(client_);
    if (!job_.peers()) awaited_ = awaited();
    if (server_) {
      for (std::string& line : server_->take_messages()) {
        if (messages_.size() < messages_max) messages_.push_back(std::move(line));
      }
    }
    ended_ = has_ended();
    if (news || ended_) changed_.notify_all();
  }
  if (!news) return;
  const std::lock_guard lock(wake_mutex_);
  if (wake_) wake_();
}

}  // namespace penstock::zero
