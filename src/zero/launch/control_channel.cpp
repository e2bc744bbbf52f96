#include "zero/launch/control_channel.hpp"

#include "base/build_id.hpp"
#include "base/duration_text.hpp"
#include "base/start_thread.hpp"
#include "tiers/io/running_time.hpp"
#include "zero/launch/control_client.hpp"
#include "zero/launch/control_connection.hpp"
#include "zero/launch/control_server.hpp"
#include "zero/launch/job_state.hpp"
#include "zero/launch/listen.hpp"

#include <unistd.h>
#include <algorithm>
#include <array>
#include <condition_variable>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace penstock::zero {

namespace {

using asio::ip::tcp;
using control::ConnectionId;
using control::ControlClient;
using control::ControlServer;
using control::Gatherer;
using namespace std::chrono_literals;

constexpr const char* operation = "ControlChannel::join";
constexpr std::chrono::milliseconds retry_after = 100ms, attempt_max = 5s;
/// How long an end waits for its peers to close their connections after everything was sent.
constexpr auto linger_max = 2s;
/// Of messages that no caller takes, no more are kept.
constexpr std::size_t messages_max = 100;
/// A wait without end, of which the time can still be added to the clock's.
constexpr auto wait_max = std::chrono::hours(24 * 365);

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

/// The members before `mutex_` are used by the thread, those after it by callers too.
class TcpControlChannel final : public ControlChannel {
 public:
  explicit TcpControlChannel(const Options& options)
      : options_(options), client_(greeting(options), options.patience) {}
  ~TcpControlChannel() override;

  Result<void> listen();
  Result<void> start();
  Result<void> wait_for_peers();

  std::uint32_t rank() const override { return options_.rank; }
  std::uint32_t ranks() const override { return options_.ranks; }
  const std::vector<Peer>& peers() const override { return *job_.peers(); }
  const Addresses& addresses() const override { return addresses_; }
  Result<Slots> gather(const std::string& label, std::span<const std::byte> bytes) override {
    return gather(Gatherer::collectives, label, bytes);
  }
  Result<Slots> gather_for_trainer(const std::string& label, std::span<const std::byte> bytes) override {
    return gather(Gatherer::trainer, label, bytes);
  }
  Result<void> start_gather(const std::string& label, std::span<const std::byte> bytes) override {
    return start_gather(Gatherer::collectives, label, bytes);
  }
  Result<std::optional<Slots>> poll_gather() override;
  std::vector<std::uint32_t> absent() const override { return {}; }
  void interrupt(const Error& cause) noexcept override;
  Result<void> start_recovery() override;
  Result<bool> poll_recovery() override;
  void fail(const Error& error) noexcept override;
  void fail_job(const Error& error) noexcept override;
  std::optional<Error> obstacle() const override;
  void set_wake(std::function<void()> wake) override;
  std::vector<std::string> take_messages() override;

 private:
  Result<Slots> gather(Gatherer by, const std::string& label, std::span<const std::byte> bytes);
  Result<void> start_gather(Gatherer by, const std::string& label, std::span<const std::byte> bytes);
  void connect();
  void connect_to(std::size_t number);
  void open();
  void note_addresses(const tcp::socket& connected);
  void retry(const std::string& reason);
  void accept();
  void serve(tcp::socket socket);
  void arm_timer();
  void send();
  void publish();
  void leave();
  [[nodiscard]] bool has_ended() const;
  /// Runs `call` on the thread, then sends what it has caused.
  template <class Call>
  void post(Call call) {
    asio::post(context_, [this, call = std::move(call)] {
      call();
      send();
    });
  }

  const Options options_;
  asio::io_context context_{1};
  tcp::acceptor acceptor_{context_};
  tcp::resolver resolver_{context_};
  asio::steady_timer timer_{context_}, attempt_{context_}, retry_{context_}, accept_later_{context_};
  ControlClient client_;
  std::optional<ControlServer> server_;
  std::shared_ptr<control::Connection> to_rank_0_;
  std::vector<tcp::endpoint> addresses_of_rank_0_;
  std::optional<tcp::socket> connecting_;
  std::map<ConnectionId, std::shared_ptr<control::Connection>> connections_;
  ConnectionId next_connection_ = 1;
  TimePoint began_{};
  bool leaves_ = false;
  std::thread thread_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  control::JobState job_;
  Addresses addresses_;
  std::vector<std::string> messages_;
  std::uint64_t interrupts_asked_ = 0, interrupts_done_ = 0;
  bool ended_ = false;

  std::mutex wake_mutex_;
  std::function<void()> wake_;
};

/// Errors name the port, because a user can choose another.
Result<void> TcpControlChannel::listen() {
  const auto& [host, port] = options_.rank_0;
  const asio::error_code error = zero::listen(acceptor_, host, port);
  if (!error) {
    server_.emplace(options_.job, build_id(), options_.ranks, options_.patience);
    return ok();
  }
  const bool in_use = error == asio::error::address_in_use;
  return Error(in_use ? ErrorCode::in_use : Error::from_errno(operation, error.value()).code(), operation)
      .reason("rank 0 cannot listen: " + error.message())
      .object("port " + std::to_string(port) + ", the one after MASTER_PORT")
      .advice("set MASTER_PORT to another number, the same on every rank");
}

Result<void> TcpControlChannel::start() {
  began_ = options_.patience.clock->now();
  if (server_) asio::post(context_, [this] { accept(); });
  asio::post(context_, [this] {
    connect();
    arm_timer();
  });
  PENSTOCK_TRY_ASSIGN(thread_, start_thread(operation, "the control channel", [this] {
                        const auto work = asio::make_work_guard(context_);
                        context_.run();
                      }));
  return ok();
}

TcpControlChannel::~TcpControlChannel() {
  set_wake({});
  if (!thread_.joinable()) return;
  asio::post(context_, [this] { leave(); });
  {
    std::unique_lock lock(mutex_);
    const auto limit = server_ ? std::clamp<TimePoint>(options_.patience.silence, linger_max, wait_max)
                               : TimePoint(linger_max);
    changed_.wait_for(lock, limit, [this] { return ended_; });
  }
  context_.stop();
  thread_.join();
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
  const auto& [host, port] = options_.rank_0;
  resolver_.async_resolve(host, std::to_string(port),
                          [this](asio::error_code error, const tcp::resolver::results_type& found) {
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

void TcpControlChannel::retry(const std::string& reason) {
  attempt_.cancel();
  connecting_.reset();
  const control::Patience& patience = options_.patience;
  if (patience.clock->now() - began_ >= patience.join) {
    client_.fail(
        control::failure_of(Error(ErrorCode::deadline_exceeded, operation)
                                .reason("rank 0 cannot be reached")
                                .object(to_string(options_.rank_0))
                                .got(reason + ", for " + duration_text(patience.join))
                                .advice("look whether rank 0 runs, and whether MASTER_ADDR and MASTER_PORT "
                                        "name its host; the port is "
                                        "the one after MASTER_PORT, which a firewall must let pass")));
    return send();
  }
  retry_.expires_after(retry_after);
  retry_.async_wait([this](asio::error_code cancelled) {
    if (!cancelled) connect();
  });
}

void TcpControlChannel::accept() {
  acceptor_.async_accept([this](asio::error_code error, tcp::socket socket) {
    if (!error) {
      serve(std::move(socket));
      return accept();
    }
    if (leaves_) return;
    accept_later_.expires_after(retry_after);  // such as too many open files
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

void TcpControlChannel::publish() {
  bool news = false;
  {
    const std::lock_guard lock(mutex_);
    news = job_.publish(client_);
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

Result<void> TcpControlChannel::wait_for_peers() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return job_.peers() || job_.failure(); });
  if (auto error = job_.failure()) return *error;
  return ok();
}

Result<void> TcpControlChannel::start_gather(Gatherer by, const std::string& label,
                                             std::span<const std::byte> bytes) {
  // Others may send less: rank 0 looks at the sum.
  const std::uint64_t size = control::gathered_bytes(options_.ranks, 0) + bytes.size() + label.size();
  if (size > control::payload_bytes_max) {
    return Error::invalid_argument("ControlChannel::gather")
        .object(label.substr(0, 100))
        .wanted("at most " + std::to_string(control::payload_bytes_max) + " bytes of all ranks")
        .got(size);
  }
  const std::lock_guard lock(mutex_);
  PENSTOCK_TRY(job_.start_gather(by));
  post([this, by, label, copy = std::vector(bytes.begin(), bytes.end())] {
    if (!client_.interruption()) client_.gather(by, label, copy);  // which would be in vain
  });
  return ok();
}

Result<std::optional<JobControl::Slots>> TcpControlChannel::poll_gather() {
  const std::lock_guard lock(mutex_);
  return job_.poll_gather(Gatherer::collectives);
}

Result<JobControl::Slots> TcpControlChannel::gather(Gatherer by, const std::string& label,
                                                    std::span<const std::byte> bytes) {
  PENSTOCK_TRY(start_gather(by, label, bytes));
  const auto& [deadline, clock] = std::pair(options_.patience.gather, options_.patience.clock);
  const TimePoint step = tiers::running_time_step(deadline);
  tiers::RunningTime running(*clock, step);
  const TimePoint end = running.end_of(deadline);
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, step, [this, by] { return job_.has_gathered(by); })) {
    (void)running.update();
    if (running.elapsed() < end) continue;
    lock.unlock();
    const Error late = Error(ErrorCode::deadline_exceeded, "ControlChannel::gather")
                           .reason("not all ranks exchange what this one does")
                           .object(label.substr(0, 100))
                           .got("ranks are missing after " + duration_text(deadline))
                           .advice("look for what the other ranks do, and make the same calls on every rank");
    fail_job(late);
    return late;
  }
  PENSTOCK_TRY_ASSIGN(auto slots, job_.poll_gather(by));
  return *std::move(slots);
}

/// Returns when it is published, so that start_recovery() finds it.
void TcpControlChannel::interrupt(const Error& cause) noexcept {
  std::unique_lock lock(mutex_);
  const std::uint64_t mine = ++interrupts_asked_;
  const Error interruption = Error(ErrorCode::interrupted, "ControlChannel")
                                 .reason("rank " + std::to_string(options_.rank) + " interrupted the job")
                                 .note("cause   " + cause.message());
  asio::post(context_, [this, text = control::failure_of(interruption).text] {
    client_.interrupt(text);
    send();
    const std::lock_guard done(mutex_);
    ++interrupts_done_;
    changed_.notify_all();
  });
  changed_.wait(lock, [this, mine] { return interrupts_done_ >= mine; });
}

Result<void> TcpControlChannel::start_recovery() {
  const std::lock_guard lock(mutex_);
  PENSTOCK_TRY(job_.start_recovery());
  post([this] { client_.recover(); });
  return ok();
}

Result<bool> TcpControlChannel::poll_recovery() {
  const std::lock_guard lock(mutex_);
  return job_.poll_recovery();
}

void TcpControlChannel::fail(const Error& error) noexcept {
  fail_job(Error(ErrorCode::peer_failed, "ControlChannel")
               .reason("rank " + std::to_string(options_.rank) + " has failed")
               .note("cause   " + error.message()));
}

void TcpControlChannel::fail_job(const Error& error) noexcept {
  post([this, failure = control::failure_of(error)] { client_.fail(failure); });
}

std::optional<Error> TcpControlChannel::obstacle() const {
  const std::lock_guard lock(mutex_);
  return job_.obstacle();
}

void TcpControlChannel::set_wake(std::function<void()> wake) {
  const std::lock_guard lock(wake_mutex_);
  wake_ = std::move(wake);
}

std::vector<std::string> TcpControlChannel::take_messages() {
  const std::lock_guard lock(mutex_);
  return std::exchange(messages_, {});
}

}  // namespace

Result<std::unique_ptr<ControlChannel>> ControlChannel::join(const Options& options) {
  if (options.ranks == 0 || options.rank >= options.ranks) {
    return Error::invalid_argument(operation)
        .object("rank")
        .wanted("below " + std::to_string(options.ranks) + ", ranks")
        .got(options.rank);
  }
  if (options.rank_0.port == 0 || options.rank_0.host.empty()) {
    return Error::invalid_argument(operation)
        .object("rank_0")
        .wanted("a host and a port")
        .got(to_string(options.rank_0));
  }
  const auto& [join_max, silence, gather_max, clock] = options.patience;
  if (std::min({join_max, silence, gather_max}) <= TimePoint::zero() || clock == nullptr) {
    return Error::invalid_argument(operation).object("patience").wanted("times above 0, and a clock");
  }
  auto channel = std::make_unique<TcpControlChannel>(options);
  if (options.rank == 0) PENSTOCK_TRY(channel->listen());
  PENSTOCK_TRY(channel->start());
  PENSTOCK_TRY(channel->wait_for_peers());
  return channel;
}

}  // namespace penstock::zero
