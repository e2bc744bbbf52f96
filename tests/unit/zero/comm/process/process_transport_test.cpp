// One rank of a job of two, whose peer does as the test says.
#include "zero/comm/process/process_transport.hpp"

#include "kernels/host_compute.hpp"
#include "kit/process_ranks.hpp"
#include "zero/comm/process/mesh_thread.hpp"
#include "zero/comm/process/socket_pipes.hpp"
#include "zero/comm/transfer_header.hpp"

#include <penstock/tiers/device/host_device.hpp>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::zero {
namespace {

using namespace std::chrono_literals;
using tiers::HostDevice;

/// Rank 0 with a thread that moves its bytes, and the other end of its connection.
struct RankWithAPeer {
  RankWithAPeer() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) std::abort();
    std::vector<OwnedFd> own(2), of_peer(2);
    own[1] = OwnedFd(ends[0]);
    of_peer[0] = OwnedFd(ends[1]);
    peer = SocketPipes::create(1, std::move(of_peer), 30s).value();
    auto thread = MeshThread::start(
                      std::make_unique<PeerMesh>(0, 2, SocketPipes::create(0, std::move(own), 30s).value()))
                      .value();
    exchange = thread.get();
    communicator = std::make_unique<TransportCommunicator>(
        ProcessTransport::create({.deadline = 10s, .reason_max = 1s}, job->control(0), device,
                                 std::move(thread))
            .value(),
        *compute);
  }
  Result<void> start_exchange() {
    return communicator->start_exchange(ConstHostSpan(std::span(&mine, 1)), HostSpan(std::span(all)), {});
  }

  HostDevice device{{.memory = 1_MiB}};
  std::unique_ptr<Compute> compute = kernels::make_host_compute();
  std::shared_ptr<penstock::test::MemoryJob> job = std::make_shared<penstock::test::MemoryJob>(2);
  std::unique_ptr<PeerPipes> peer;
  PeerExchange* exchange = nullptr;
  std::uint64_t mine = 1;
  std::vector<std::uint64_t> all = {77, 77};
  std::unique_ptr<Communicator> communicator;
};

// The peer has completed it too, perhaps, and applied it.
TEST(ProcessTransport, CompletesAnExchangeThatAllHaveComeToBeforeAnInterruption) {
  for (const bool has_bytes : {false, true}) {
    RankWithAPeer rank;
    ASSERT_TRUE(rank.start_exchange());
    const auto peer = rank.job->control(1);
    const std::uint64_t of_peer = 2;
    const Transfer transfer{.kind = Transfer::Kind::exchange, .mine = ConstHostSpan(std::span(&of_peer, 1))};
    ASSERT_TRUE(peer->start_gather("exchange", announcement_of(transfer)));
    ASSERT_FALSE(has_bytes && rank.communicator->poll().value());  // the peer's chunk is missing
    peer->interrupt(Error(ErrorCode::io, "Trainer"));

    EXPECT_TRUE(rank.communicator->poll().value());
    EXPECT_EQ(rank.all, (std::vector<std::uint64_t>{1, 2}));
    EXPECT_EQ(rank.start_exchange().error().code(), ErrorCode::interrupted);
  }
}

TEST(ProcessTransport, CompletesNothingAfterAnErrorOfAStream) {
  for (int attempt = 0; attempt < 200; ++attempt) {
    RankWithAPeer rank;
    const std::vector<std::byte> no_chunk(PeerLink::header_bytes, std::byte{0xff});
    ASSERT_EQ(rank.peer->write(0, ConstHostSpan(std::span(no_chunk))).value(), no_chunk.size());
    while (!rank.exchange->poll().error) std::this_thread::yield();
    ASSERT_TRUE(rank.start_exchange());
    Result<bool> polled = false;
    while (polled && !*polled) polled = rank.communicator->poll();

    ASSERT_FALSE(polled) << "complete with " << rank.all[1] << " of rank 1";
  }
}

/// Two ranks without threads.
struct TwoRanks {
  TwoRanks() {
    for (std::uint32_t r = 0; r < 2; ++r) {
      streams.push_back(devices[r].create_stream().value());
      communicators.push_back(ranks.join(r, devices[r], *compute));
    }
  }
  HostDevice devices[2] = {HostDevice({.memory = 1_MiB}), HostDevice({.memory = 1_MiB})};
  std::unique_ptr<Compute> compute = kernels::make_host_compute();
  penstock::test::ProcessRanks ranks{2, /*seed=*/1};
  std::vector<std::unique_ptr<tiers::Stream>> streams;
  std::vector<std::unique_ptr<Communicator>> communicators;
};

TEST(ProcessTransport, FailsWithTheJobWhileTheBytesOfARecoveryAreMissing) {
  TwoRanks two;
  two.communicators[0]->interrupt(Error(ErrorCode::io, "Trainer").reason("no data"));
  ASSERT_TRUE(two.communicators[0]->start_recovery(*two.streams[0]));
  ASSERT_TRUE(two.communicators[1]->start_recovery(*two.streams[1]));
  ASSERT_FALSE(two.communicators[0]->poll().value());  // all recover; rank 1 has sent nothing
  two.ranks.job->control(0)->fail_job(
      Error(ErrorCode::peer_failed, "Job").reason("rank 1 has shown no sign of life"));

  EXPECT_FALSE(two.communicators[0]->poll());
}

TEST(ProcessTransport, RefusesACollectiveDuringARecovery) {
  TwoRanks two;
  two.communicators[0]->interrupt(Error(ErrorCode::io, "Trainer").reason("no data"));
  ASSERT_TRUE(two.communicators[0]->start_recovery(*two.streams[0]));
  const std::uint64_t mine = 1;
  std::vector<std::uint64_t> all(2);
  (void)two.communicators[0]->start_exchange(ConstHostSpan(std::span(&mine, 1)), HostSpan(std::span(all)),
                                             {});

  EXPECT_TRUE(two.communicators[0]->poll()) << "the recovery does not go on";
}

}  // namespace
}  // namespace penstock::zero
