// The control channel on sockets of this machine.
#include "zero/launch/control_channel.hpp"

#include "kit/child_process.hpp"
#include "kit/free_port.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include <atomic>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <vector>

namespace penstock::zero {
namespace {

using namespace std::chrono_literals;

using penstock::test::free_port;
using penstock::test::Listener;

using Options = ControlChannel::Options;
using Joined = Result<std::unique_ptr<ControlChannel>>;

Options options_of(std::uint32_t rank, std::uint32_t ranks, std::uint16_t port, TimePoint join = 20s) {
  return {.job = "job",
          .rank = rank,
          .ranks = ranks,
          .rank_0 = {"127.0.0.1", port},
          .patience = {.join = join, .silence = 5s}};
}

/// On a thread each.
std::vector<Joined> join_all(const std::vector<Options>& options) {
  std::vector<std::future<Joined>> joining;
  for (const Options& one : options)
    joining.push_back(std::async(std::launch::async, [one] { return ControlChannel::join(one); }));
  std::vector<Joined> joined;
  for (auto& one : joining) joined.push_back(one.get());
  return joined;
}

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> bytes;
  for (const char c : text) bytes.push_back(std::byte(c));
  return bytes;
}

void expect_error(const Joined& joined, ErrorCode code, const std::vector<std::string>& words) {
  ASSERT_FALSE(joined) << words.front();
  EXPECT_EQ(joined.error().code(), code) << joined.error().message();
  for (const std::string& word : words)
    EXPECT_NE(joined.error().message().find(word), std::string::npos) << word << "\n"
                                                                      << joined.error().message();
}

std::vector<Options> job_of(std::uint32_t ranks) {
  const std::uint16_t port = free_port();
  std::vector<Options> job;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) job.push_back(options_of(rank, ranks, port));
  return job;
}

TEST(ControlChannel, BringsRanksTogetherAndGathersTheirBytes) {
  for (const std::uint32_t ranks : {1u, 2u, 5u}) {
    auto channels = join_all(job_of(ranks));
    std::vector<std::future<Result<ControlChannel::Slots>>> gathering;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      ASSERT_TRUE(channels[rank]) << channels[rank].error().message();
      EXPECT_EQ((*channels[rank])->peers().size(), ranks);
      EXPECT_EQ((*channels[rank])->peers()[0].process, static_cast<std::uint32_t>(::getpid()));
      gathering.push_back(std::async(std::launch::async, [&channels, rank] {
        Result<ControlChannel::Slots> last;
        for (int round = 0; round < 20; ++round)
          last = (*channels[rank])
                     ->gather("round " + std::to_string(round),
                              bytes_of(std::to_string(rank * 100 + static_cast<std::uint32_t>(round))));
        return last;
      }));
    }
    for (auto& one : gathering) {
      const auto gathered = one.get();
      ASSERT_TRUE(gathered) << gathered.error().message();
      for (std::uint32_t rank = 0; rank < ranks; ++rank)
        EXPECT_EQ((*gathered)[rank], bytes_of(std::to_string(rank * 100 + 19)));
    }
    std::vector<std::future<void>> leaving;  // rank 0 waits for the others
    for (auto& channel : channels)
      leaving.push_back(std::async(std::launch::async, [&channel] { channel->reset(); }));
  }
}

TEST(ControlChannel, TellsThatARankHasLeftFromThatItHasEnded) {
  auto channels = join_all(job_of(3));
  for (const auto& one : channels) ASSERT_TRUE(one) << one.error().message();
  channels[2]->reset();
  const auto gathered = (*channels[0])->gather("norm", {});
  ASSERT_FALSE(gathered);
  EXPECT_NE(gathered.error().message().find("has left"), std::string::npos) << gathered.error().message();
}

TEST(ControlChannel, WaitsForRank0ToListen) {
  const auto job = job_of(2);
  auto late = std::async(std::launch::async, [&] { return ControlChannel::join(job[1]); });
  std::this_thread::sleep_for(300ms);
  auto first = ControlChannel::join(job[0]);
  auto second = late.get();
  ASSERT_TRUE(first && second);
  second->reset();
}

TEST(ControlChannel, NamesWhatIsMissing) {
  const std::uint16_t port = free_port();
  expect_error(ControlChannel::join(options_of(1, 2, port, 500ms)), ErrorCode::deadline_exceeded,
               {"rank 0 cannot be reached", "127.0.0.1:" + std::to_string(port),
                "Connection refused, for 500 ms", "MASTER_ADDR"});
  Options unknown = options_of(1, 2, port, 500ms);
  unknown.rank_0.host = "no.such.host.invalid";
  expect_error(ControlChannel::join(unknown), ErrorCode::deadline_exceeded,
               {"no.such.host.invalid", "Host not found"});
  const auto joined = join_all({options_of(0, 3, port, 500ms), options_of(2, 3, port, 500ms)});
  for (const Joined& one : joined)
    expect_error(one, ErrorCode::deadline_exceeded, {"ranks are missing", "rank 1 did not come in 500 ms"});
}

/// Options of a rank 0 that does not find itself at `host`.
Options lost_at(const char* host, std::uint16_t port) {
  Options options = options_of(0, 2, port, 60s);
  options.rank_0.host = host;
  return options;
}
void expect_not_found(const Joined& joined, const char* host, std::uint16_t port) {
  expect_error(
      joined, ErrorCode::not_found,
      {"rank 0 does not find itself", host + (":" + std::to_string(port)), "\n  try     set MASTER_ADDR"});
}

TEST(ControlChannel, EndsSoonWhereRank0DoesNotKnowItsOwnHost) {
  const std::uint16_t port = free_port();
  const auto began = std::chrono::steady_clock::now();

  const auto joined = ControlChannel::join(lost_at("no.such.host.invalid", port));

  EXPECT_LT(std::chrono::steady_clock::now() - began, 30s);
  expect_not_found(joined, "no.such.host.invalid", port);
}

TEST(ControlChannel, TellsTheOthersThatRank0DoesNotReachItself) {
  const std::uint16_t port = free_port();
  const char* const nowhere = "192.0.2.1";  // of no machine (RFC 5737)

  const auto joined = join_all({lost_at(nowhere, port), options_of(1, 2, port, 60s)});

  expect_not_found(joined[0], nowhere, port);
  expect_error(joined[1], ErrorCode::peer_failed, {"rank 0 has failed", "rank 0 does not find itself"});
}

TEST(ControlChannel, SaysForWhomItWaits) {
  auto job = job_of(3);
  std::vector<std::promise<std::string>> promises(3);
  std::vector<std::future<std::string>> lines;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    lines.push_back(promises[rank].get_future());
    job[rank].patience.notice = 20ms;
    job[rank].notice = [&promise = promises[rank], said = 0](const std::string& line) mutable {
      if (++said == 3) promise.set_value(line);  // after 20 + 40 + 80 ms
    };
  }
  std::vector<std::future<Joined>> joining;
  const auto join = [&](std::uint32_t rank) {
    joining.push_back(
        std::async(std::launch::async, [&job, rank] { return ControlChannel::join(job[rank]); }));
  };
  const std::string at = " at " + to_string(job[0].rank_0);

  join(2);
  EXPECT_EQ(lines[2].get(), "waits since 140 ms: rank 0 cannot be reached yet" + at + ": Connection refused");
  join(0);
  const std::string of_rank_0 = lines[0].get();
  EXPECT_TRUE(of_rank_0.starts_with("waits since 140 ms: rank 1")) << of_rank_0;
  EXPECT_TRUE(of_rank_0.ends_with(" did not come yet" + at)) << of_rank_0;
  join(1);

  std::vector<Joined> joined;
  for (auto& one : joining) joined.push_back(one.get());
  for (const Joined& one : joined) EXPECT_TRUE(one) << one.error().message();
  std::vector<std::future<void>> leaving;  // rank 0 waits for the others
  for (Joined& one : joined) leaving.push_back(std::async(std::launch::async, [&one] { one->reset(); }));
}

TEST(ControlChannel, NamesAPortThatIsInUse) {
  Listener other;
  expect_error(ControlChannel::join(options_of(0, 2, other.port())), ErrorCode::in_use,
               {"cannot listen", "port " + std::to_string(other.port()), "MASTER_PORT"});
  // The other ranks meet who uses it.
  Options silent = options_of(1, 2, other.port());
  silent.patience.silence = 500ms;
  expect_error(ControlChannel::join(silent), ErrorCode::peer_failed,
               {"does not answer as rank 0 of this job"});
  auto job = job_of(2);
  auto first = std::async(std::launch::async, [&] { return ControlChannel::join(job[0]); });
  Options another = job[1];
  another.job = "another";
  expect_error(ControlChannel::join(another), ErrorCode::permission, {"another job", "MASTER_PORT"});
  auto second = ControlChannel::join(job[1]);
  EXPECT_TRUE(second) << "the job has gone on";
  auto served = first.get();
  ASSERT_TRUE(served);
  const auto messages = (*served)->take_messages();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_NE(messages[0].find("refused the connection of 127.0.0.1:"), std::string::npos) << messages[0];
  second->reset();
}

TEST(ControlChannel, TellsEveryRankWhyRanksDoNotFitTogether) {
  const std::uint16_t port = free_port();
  auto twice = join_all({options_of(0, 3, port), options_of(1, 3, port), options_of(1, 3, port)});
  for (const Joined& one : twice)
    expect_error(one, ErrorCode::already_exists, {"two processes are rank 1", "try "});
  auto sizes = join_all({options_of(0, 3, port), options_of(1, 2, port)});
  for (const Joined& one : sizes)
    expect_error(one, ErrorCode::invalid_argument,
                 {"different numbers of ranks", "wanted 3, as rank 0, got 2"});
}

TEST(ControlChannel, TellsEveryRankWhyOneFails) {
  auto channels = join_all(job_of(3));
  for (const auto& one : channels) ASSERT_TRUE(one) << one.error().message();
  std::atomic<int> woken = 0;
  (*channels[0])->set_wake([&] { ++woken; });
  auto waiting = std::async(std::launch::async, [&] { return (*channels[0])->gather("norm of step 4", {}); });

  (*channels[2])->fail(Error(ErrorCode::no_space, "write").reason("the disk is full").advice("delete files"));

  const auto failed = waiting.get();
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::peer_failed);
  EXPECT_EQ(failed.error().message(),
            "rank 2 has failed [ControlChannel]\n  cause   the disk is full [write]\n  try     delete files");
  while (!(*channels[1])->obstacle()) std::this_thread::sleep_for(1ms);
  EXPECT_EQ((*channels[1])->obstacle()->message(), failed.error().message());
  while (woken == 0) std::this_thread::yield();
}

TEST(ControlChannel, NamesTheRanksThatDoNotComeToAGathering) {
  auto job = job_of(4);
  for (Options& one : job) one.patience.gather = 1s, one.patience.silence = 1s;  // signs of life every 200 ms
  auto channels = join_all(job);
  for (const auto& one : channels) ASSERT_TRUE(one) << one.error().message();
  auto waiting =
      std::async(std::launch::async, [&] { return (*channels[1])->gather_for_trainer("losses", {}); });
  (void)(*channels[0])->start_gather("norm", {});
  while ((*channels[0])->absent().empty() && !(*channels[0])->obstacle()) std::this_thread::yield();
  EXPECT_EQ((*channels[0])->absent(), (std::vector<std::uint32_t>{1, 2, 3}));

  const auto late = waiting.get();

  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::deadline_exceeded);
  const auto name = [](std::uint32_t rank, const std::string& host) {
    return "rank " + std::to_string(rank) + " (" + host + ", process " + std::to_string(::getpid()) + ")";
  };
  const std::string host = (*channels[0])->peers()[0].host;
  const std::string names = name(0, host) + ", " + name(2, host) + ", " + name(3, host);
  EXPECT_NE(late.error().message().find(names + " did not come in 1 s"), std::string::npos)
      << late.error().message();
}

/// Gathers until the job is interrupted, and recovers. Returns what is wrong.
std::string gather_until_interrupted(ControlChannel& channel) {
  for (std::uint64_t i = 0;; ++i) {
    const auto gathered = channel.gather("number " + std::to_string(i), bytes_of(std::to_string(i)));
    if (gathered) {
      if ((*gathered)[2] != bytes_of(std::to_string(i))) return "wrong bytes";
      continue;
    }
    if (gathered.error().code() != ErrorCode::interrupted) return gathered.error().message();
    if (gathered.error().message().find("cause   no data [trainer]") == std::string::npos) return "no cause";
    break;
  }
  if (auto started = channel.start_recovery(); !started) return started.error().message();
  while (true) {
    const auto recovered = channel.poll_recovery();
    if (!recovered) return recovered.error().message();
    if (*recovered) return "";
    std::this_thread::yield();
  }
}

TEST(ControlChannel, GoesOnAfterAnInterruption) {
  auto channels = join_all(job_of(3));
  for (const auto& one : channels) ASSERT_TRUE(one) << one.error().message();
  EXPECT_EQ((*channels[0])->start_recovery().error().code(), ErrorCode::failed_state);
  constexpr int rounds = 400;
  std::vector<std::future<std::string>> ranks;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&channels, rank]() -> std::string {
      for (int round = 0; round < rounds; ++round) {
        if (std::string wrong = gather_until_interrupted(**channels[rank]); !wrong.empty()) return wrong;
      }
      return "";
    }));
  }
  // The job is interrupted by any rank, also while it recovers, until each has had enough.
  const Error cause = Error(ErrorCode::io, "trainer").reason("no data");
  for (std::uint32_t i = 0; ranks[0].wait_for(0s) != std::future_status::ready ||
                            ranks[1].wait_for(0s) != std::future_status::ready ||
                            ranks[2].wait_for(0s) != std::future_status::ready;
       ++i)
    (*channels[i % 3])->interrupt(cause);
  for (auto& one : ranks) EXPECT_EQ(one.get(), "");
  for (auto rank = channels.rbegin(); rank != channels.rend(); ++rank) (*rank)->reset();
}

TEST(ControlChannel, RefusesWhatCannotBe) {
  const auto fails = [](Options options, const char* object) {
    expect_error(ControlChannel::join(options), ErrorCode::invalid_argument, {object});
  };
  fails({.job = {}, .rank = 0, .ranks = 0, .rank_0 = {"127.0.0.1", 1}}, "rank");
  fails({.job = {}, .rank = 2, .ranks = 2, .rank_0 = {"127.0.0.1", 1}}, "rank");
  fails({.job = {}, .rank = 0, .ranks = 1, .rank_0 = {"", 1}}, "rank_0");
  fails({.job = {}, .rank = 0, .ranks = 1, .rank_0 = {"127.0.0.1", 0}}, "rank_0");
  fails({.job = {}, .rank = 0, .ranks = 1, .rank_0 = {"127.0.0.1", 1}, .patience = {.join = 0s}}, "patience");
  auto channel = ControlChannel::join(options_of(0, 1, free_port())).value();
  const std::vector<std::byte> many(2 << 20);
  EXPECT_EQ(channel->gather("many", many).error().code(), ErrorCode::invalid_argument);
  ASSERT_TRUE(channel->start_gather("one", {}));
  EXPECT_EQ(channel->start_gather("two", {}).error().code(), ErrorCode::failed_state);
  while (!channel->poll_gather().value()) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(channel->gather("two", {}));
}

/// A process that joins as rank `rank`, tells so by a byte of `joined`, and then only waits.
pid_t start_rank(const Options& options, int joined) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  const auto channel = ControlChannel::join(options);
  const char byte = channel ? 'y' : 'n';
  (void)!::write(joined, &byte, 1);
  while (true) ::pause();
}

TEST(ControlChannel, NamesAProcessThatIsKilledOrStopped) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    for (const std::uint32_t lost : {0u, 1u}) {
      auto job = job_of(3);
      for (Options& one : job) one.patience.silence = 1s;
      int joined[2];
      ASSERT_EQ(::pipe(joined), 0);
      const pid_t process = start_rank(job[lost], joined[1]);
      const pid_t other = start_rank(job[2], joined[1]);
      auto mine = ControlChannel::join(job[1 - lost]);
      ASSERT_TRUE(mine) << mine.error().message();
      for (int i = 0; i < 2; ++i) {
        char byte = 0;
        ASSERT_EQ(::read(joined[0], &byte, 1), 1);
        ASSERT_EQ(byte, 'y');
      }

      ::kill(process, signal);
      const auto gathered = (*mine)->gather("norm", {});

      ASSERT_FALSE(gathered);
      EXPECT_EQ(gathered.error().code(), ErrorCode::peer_failed);
      const std::string name = std::string("rank ").append(std::to_string(lost)).append(" (");
      EXPECT_NE(gathered.error().message().find(name), std::string::npos) << gathered.error().message();
      EXPECT_NE(gathered.error().message().find("process " + std::to_string(process)), std::string::npos);
      mine->reset();
      for (const pid_t one : {process, other}) {
        ::kill(one, SIGKILL);
        ::waitpid(one, nullptr, 0);
      }
      for (const int end : joined) ::close(end);
    }
  }
}

}  // namespace
}  // namespace penstock::zero
