#include "zero/comm/process/socket_pipes.hpp"

#include "kit/deaf_socket.hpp"

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero {
namespace {

using namespace std::chrono_literals;

/// Of a connection over TCP.
std::array<OwnedFd, 2> connected() {
  const OwnedFd listener(::socket(AF_INET, SOCK_STREAM, 0));
  OwnedFd one(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  if (::bind(listener.get(), address, size) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), address, &size) != 0 || ::connect(one.get(), address, size) != 0)
    std::abort();
  OwnedFd other(::accept(listener.get(), nullptr, nullptr));
  return {std::move(one), std::move(other)};
}

/// Rank 0 of 2; the other end of its connection is no program that answers, only the kernel.
class SocketPipesToAPeer : public ::testing::Test {
 protected:
  void SetUp() override {
    auto ends = connected();
    std::vector<OwnedFd> sockets(2);
    sockets[1] = std::move(ends[0]);
    peer_ = std::move(ends[1]);
    pipes_ = SocketPipes::create(0, std::move(sockets), 1s).value();
  }

  /// As many bytes as both sockets take.
  void fill() {
    const std::vector<std::byte> bytes(1 << 20);
    const ConstHostSpan all{std::span(bytes)};
    while (pipes_->write(1, all).value() > 0) {
    }
  }
  /// The first error of `times` turns, of which each waits at most WakeEvent::wait_max.
  std::optional<Error> wait(const PeerPipes::Interest& interest, int times) {
    const std::array<PeerPipes::Interest, 2> interests{{{}, interest}};
    std::array<std::byte, 1> one{};
    for (int i = 0; i < times; ++i) {
      pipes_->wait(interests, 1h);
      const auto moved = interest.read ? pipes_->read(1, HostSpan(std::span(one)))
                                       : pipes_->write(1, ConstHostSpan(std::span(one)));
      if (!moved) return moved.error();
    }
    return std::nullopt;
  }

  OwnedFd peer_;
  std::unique_ptr<SocketPipes> pipes_;
};

constexpr PeerPipes::Interest to_read{.write = false, .read = true}, to_write{.write = true, .read = false};

TEST_F(SocketPipesToAPeer, LoseItWhenItsHostDoesNotAnswerWhatIsSent) {
  ASSERT_TRUE(penstock::test::make_deaf(peer_.get()));
  fill();
  const auto lost = wait(to_read, 40);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->code(), ErrorCode::peer_failed);
  EXPECT_NE(lost->message().find(
                "rank 0 and rank 1 cannot reach each other: the host of rank 1 has not answered for 1"),
            std::string::npos)
      << lost->message();
  EXPECT_TRUE(wait(to_write, 1));
}

TEST_F(SocketPipesToAPeer, LoseItWhenItsHostDoesNotAnswerAnIdleConnection) {
  ASSERT_TRUE(penstock::test::make_deaf(peer_.get()));
  const auto lost = wait(to_read, 40);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->code(), ErrorCode::peer_failed);
}

// A rank that is behind the others takes nothing for a long time.
TEST_F(SocketPipesToAPeer, KeepAPeerThatAnswersAndTakesNoBytes) {
  fill();
  EXPECT_FALSE(wait(to_write, 25));
}

TEST_F(SocketPipesToAPeer, KeepAPeerThatAnswersAndSendsNothing) {
  EXPECT_FALSE(wait(to_read, 25));
}

}  // namespace
}  // namespace penstock::zero
