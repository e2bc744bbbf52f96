// How ranks find each other: who is let in, and what is said when one cannot be reached.
#include "zero/comm/process/connect_peers.hpp"

#include "kit/free_port.hpp"
#include "kit/memory_job.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero {
namespace {

using namespace std::chrono_literals;
using penstock::test::MemoryJob;
using Slots = JobControl::Slots;
using Connected = Result<std::vector<OwnedFd>>;

/// A control channel that shows, and changes, what ranks tell each other of where they listen.
class ChangedControl final : public JobControl {
 public:
  using Change = std::function<void(Slots&)>;
  ChangedControl(std::unique_ptr<JobControl> of, Change change)
      : of_(std::move(of)), change_(std::move(change)) {}
  std::uint32_t rank() const override { return of_->rank(); }
  std::uint32_t ranks() const override { return of_->ranks(); }
  Result<Slots> gather(const std::string& label, std::span<const std::byte> bytes) override {
    auto all = of_->gather(label, bytes);
    if (all && label == "where ranks listen") change_(*all);
    return all;
  }
  Result<void> start_gather(const std::string& label, std::span<const std::byte> bytes) override {
    return of_->start_gather(label, bytes);
  }
  Result<std::optional<Slots>> poll_gather() override { return of_->poll_gather(); }
  std::vector<std::uint32_t> absent() const override { return of_->absent(); }
  std::optional<Error> obstacle() const override { return of_->obstacle(); }
  void fail(const Error& error) noexcept override { of_->fail(error); }
  void fail_job(const Error& error) noexcept override { of_->fail_job(error); }
  void interrupt(const Error& cause) noexcept override { of_->interrupt(cause); }
  Result<void> start_recovery() override { return of_->start_recovery(); }
  Result<bool> poll_recovery() override { return of_->poll_recovery(); }
  void set_wake(std::function<void()> wake) override { of_->set_wake(std::move(wake)); }

 private:
  const std::unique_ptr<JobControl> of_;
  const Change change_;
};

/// Connects ranks, on a thread each; `change` is called with what a rank has been told.
std::vector<Connected> connect_all(
    std::uint32_t ranks, TimePoint deadline,
    const std::function<void(std::uint32_t rank, Slots& told)>& change = [](std::uint32_t, Slots&) {}) {
  const auto job = std::make_shared<MemoryJob>(ranks);
  std::vector<std::future<Connected>> connecting;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    connecting.push_back(std::async(std::launch::async, [=] {
      ChangedControl control(job->control(rank), [=](Slots& told) { change(rank, told); });
      return connect_peers(control, {.own = "127.0.0.1", .rank_0 = "127.0.0.1"}, deadline);
    }));
  }
  std::vector<Connected> connected;
  for (auto& one : connecting) connected.push_back(one.get());
  return connected;
}

/// That each socket leads to the rank of its number.
void expect_connected(std::vector<Connected>& ranks) {
  for (std::uint32_t r = 0; r < ranks.size(); ++r) {
    ASSERT_TRUE(ranks[r]) << ranks[r].error().message();
    for (std::uint32_t peer = 0; peer < ranks.size(); ++peer) {
      ASSERT_EQ((*ranks[r])[peer].is_open(), peer != r);
      if (peer == r) continue;
      const auto number = static_cast<char>(r);
      ASSERT_EQ(::send((*ranks[r])[peer].get(), &number, 1, MSG_NOSIGNAL), 1);
    }
  }
  for (std::uint32_t r = 0; r < ranks.size(); ++r) {
    for (std::uint32_t peer = 0; peer < ranks.size(); ++peer) {
      if (peer == r) continue;
      pollfd readable{.fd = (*ranks[r])[peer].get(), .events = POLLIN, .revents = 0};
      ASSERT_EQ(::poll(&readable, 1, 10'000), 1);
      char number = -1;
      ASSERT_EQ(::recv(readable.fd, &number, 1, 0), 1);
      EXPECT_EQ(number, static_cast<char>(peer));
    }
  }
}

std::uint16_t port_in(const std::vector<std::byte>& listener) {
  std::uint16_t port = 0;
  std::memcpy(&port, listener.data(), sizeof port);
  return port;
}
void set_port(std::vector<std::byte>& listener, std::uint16_t port) {
  std::memcpy(listener.data(), &port, sizeof port);
}

/// Connects to `port` of this machine, and writes `bytes`.
OwnedFd stranger(std::uint16_t port, std::span<const std::byte> bytes) {
  OwnedFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  return socket;
}

TEST(ConnectPeers, ConnectsEveryRankWithEveryOther) {
  for (const std::uint32_t ranks : {1u, 2u, 6u}) {
    auto connected = connect_all(ranks, 20s);
    expect_connected(connected);
  }
}

TEST(ConnectPeers, LetsNoStrangerIn) {
  std::vector<OwnedFd> strangers;
  auto connected = connect_all(3, 20s, [&strangers](std::uint32_t rank, Slots& told) {
    if (rank != 2) return;  // it comes last: it has not connected yet
    for (const std::size_t peer : {0u, 1u}) {
      const std::uint16_t port = port_in(told[peer]);
      std::vector<std::byte> greeting(20);
      strangers.push_back(stranger(port, {}));  // says nothing
      strangers.push_back(stranger(port, std::vector<std::byte>(7)));
      strangers.push_back(stranger(port, std::vector<std::byte>(10'000, std::byte(0x47))));
      // As rank 2, with another key.
      greeting[0] = std::byte(2);
      strangers.push_back(stranger(port, greeting));
      // With the key, as a rank that does not connect here.
      std::memcpy(greeting.data() + 4, told[peer].data() + 2, 16);
      for (const std::uint32_t wrong : {0u, 3u, ~0u}) {
        std::memcpy(greeting.data(), &wrong, 4);
        strangers.push_back(stranger(port, greeting));
      }
    }
  });
  expect_connected(connected);
}

TEST(ConnectPeers, GivesUpAtTheDeadlineWhereAnotherProgramAnswers) {
  penstock::test::Listener other;
  const auto connected = connect_all(2, 500ms, [&](std::uint32_t rank, Slots& told) {
    if (rank == 1) set_port(told[0], other.port());
  });
  for (const Connected& one : connected) {
    ASSERT_FALSE(one);
    EXPECT_EQ(one.error().code(), ErrorCode::deadline_exceeded) << one.error().message();
  }
}

TEST(ConnectPeers, NamesTheRankThatCannotBeReachedAndItsAddress) {
  const std::uint16_t nowhere = penstock::test::free_port();
  const auto connected = connect_all(2, 500ms, [nowhere](std::uint32_t rank, Slots& told) {
    if (rank == 1) set_port(told[0], nowhere);
  });
  std::string all;
  for (const Connected& one : connected) {
    ASSERT_FALSE(one);
    EXPECT_EQ(one.error().code(), ErrorCode::deadline_exceeded);
    all = one.error().message();
    // The error of the rank that gives up first is that of both.
    const bool of_1 = all.find("rank 0 at 127.0.0.1:" + std::to_string(nowhere) + ": Connection refused") !=
                      std::string::npos;
    const bool of_0 = all.find("rank 1 has not come to port ") != std::string::npos;
    EXPECT_TRUE(of_1 || of_0) << all;
  }
}

TEST(ConnectPeers, FailsWithTheReasonOfARankThatFails) {
  const auto job = std::make_shared<MemoryJob>(2);
  auto connecting = std::async(std::launch::async, [&] {
    const auto control = job->control(0);
    return connect_peers(*control, {.own = "127.0.0.1", .rank_0 = "127.0.0.1"}, 20s);
  });
  const auto control = job->control(1);
  control->fail(Error(ErrorCode::no_space, "Somewhere").reason("the disk is full"));
  const auto connected = connecting.get();
  ASSERT_FALSE(connected);
  EXPECT_NE(connected.error().message().find("the disk is full"), std::string::npos);
}

TEST(ConnectPeers, RefusesAnAddressThatIsNone) {
  const auto connected = connect_all(2, 10s, [](std::uint32_t rank, Slots& told) {
    if (rank == 1) told[0].resize(10);
  });
  for (const Connected& one : connected) {  // rank 0 waits for rank 1, and is told
    ASSERT_FALSE(one);
    EXPECT_EQ(one.error().code(), ErrorCode::corrupted) << one.error().message();
  }
}

}  // namespace
}  // namespace penstock::zero
