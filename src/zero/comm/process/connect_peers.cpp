#include "zero/comm/process/connect_peers.hpp"

#include "base/duration_text.hpp"
#include "zero/launch/listen.hpp"
#include "zero/launch/network_error.hpp"

#include <penstock/zero/launch/launch.hpp>

#include <asio.hpp>

#include <sys/random.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

namespace penstock::zero {

namespace {

using asio::ip::tcp;
using namespace std::chrono_literals;

constexpr const char* operation = "ProcessGroup::connect";
constexpr std::chrono::milliseconds retry_after = 100ms, greeting_max = 5s;
constexpr std::size_t strangers_max = 64;

using Key = std::array<std::byte, 16>;

/// The first bytes of a connection, in both directions: the sender, and the key of the rank that it wants.
struct Greeting {
  std::uint32_t rank = 0;
  Key key{};
};

/// Where a rank listens.
struct Listener {
  std::string address;
  std::uint16_t port = 0;
  Key key{};
};
std::vector<std::byte> encode(const Listener& listener) {
  std::vector<std::byte> bytes(sizeof listener.port + listener.key.size() + listener.address.size());
  std::memcpy(bytes.data(), &listener.port, sizeof listener.port);
  std::memcpy(bytes.data() + sizeof listener.port, listener.key.data(), listener.key.size());
  std::memcpy(bytes.data() + sizeof listener.port + listener.key.size(), listener.address.data(),
              listener.address.size());
  return bytes;
}
Result<Listener> decode(const std::vector<std::byte>& bytes) {
  Listener listener;
  if (bytes.size() < sizeof listener.port + listener.key.size())
    return Error(ErrorCode::corrupted, operation).reason("a rank does not tell where it listens");
  std::memcpy(&listener.port, bytes.data(), sizeof listener.port);
  std::memcpy(listener.key.data(), bytes.data() + sizeof listener.port, listener.key.size());
  listener.address.assign(
      reinterpret_cast<const char*>(bytes.data()) + sizeof listener.port + listener.key.size(),
      bytes.size() - sizeof listener.port - listener.key.size());
  return listener;
}

/// The ranks of which one connects and the other accepts: a rank connects to those below it.
class Connector {
 public:
  Connector(JobControl& control, const PeerAddresses& addresses)
      : control_(control), addresses_(addresses), sockets_(control.ranks()) {}

  Result<void> listen();
  Result<void> run(TimePoint deadline);
  std::vector<OwnedFd> release();

 private:
  struct Stranger {
    explicit Stranger(tcp::socket accepted) : socket(std::move(accepted)) {}
    tcp::socket socket;
    Greeting greeting;
    asio::steady_timer timer{socket.get_executor()};
  };
  struct Attempt {
    Attempt(asio::io_context& context, std::uint32_t peer) : rank(peer), socket(context), timer(context) {}
    const std::uint32_t rank;
    tcp::socket socket;
    asio::steady_timer timer;
    Greeting greeting;
    std::string last_error = "no answer";
  };

  void accept();
  void welcome(const std::shared_ptr<Stranger>& stranger);
  void connect(const std::shared_ptr<Attempt>& attempt);
  void greet(const std::shared_ptr<Attempt>& attempt);
  void retry(const std::shared_ptr<Attempt>& attempt, const std::string& error);
  [[nodiscard]] bool note_exhaustion(const asio::error_code& error);
  void keep(std::uint32_t rank, tcp::socket socket);
  [[nodiscard]] bool is_complete() const;
  [[nodiscard]] std::string host_of(std::uint32_t rank) const;
  [[nodiscard]] Error late(TimePoint deadline) const;

  JobControl& control_;
  const PeerAddresses addresses_;
  asio::io_context context_{1};
  tcp::acceptor acceptor_{context_};
  asio::steady_timer accept_later_{context_};
  std::vector<Listener> listeners_;
  std::vector<std::optional<tcp::socket>> sockets_;
  std::vector<std::shared_ptr<Attempt>> attempts_;
  std::size_t strangers_ = 0;
  std::optional<Error> exhausted_;
};

Result<void> Connector::listen() {
  Listener own{.address = addresses_.own, .port = 0, .key = {}};
  if (::getrandom(own.key.data(), own.key.size(), 0) != static_cast<ssize_t>(own.key.size()))
    return Error::from_errno(operation, errno);
  // Where all have reached rank 0 by the loopback, they are on its host, and no connection comes from another.
  const std::byte is_on_host{is_loopback(addresses_.own)};
  PENSTOCK_TRY_ASSIGN(const auto reached,
                      control_.gather("how ranks reach rank 0", std::span(&is_on_host, 1)));
  const bool all_on_host = std::all_of(reached.begin(), reached.end(),
                                       [](const auto& one) { return one == std::vector{std::byte{1}}; });
  if (const asio::error_code error = zero::listen(acceptor_, all_on_host ? addresses_.rank_0 : "", 0))
    return network_error(operation, "cannot listen for the other ranks", error);
  own.port = acceptor_.local_endpoint().port();
  PENSTOCK_TRY_ASSIGN(const auto all, control_.gather("where ranks listen", encode(own)));
  for (const auto& bytes : all) {
    PENSTOCK_TRY_ASSIGN(auto listener, decode(bytes));
    listeners_.push_back(std::move(listener));
  }
  return ok();
}

Result<void> Connector::run(TimePoint deadline) {
  const TimePoint now = Clock::steady().now(), end = deadline >= forever - now ? forever : now + deadline;
  accept();
  for (std::uint32_t r = 0; r < control_.rank(); ++r) {
    attempts_.push_back(std::make_shared<Attempt>(context_, r));
    connect(attempts_.back());
  }
  while (!is_complete()) {
    if (const auto obstacle = control_.obstacle()) return *obstacle;
    if (exhausted_) return *exhausted_;
    if (Clock::steady().now() >= end) return late(deadline);
    context_.restart();
    context_.run_one_for(retry_after);
  }
  return ok();
}

bool Connector::is_complete() const {
  for (std::uint32_t r = 0; r < sockets_.size(); ++r) {
    if (r != control_.rank() && !sockets_[r]) return false;
  }
  return true;
}

/// A rank that reaches rank 0 by the loopback is on its host.
std::string Connector::host_of(std::uint32_t rank) const {
  const std::string& told = listeners_[rank].address;
  return is_loopback(told) ? addresses_.rank_0 : told;
}

Error Connector::late(TimePoint deadline) const {
  Error error = Error(ErrorCode::deadline_exceeded, operation)
                    .reason("rank " + std::to_string(control_.rank()) +
                            " is not connected with every rank after " + duration_text(deadline))
                    .advice(
                        "let TCP connections between all hosts of the job pass on every port, or set "
                        "MASTER_ADDR to rank 0's address in the network that connects them");
  for (std::uint32_t r = 0; r < sockets_.size(); ++r) {
    if (r == control_.rank() || sockets_[r]) continue;
    const std::string where = to_string(Endpoint{host_of(r), listeners_[r].port});
    error = std::move(error).note(
        r < control_.rank() ? "rank " + std::to_string(r) + " at " + where + ": " + attempts_[r]->last_error
                            : "rank " + std::to_string(r) + " has not come to port " +
                                  std::to_string(listeners_[control_.rank()].port));
  }
  return error;
}

/// Ends run() where the system gives this process no more sockets.
bool Connector::note_exhaustion(const asio::error_code& error) {
  if (!is_exhausted(error)) return false;
  exhausted_ = network_error(operation, "cannot connect with the other ranks", error);
  return true;
}

void Connector::accept() {
  acceptor_.async_accept([this](asio::error_code error, tcp::socket socket) {
    if (note_exhaustion(error)) return;
    if (error) {
      accept_later_.expires_after(retry_after);
      return accept_later_.async_wait([this](asio::error_code cancelled) {
        if (!cancelled) accept();
      });
    }
    if (strangers_ < strangers_max) {
      close_in_children(socket.native_handle());
      welcome(std::make_shared<Stranger>(std::move(socket)));
    }
    accept();
  });
}

/// A connection that does not say at once which rank it is, and know the key, is closed.
void Connector::welcome(const std::shared_ptr<Stranger>& stranger) {
  ++strangers_;
  stranger->timer.expires_after(greeting_max);
  stranger->timer.async_wait([stranger](asio::error_code cancelled) {
    asio::error_code ignored;
    if (!cancelled) stranger->socket.close(ignored);
  });
  asio::async_read(stranger->socket, asio::buffer(&stranger->greeting, sizeof stranger->greeting),
                   [this, stranger](asio::error_code error, std::size_t) {
                     --strangers_;
                     stranger->timer.cancel();
                     const Greeting& greeting = stranger->greeting;
                     const Listener& own = listeners_[control_.rank()];
                     const bool right = !error && greeting.key == own.key &&
                                        greeting.rank > control_.rank() && greeting.rank < sockets_.size();
                     if (!right) return;
                     const std::uint32_t peer = greeting.rank;
                     stranger->greeting = {.rank = control_.rank(), .key = listeners_[peer].key};
                     asio::async_write(stranger->socket,
                                       asio::buffer(&stranger->greeting, sizeof stranger->greeting),
                                       [this, stranger, peer](asio::error_code failed, std::size_t) {
                                         if (!failed) keep(peer, std::move(stranger->socket));
                                       });
                   });
}

void Connector::connect(const std::shared_ptr<Attempt>& attempt) {
  asio::error_code error;
  const auto address = asio::ip::make_address(host_of(attempt->rank), error);
  if (error) return retry(attempt, error.message());
  attempt->socket = tcp::socket(context_);
  attempt->timer.expires_after(greeting_max);
  attempt->timer.async_wait([attempt](asio::error_code cancelled) {
    asio::error_code ignored;
    if (!cancelled) attempt->socket.close(ignored);
  });
  attempt->socket.async_connect(
      {address, listeners_[attempt->rank].port}, [this, attempt](asio::error_code failed) {
        if (note_exhaustion(failed)) return;
        if (failed)
          return retry(attempt, failed == asio::error::operation_aborted ? "no answer" : failed.message());
        attempt->timer.cancel();  // from here on the peer may have taken the connection
        close_in_children(attempt->socket.native_handle());
        greet(attempt);
      });
}

void Connector::greet(const std::shared_ptr<Attempt>& attempt) {
  attempt->greeting = {.rank = control_.rank(), .key = listeners_[attempt->rank].key};
  asio::async_write(attempt->socket, asio::buffer(&attempt->greeting, sizeof attempt->greeting),
                    [this, attempt](asio::error_code error, std::size_t) {
                      if (error) return retry(attempt, error.message());
                      asio::async_read(attempt->socket,
                                       asio::buffer(&attempt->greeting, sizeof attempt->greeting),
                                       [this, attempt](asio::error_code failed, std::size_t) {
                                         const Greeting& greeting = attempt->greeting;
                                         if (failed || greeting.rank != attempt->rank ||
                                             greeting.key != listeners_[control_.rank()].key)
                                           return retry(attempt, "another program answers");
                                         keep(attempt->rank, std::move(attempt->socket));
                                       });
                    });
}

void Connector::retry(const std::shared_ptr<Attempt>& attempt, const std::string& error) {
  attempt->last_error = error;
  attempt->timer.expires_after(retry_after);
  attempt->timer.async_wait([this, attempt](asio::error_code cancelled) {
    if (!cancelled) connect(attempt);
  });
}

void Connector::keep(std::uint32_t rank, tcp::socket socket) {
  asio::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  sockets_[rank].emplace(std::move(socket));  // of several, the last: its peer has given the others up
}

std::vector<OwnedFd> Connector::release() {
  std::vector<OwnedFd> descriptors(sockets_.size());
  for (std::size_t r = 0; r < sockets_.size(); ++r) {
    if (sockets_[r]) descriptors[r] = OwnedFd(sockets_[r]->release());
  }
  return descriptors;
}

Result<void> wait_for_all(JobControl& control) {
  const auto all = control.gather("all ranks are connected", {});
  // A rank that interrupts the job has gone on, and so knows that all are connected.
  if (!all && all.error().code() != ErrorCode::interrupted) return all.error();
  return ok();
}

Result<std::vector<OwnedFd>> connect(JobControl& control, const PeerAddresses& addresses,
                                     TimePoint deadline) {
  try {
    Connector connector(control, addresses);
    PENSTOCK_TRY(connector.listen());
    PENSTOCK_TRY(connector.run(deadline));
    PENSTOCK_TRY(wait_for_all(control));
    return connector.release();
  } catch (const std::system_error& refused) {  // of asio, where it makes a socket
    return network_error(operation, "cannot connect with the other ranks", refused.code());
  }
}

}  // namespace

Result<std::vector<OwnedFd>> connect_peers(JobControl& control, const PeerAddresses& addresses,
                                           TimePoint deadline) {
  auto connected = connect(control, addresses, deadline);
  if (connected || control.obstacle()) return connected;
  const ErrorCode code = connected.error().code();
  const bool names_ranks = code == ErrorCode::deadline_exceeded || code == ErrorCode::corrupted;
  names_ranks ? control.fail_job(connected.error()) : control.fail(connected.error());
  return connected;
}

}  // namespace penstock::zero
