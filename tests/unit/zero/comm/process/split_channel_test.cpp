// Groups that are parts of a group, each rank on a thread of this process.
#include <penstock/zero/comm/process_group.hpp>

#include "kernels/host_compute.hpp"
#include "kit/free_port.hpp"
#include "kit/sanitizer.hpp"

#include <penstock/tiers/device/host_device.hpp>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace penstock::zero {
namespace {

using namespace std::chrono_literals;

/// What one rank does with its group. Returns what is wrong.
using Body = std::function<std::string(ProcessGroup& group)>;

void run_ranks(std::uint32_t ranks, const Body& body, TimePoint deadline = 30min) {
  const std::uint16_t port = penstock::test::free_port();
  std::vector<std::future<std::string>> running;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    running.push_back(std::async(std::launch::async, [=]() -> std::string {
      const auto group = ProcessGroup::join({.rank = rank,
                                             .ranks = ranks,
                                             .rank_0 = {"127.0.0.1", port},
                                             .job = "job",
                                             .join_deadline = 20s,
                                             .silence_max = 10s,
                                             .deadline = deadline});
      return group ? body(**group) : group.error().message();
    }));
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) EXPECT_EQ(running[rank].get(), "") << "rank " << rank;
}

/// The numbers that the ranks of a group give.
Result<std::vector<std::uint32_t>> gather(ProcessGroup& group, std::uint32_t mine) {
  PENSTOCK_TRY_ASSIGN(const auto slots, group.gather("number", std::as_bytes(std::span(&mine, 1))));
  std::vector<std::uint32_t> all;
  for (const auto& slot : slots) {
    std::memcpy(&all.emplace_back(), slot.data(), sizeof mine);
  }
  return all;
}

/// The numbers that the ranks of a group exchange by a collective.
Result<std::vector<std::uint32_t>> exchange(ProcessGroup& group, std::uint32_t mine) {
  tiers::HostDevice device({.memory = 1_MiB});
  const auto compute = kernels::make_host_compute();
  PENSTOCK_TRY_ASSIGN(const auto communicator, group.connect(device, *compute, {}));
  std::vector<std::uint32_t> all(communicator->size());
  PENSTOCK_TRY(communicator->start_exchange(ConstHostSpan(std::span<const std::uint32_t>(&mine, 1)),
                                            HostSpan(std::span(all)), {}));
  while (true) {
    PENSTOCK_TRY_ASSIGN(const bool completed, communicator->poll());
    if (completed) return all;
    std::this_thread::yield();
  }
}

TEST(ProcessGroupSplit, MakesAGroupOfEachColorInTheOrderOfTheRanks) {
  using Numbers = std::vector<std::uint32_t>;
  run_ranks(4, [](ProcessGroup& all) -> std::string {
    const std::uint32_t rank = all.identity().rank;
    const auto part = all.split(rank % 2);
    if (!part) return part.error().message();

    const RankIdentity& identity = (*part)->identity();
    if (identity.rank != rank / 2 || identity.ranks != 2 || identity.local_ranks != 2) return "another place";
    const Numbers members{rank % 2, rank % 2 + 2};
    if (gather(**part, rank).value() != members) return "gathered from other ranks";
    if (exchange(**part, rank).value() != members) return "exchanged with other ranks";
    const auto nested = (*part)->split(rank);
    if (!nested || (*nested)->identity().ranks != 1) return "the part cannot be split again";
    return gather(all, rank).value() == Numbers{0, 1, 2, 3} ? "" : "the group does not work any more";
  });
}

TEST(ProcessGroupSplit, MakesAGroupOfOneRankWithoutANetwork) {
  run_ranks(3, [](ProcessGroup& all) -> std::string {
    const std::uint32_t rank = all.identity().rank;
    const auto part = all.split(rank == 1 ? 7 : 5);
    if (!part) return part.error().message();
    const std::vector<std::uint32_t> members =
        rank == 1 ? std::vector<std::uint32_t>{1} : std::vector<std::uint32_t>{0, 2};
    return exchange(**part, rank).value() == members ? "" : "exchanged with other ranks";
  });
  const auto alone = ProcessGroup::join({}).value();
  EXPECT_EQ(alone->split(~0u).value()->identity().ranks, 1u);
}

TEST(ProcessGroupSplit, FailsAPartAndLeavesTheOthersAlone) {
  run_ranks(4, [](ProcessGroup& all) -> std::string {
    const std::uint32_t rank = all.identity().rank;
    auto part = all.split(rank % 2);
    if (!part) return part.error().message();
    if (!gather(**part, rank)) return "the part does not work";
    if (rank == 3) (*part)->abort(Error(ErrorCode::no_space, "test").reason("the disk is full"));
    const auto gathered = gather(**part, rank);
    const bool failed = !gathered && gathered.error().code() == ErrorCode::peer_failed &&
                        gathered.error().message().find("rank 1 has failed") != std::string::npos &&
                        gathered.error().message().find("the disk is full") != std::string::npos;
    if (failed != (rank % 2 == 1)) return gathered ? "a failure is lost" : gathered.error().message();
    part->reset();
    return gather(all, rank) ? "" : "the group fails with its part";
  });
}

TEST(ProcessGroupSplit, TellsTheRanksOfAColorThatItsFirstRankCannotListen) {
  if (test::address_sanitizer) GTEST_SKIP() << "the sanitizer needs descriptors to examine an object";
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  std::latch joined(3), split(3);
  run_ranks(
      3,
      [&](ProcessGroup& all) -> std::string {
        const std::uint32_t rank = all.identity().rank;
        joined.arrive_and_wait();
        if (rank == 0) {
          rlimit none = files;
          none.rlim_cur = 3;
          ::setrlimit(RLIMIT_NOFILE, &none);
        }
        (void)gather(all, rank);  // the limit holds
        const auto part = all.split(rank == 2 ? 1 : 0);
        split.arrive_and_wait();
        if (rank == 0) ::setrlimit(RLIMIT_NOFILE, &files);
        if (!gather(all, rank)) return "the group fails with its part";
        if (rank == 2) return part ? "" : part.error().message();
        if (part) return "it has a group";
        const std::string message = part.error().message();
        if (message.find("Too many open files") == std::string::npos) return message;
        const bool named = rank == 0 || message.find("rank 0 cannot listen") != std::string::npos;
        return named ? "" : message;
      },
      10s);
}

TEST(ProcessGroupSplit, NamesTheRankThatDoesNotSplit) {
  run_ranks(
      2,
      [](ProcessGroup& all) -> std::string {
        if (all.identity().rank == 1) {
          const auto gathered = all.gather("losses", {});
          return gathered ? "it has gathered" : "";
        }
        const auto part = all.split(0);
        const bool named = !part && part.error().code() == ErrorCode::invalid_argument &&
                           part.error().message().find("losses") != std::string::npos;
        return named ? "" : "no error";
      },
      10s);
}

TEST(ProcessGroupSplit, IsRefusedOverMpi) {
  const auto group = ProcessGroup::join({.carrier = Carrier::mpi}).value();

  EXPECT_EQ(group->split(0).error().code(), ErrorCode::unsupported);
}

}  // namespace
}  // namespace penstock::zero
