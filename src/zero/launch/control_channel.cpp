// What callers of a control channel do.
#include "zero/launch/control_channel.hpp"

#include "base/duration_text.hpp"
#include "tiers/io/running_time.hpp"
#include "zero/launch/network_error.hpp"
#include "zero/launch/tcp_control_channel.hpp"

#include <algorithm>
#include <chrono>
#include <system_error>

namespace penstock::zero {

namespace {

using control::Gatherer;
using namespace std::chrono_literals;

/// How long an end waits for its peers to close their connections after everything was sent.
constexpr auto linger_max = 2s;
/// A wait without end, of which the time can still be added to the clock's.
constexpr auto wait_max = std::chrono::hours(24 * 365);

}  // namespace

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

Result<void> TcpControlChannel::wait_for_peers() {
  std::unique_lock lock(mutex_);
  const auto has_ended = [this] { return job_.peers() || job_.failure(); };
  TimePoint waited{};
  for (TimePoint pause = options_.patience.notice; !changed_.wait_for(lock, pause, has_ended); pause *= 2) {
    waited += pause;
    if (!options_.notice) continue;
    const std::string line = "waits since " + duration_text(waited) + ": " + awaited_;
    lock.unlock();
    options_.notice(line);
    lock.lock();
  }
  if (auto error = job_.failure()) return *error;
  return ok();
}

Result<void> TcpControlChannel::start_gather(Gatherer by, const std::string& label,
                                             std::span<const std::byte> bytes) {
  // Others may send less: rank 0 looks at the sum.
  const std::uint64_t size = control::gathered_bytes(options_.ranks, 0) + bytes.size() + label.size();
  if (bytes.size() > control::gathered_bytes_max || size > control::payload_bytes_max) {
    return Error::invalid_argument("ControlChannel::gather")
        .object(label.substr(0, 100))
        .wanted("at most " + std::to_string(control::gathered_bytes_max) +
                " bytes of all ranks, and a short label")
        .got(bytes.size());
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

std::vector<std::uint32_t> TcpControlChannel::absent() const {
  const std::lock_guard lock(mutex_);
  return job_.absent(Gatherer::collectives);
}

/// Call it with the lock.
std::string TcpControlChannel::names_of_absent(Gatherer by) const {
  std::string names;
  for (const std::uint32_t rank : job_.absent(by)) {
    const Peer& peer = (*job_.peers())[rank];
    names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank) + " (" + peer.host + ", process " +
             std::to_string(peer.process) + ")";
  }
  return names.empty() ? "a rank" : names;
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
    const std::string absent = names_of_absent(by);
    lock.unlock();
    const Error late = Error(ErrorCode::deadline_exceeded, "ControlChannel::gather")
                           .reason("not all ranks exchange what this one does")
                           .object(label.substr(0, 100))
                           .got(absent + " did not come in " + duration_text(deadline))
                           .advice("look for what the other ranks do, and make the same calls on every rank");
    fail_job(late);
    lock.lock();
    changed_.wait(lock, [this] { return job_.failure().has_value(); });  // the next call finds it
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

Result<std::unique_ptr<ControlChannel>> ControlChannel::join(const Options& options) {
  constexpr const char* operation = "ControlChannel::join";
  if (options.ranks == 0 || options.rank >= options.ranks) {
    return Error::invalid_argument(operation)
        .object("rank")
        .wanted("below " + std::to_string(options.ranks) + ", ranks")
        .got(options.rank);
  }
  if ((options.rank_0.port == 0 && !options.free_port) || options.rank_0.host.empty()) {
    return Error::invalid_argument(operation)
        .object("rank_0")
        .wanted("a host and a port")
        .got(to_string(options.rank_0));
  }
  const auto& [join_max, silence, gather_max, notice, clock] = options.patience;
  if (std::min({join_max, silence, gather_max, notice}) <= TimePoint::zero() || clock == nullptr) {
    return Error::invalid_argument(operation).object("patience").wanted("times above 0, and a clock");
  }
  std::unique_ptr<TcpControlChannel> channel;
  try {
    channel = std::make_unique<TcpControlChannel>(options);
  } catch (const std::system_error& refused) {
    return network_error(operation, "the control channel cannot be made", refused.code());
  }
  if (options.rank == 0) PENSTOCK_TRY(channel->listen());
  PENSTOCK_TRY(channel->start());
  PENSTOCK_TRY(channel->wait_for_peers());
  return channel;
}

}  // namespace penstock::zero
