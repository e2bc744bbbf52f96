// Ranks that are connected by TCP on this machine, each on a thread of this process.
#include <penstock/zero/comm/process_group.hpp>

#include "kernels/host_compute.hpp"
#include "kit/free_port.hpp"
#include "kit/pattern.hpp"
#include "kit/sanitizer.hpp"

#include <penstock/tiers/device/host_device.hpp>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>
#include <array>
#include <atomic>
#include <chrono>
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
using penstock::test::Pattern;
using tiers::HostDevice;

/// Calls a function for each rank of a job, on a thread each. Returns what is wrong, by rank.
std::vector<std::string> run_job(
    std::uint32_t ranks, const std::function<std::string(std::uint32_t rank, ProcessGroupOptions)>& run) {
  const std::uint16_t port = penstock::test::free_port();
  std::vector<std::future<std::string>> running;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    running.push_back(std::async(std::launch::async, [=] {
      return run(rank, {.rank = rank,
                        .ranks = ranks,
                        .rank_0 = {"127.0.0.1", port},
                        .job = "job",
                        .join_deadline = 20s,
                        .silence_max = 10s});
    }));
  }
  std::vector<std::string> wrong;
  for (auto& one : running) wrong.push_back(one.get());
  return wrong;
}
void expect_nothing_wrong(const std::vector<std::string>& ranks) {
  for (const std::string& wrong : ranks) EXPECT_EQ(wrong, "");
}

/// What is wrong where a rank joins its group and connects.
std::string join_and_connect(const ProcessGroupOptions& options) {
  const auto group = ProcessGroup::join(options);
  if (!group) return group.error().message();
  HostDevice device({.memory = 1_MiB});
  const auto compute = kernels::make_host_compute();
  const auto connected = (*group)->connect(device, *compute, {});
  return connected ? "" : connected.error().message();
}

/// One rank's device and communicator.
struct Rank {
  Rank(std::shared_ptr<ProcessGroup> of, ByteCount flat_bytes)
      : group(std::move(of)), flat(device.allocate(flat_bytes).value()) {}
  ~Rank() {
    communicator.reset();
    stream.reset();
    device.release(flat);
  }
  Result<void> finish() {
    while (true) {
      PENSTOCK_TRY_ASSIGN(const bool completed, communicator->poll());
      if (completed) return ok();
      std::this_thread::yield();
    }
  }
  [[nodiscard]] HostSpan slot(std::uint32_t index) const {
    const ByteCount size = flat.size() / group->identity().ranks;
    return HostDevice::bytes(flat.subspan(size * index, size));
  }

  std::shared_ptr<ProcessGroup> group;
  HostDevice device{{.memory = 64_MiB}};
  std::unique_ptr<Compute> compute = kernels::make_host_compute();
  std::unique_ptr<tiers::Stream> stream = device.create_stream().value();
  DeviceSpan flat;
  std::unique_ptr<Communicator> communicator = group->connect(device, *compute, {}).value();
};

using Body = std::function<std::string(Rank&)>;

/// Has every rank join, and run `body` with a flat of slots of `slot_bytes`.
std::vector<std::string> run_ranks(std::uint32_t ranks, ByteCount slot_bytes, const Body& body,
                                   TimePoint deadline = 30min) {
  return run_job(ranks, [&](std::uint32_t, ProcessGroupOptions options) -> std::string {
    options.deadline = deadline;
    auto group = ProcessGroup::join(options);
    if (!group) return group.error().message();
    Rank rank(*std::move(group), slot_bytes * ranks);
    return body(rank);
  });
}

TEST(ProcessGroup, GathersSlotsOfEverySize) {
  for (const std::uint32_t ranks : {1u, 2u, 4u}) {
    for (const ByteCount slot : {2_B, 254_B, 256_KiB, 256_KiB + 2_B, 3_MiB}) {
      expect_nothing_wrong(run_ranks(ranks, slot, [](Rank& one) -> std::string {
        const RankIdentity identity = one.group->identity();
        for (std::uint64_t generation = 0; generation < 3; ++generation) {
          Pattern{.tensor = identity.rank, .generation = generation}.fill(one.slot(identity.rank));
          const auto started =
              one.communicator->start_all_gather(*one.stream, one.flat, {.step = generation});
          if (!started) return started.error().message();
          if (const auto finished = one.finish(); !finished) return finished.error().message();
          for (std::uint32_t r = 0; r < identity.ranks; ++r) {
            if (Pattern{.tensor = r, .generation = generation}.first_difference(one.slot(r)))
              return "wrong bytes";
          }
        }
        return "";
      }));
    }
  }
}

TEST(ProcessGroup, AveragesAndExchanges) {
  expect_nothing_wrong(run_ranks(3, 400_KiB, [](Rank& one) -> std::string {
    const std::uint32_t rank = one.group->identity().rank;
    for (std::uint32_t r = 0; r < 3; ++r) {
      auto values = std::span(reinterpret_cast<float*>(one.slot(r).data()), one.slot(r).size().value() / 4);
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(rank * 1000 + r * 100) + static_cast<float>(i % 50);
    }
    auto started = one.communicator->start_reduce_scatter(
        *one.stream, std::array{DeviceTensor{one.flat, DType::fp32}}, Reduction::exact, {});
    if (!started) return started.error().message();
    if (const auto finished = one.finish(); !finished) return finished.error().message();
    if (const auto done = one.stream->synchronize(); !done) return done.error().message();
    const auto mean = std::span(reinterpret_cast<const float*>(one.slot(rank).data()), 100'000);
    for (std::size_t i = 0; i < mean.size(); ++i) {
      if (mean[i] != static_cast<float>(1000 + rank * 100) + static_cast<float>(i % 50)) return "wrong mean";
    }
    const std::uint64_t mine = 10 + rank;
    std::vector<std::uint64_t> all(3);
    started =
        one.communicator->start_exchange(ConstHostSpan(std::span(&mine, 1)), HostSpan(std::span(all)), {});
    if (!started) return started.error().message();
    if (const auto finished = one.finish(); !finished) return finished.error().message();
    return all == std::vector<std::uint64_t>{10, 11, 12} ? "" : "wrong bytes";
  }));
}

TEST(ProcessGroup, TellsWhichRanksShareAMachine) {
  expect_nothing_wrong(run_job(3, [](std::uint32_t rank, ProcessGroupOptions options) -> std::string {
    if (rank == 1) options.local_rank = 5, options.local_ranks = 8;  // its launcher knows better
    const auto group = ProcessGroup::join(options);
    if (!group) return group.error().message();
    const RankIdentity identity = (*group)->identity();
    if (identity.rank != rank || identity.ranks != 3) return "wrong rank";
    return identity.local_rank == (rank == 1 ? 5 : rank) && identity.local_ranks == (rank == 1 ? 8u : 3u)
               ? ""
               : "wrong local rank";
  }));
}

TEST(ProcessGroup, NamesADifferenceOfTheRunsOnEveryRank) {
  const auto wrong = run_job(3, [](std::uint32_t rank, const ProcessGroupOptions& options) -> std::string {
    const auto group = ProcessGroup::join(options);
    if (!group) return group.error().message();
    const auto agreed = (*group)->agree(rank == 2 ? "zero.stage\t2" : "zero.stage\t3");
    return agreed ? "agreed" : agreed.error().message();
  });
  for (const std::string& rank : wrong) {
    EXPECT_NE(rank.find("zero.stage, wanted 3, as rank 0, got 2"), std::string::npos) << rank;
    EXPECT_NE(rank.find("rank 2"), std::string::npos) << rank;
  }
}

TEST(ProcessGroup, NamesADifferenceInALongDescription) {
  const auto wrong = run_job(16, [](std::uint32_t rank, const ProcessGroupOptions& options) -> std::string {
    const auto group = ProcessGroup::join(options);
    if (!group) return group.error().message();
    std::string description = rank == 2 ? "zero.stage\t2\n" : "zero.stage\t3\n";
    for (int unit = 0; unit < 1000; ++unit)
      description += "unit " + std::to_string(unit) + '\t' + std::string(100, 'x') + '\n';
    const auto agreed = (*group)->agree(description);
    if (agreed) return "agreed";
    (*group)->abort(agreed.error());
    return agreed.error().message();
  });
  for (const std::string& rank : wrong)
    EXPECT_NE(rank.find("zero.stage, wanted 3, as rank 0, got 2"), std::string::npos) << rank;
}

TEST(ProcessGroup, DoesNotWaitForEverForARankThatDoesNotAgree) {
  std::promise<void> agreed;
  const auto wrong = run_job(2, [&agreed](std::uint32_t rank, ProcessGroupOptions options) -> std::string {
    options.join_deadline = options.deadline = options.silence_max = 500ms;
    const auto group = ProcessGroup::join(options);
    if (!group) return group.error().message();
    if (rank == 1) {  // lives, and does other things
      const auto ended = agreed.get_future().wait_for(5s);
      return ended == std::future_status::ready ? "" : "rank 0 still waits";
    }
    const auto outcome = (*group)->agree("zero.stage\t3");
    agreed.set_value();
    return !outcome && outcome.error().code() == ErrorCode::deadline_exceeded ? "" : "no deadline";
  });
  expect_nothing_wrong(wrong);
}

TEST(ProcessGroup, TakesADeadlineWithoutEnd) {
  expect_nothing_wrong(run_job(2, [](std::uint32_t, ProcessGroupOptions options) -> std::string {
    options.join_deadline = TimePoint::max();
    return join_and_connect(options);
  }));
}

TEST(ProcessGroup, NamesADifferenceOfTheCarriersOnEveryRank) {
  const auto wrong = run_job(2, [](std::uint32_t rank, ProcessGroupOptions options) -> std::string {
    if (rank == 1) options.carrier = Carrier::mpi;
    return join_and_connect(options);
  });
  for (const std::string& rank : wrong) {
    EXPECT_NE(rank.find("rank 1, wanted tcp, as rank 0, got mpi"), std::string::npos) << rank;
  }
}

// Each number of them is too few for something else.
TEST(ProcessGroup, ReturnsAnErrorWhereDescriptorsRunOut) {
  if (test::address_sanitizer) GTEST_SKIP() << "the sanitizer needs descriptors to examine an object";
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  const int in_use = ::dup(STDERR_FILENO);
  ASSERT_EQ(::close(in_use), 0);
  std::uint32_t refused = 0;
  bool enough = false;
  for (rlim_t more = 1; more < 60 && !enough; more += 2) {
    const rlimit few{.rlim_cur = static_cast<rlim_t>(in_use) + more, .rlim_max = files.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    const auto wrong = run_job(2, [](std::uint32_t, ProcessGroupOptions options) -> std::string {
      options.join_deadline = 2s;
      return join_and_connect(options);
    });
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
    enough = wrong == std::vector<std::string>(2);
    if (enough) break;
    ++refused;
    EXPECT_NE((wrong[0] + wrong[1]).find("ulimit -n"), std::string::npos)
        << more << ": " << wrong[0] << wrong[1];
  }
  EXPECT_TRUE(enough);
  EXPECT_GT(refused, 5u);
}

TEST(ProcessGroup, RefusesASecondRankAndTheFirstGoesOn) {
  expect_nothing_wrong(run_job(2, [](std::uint32_t, const ProcessGroupOptions& options) -> std::string {
    const auto group = ProcessGroup::join(options).value();
    HostDevice device({.memory = 1_MiB});
    const auto compute = kernels::make_host_compute();
    const auto first = process_membership(group), second = process_membership(group);
    second.abandon(
        Error(ErrorCode::already_exists, "ProcessGroup::connect"));  // while the first one connects
    const auto connected = first.join(device, *compute, {}).value();
    const auto agreed = second.agree("what all have in common");
    if (agreed || agreed.error().code() != ErrorCode::already_exists) return "it agrees";
    second.abandon(agreed.error());
    second.abandon(Error(ErrorCode::already_exists, "of another file that would be lost"));
    second.abandon(Error(ErrorCode::in_use, "of a directory that the first one has"));
    return group->gather("losses", {}) ? "" : "the group has failed";
  }));
}

// Whatever its error is: this one is also that of a second rank.
TEST(ProcessGroup, TellsTheOthersOfARankThatCannotBeCreatedAndKeepsItsGroup) {
  std::latch abandoned(2);
  expect_nothing_wrong(run_job(2, [&](std::uint32_t rank, const ProcessGroupOptions& options) -> std::string {
    const auto group = ProcessGroup::join(options).value();
    const auto membership = process_membership(group);
    std::string wrong;
    if (rank == 1) {
      membership.abandon(
          Error(ErrorCode::already_exists, "save_report").reason("another file would be lost"));
    } else {
      const auto agreed = membership.agree("what all have in common");
      if (agreed || agreed.error().code() != ErrorCode::peer_failed ||
          agreed.error().message().find("another file would be lost") == std::string::npos)
        wrong = agreed ? "it agrees" : agreed.error().message();
    }
    abandoned.arrive_and_wait();
    return wrong;
  }));
}

TEST(ProcessGroup, GathersForTheTrainerInTheMiddleOfACollective) {
  expect_nothing_wrong(run_ranks(3, 4_KiB, [](Rank& one) -> std::string {
    const std::byte mine{static_cast<std::uint8_t>(one.group->identity().rank)};
    const auto started = one.communicator->start_all_gather(*one.stream, one.flat, {});
    if (!started) return started.error().message();
    const auto all = one.group->gather("losses", std::span(&mine, 1));
    if (!all) return all.error().message();
    if (const auto finished = one.finish(); !finished) return finished.error().message();
    return *all == ProcessGroup::Slots{{std::byte(0)}, {std::byte(1)}, {std::byte(2)}} ? "" : "wrong bytes";
  }));
  const std::byte mine{7};
  EXPECT_EQ(ProcessGroup::join({}).value()->gather("losses", std::span(&mine, 1)).value(),
            ProcessGroup::Slots{{mine}});
}

TEST(ProcessGroup, EndsTheCollectivesOfAllWithTheCauseOfOne) {
  const auto wrong = run_ranks(3, 4_KiB, [](Rank& one) -> std::string {
    if (one.group->identity().rank == 2) {
      one.communicator->abort(Error(ErrorCode::no_space, "Somewhere").reason("the disk is full"));
      return "";
    }
    const auto started = one.communicator->start_all_gather(*one.stream, one.flat, {});
    const auto finished = started ? one.finish() : started;
    return finished ? "finished" : finished.error().message();
  });
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_NE(wrong[r].find("rank 2 has failed"), std::string::npos) << wrong[r];
    EXPECT_NE(wrong[r].find("the disk is full"), std::string::npos) << wrong[r];
  }
}

TEST(ProcessGroup, NamesTheRankThatDoesNotCome) {
  std::atomic<int> failed = 0;
  std::latch connected(3);
  const auto wrong = run_ranks(
      3, 4_KiB,
      [&](Rank& one) -> std::string {
        connected.arrive_and_wait();
        if (one.group->identity().rank == 1) {
          while (failed < 2) std::this_thread::sleep_for(1ms);
        }
        // Rank 1 has the bytes of the others, and may finish a gather before their error reaches it.
        for (std::uint64_t gather = 0; gather < (one.group->identity().rank == 1 ? 2u : 1u); ++gather) {
          const auto started =
              one.communicator->start_all_gather(*one.stream, one.flat, {.unit = 3, .step = 7});
          if (const auto finished = started ? one.finish() : started; !finished) {
            ++failed;
            return finished.error().message();
          }
        }
        return "finished";
      },
      1s);
  for (const std::string& rank : wrong) {
    EXPECT_NE(rank.find("rank 1 did not come in 1 s"), std::string::npos) << rank;
    EXPECT_NE(rank.find("all-gather of parameters of unit 3"), std::string::npos) << rank;
  }
}

/// Gathers until the job is interrupted, or six times. Returns what is wrong.
std::string gather_until_interrupted(Rank& one, std::uint64_t attempt, bool& interrupted) {
  const std::uint32_t rank = one.group->identity().rank;
  for (std::uint64_t step = 0; step < 6; ++step) {
    const std::uint64_t generation = attempt * 10 + step;
    Pattern{.tensor = rank, .generation = generation}.fill(one.slot(rank));
    const auto started = one.communicator->start_all_gather(*one.stream, one.flat, {.step = step});
    if (const auto finished = started ? one.finish() : started; !finished) {
      interrupted = finished.error().code() == ErrorCode::interrupted &&
                    finished.error().message().find("no data") != std::string::npos;
      return interrupted ? "" : finished.error().message();
    }
    for (std::uint32_t r = 0; r < one.group->identity().ranks; ++r) {
      if (Pattern{.tensor = r, .generation = generation}.first_difference(one.slot(r))) return "wrong bytes";
    }
    if (attempt % 3 == rank && step == attempt % 4 && attempt < 60)
      one.communicator->interrupt(Error(ErrorCode::io, "Trainer").reason("no data"));
  }
  return "";
}

TEST(ProcessGroup, GoesOnAfterInterruptions) {
  expect_nothing_wrong(run_ranks(3, 300_KiB, [](Rank& one) -> std::string {
    for (std::uint64_t attempt = 0; attempt <= 60; ++attempt) {
      bool interrupted = false;
      if (std::string wrong = gather_until_interrupted(one, attempt, interrupted); !wrong.empty())
        return wrong;
      if (interrupted != (attempt < 60)) return "no interruption";
      if (!interrupted) break;
      if (const auto begun = one.communicator->start_recovery(*one.stream); !begun)
        return begun.error().message();
      if (const auto recovered = one.finish(); !recovered) return recovered.error().message();
    }
    return "";
  }));
}

TEST(ProcessGroup, RefusesWhatCannotBe) {
  const auto refused = [](ProcessGroupOptions options, ErrorCode code, const char* words) {
    const auto joined = ProcessGroup::join(options);
    ASSERT_FALSE(joined) << words;
    EXPECT_EQ(joined.error().code(), code) << joined.error().message();
    EXPECT_NE(joined.error().message().find(words), std::string::npos) << joined.error().message();
  };
  using enum ErrorCode;
  const ProcessGroupOptions good{.rank = 1, .ranks = 2, .rank_0 = {"127.0.0.1", 1}};
  const auto with = [&good](auto change) {
    ProcessGroupOptions options = good;
    change(options);
    return options;
  };
  refused(with([](auto& o) { o.ranks = 0; }), invalid_argument, "rank, wanted below 0");
  refused(with([](auto& o) { o.rank = 2; }), invalid_argument, "rank, wanted below 2");
  refused(with([](auto& o) { o.ranks = 65; }), unsupported, "ranks, wanted at most 64, got 65");
  refused(with([](auto& o) { o.rank_0 = {}; }), invalid_argument, "a host and a port");
  refused(with([](auto& o) { o.local_rank = 0; }), invalid_argument, "one is given without the other");
  refused(with([](auto& o) { o.join_deadline = {}; }), invalid_argument, "join_deadline");
  refused(with([](auto& o) { o.silence_max = {}; }), invalid_argument, "silence_max");
  refused(with([](auto& o) { o.deadline = -1s; }), invalid_argument, "deadline");
  refused(with([](auto& o) { o.clock = nullptr; }), invalid_argument, "clock");
  EXPECT_EQ(process_membership(nullptr).join.operator bool(), true);
}

TEST(ProcessGroup, ConnectsOnceAndOnlyDevicesWhoseMemoryTheHostCanAccess) {
  expect_nothing_wrong(run_ranks(2, 4_KiB, [](Rank& one) -> std::string {
    HostDevice separate({.memory = 1_MiB, .location = tiers::DeviceMemory::separate});
    if (one.group->connect(separate, *one.compute, {}).error().code() != ErrorCode::unsupported)
      return "connected a device of its own memory";
    const auto again = one.group->connect(one.device, *one.compute, {});
    return !again && again.error().code() == ErrorCode::already_exists ? "" : "connected twice";
  }));
  auto alone = ProcessGroup::join({}).value();
  EXPECT_EQ(alone->identity().ranks, 1u);
  EXPECT_TRUE(alone->agree("anything"));
}

TEST(ProcessGroupOptions, TakeThePortAfterTheMasters) {
  const Launch launch{.rank = 1,
                      .ranks = 4,
                      .local_rank = 1,
                      .local_ranks = 2,
                      .master = Endpoint{"node0", 29500},
                      .job = "42",
                      .source = "torchrun"};
  const auto options = ProcessGroupOptions::of(launch).value();
  EXPECT_EQ(options.rank, 1u);
  EXPECT_EQ(options.ranks, 4u);
  EXPECT_EQ(options.rank_0, (Endpoint{"node0", 29501}));
  EXPECT_EQ(options.job, "42");
  EXPECT_EQ(options.local_rank, 1u);
  EXPECT_EQ(options.local_ranks, 2u);
  Launch without_count = launch;  // as of a launcher that sets LOCAL_RANK alone
  without_count.local_ranks.reset();
  EXPECT_FALSE(ProcessGroupOptions::of(without_count).value().local_rank);
  Launch nowhere = launch;
  nowhere.master.reset();
  EXPECT_NE(ProcessGroupOptions::of(nowhere).error().message().find("MASTER_ADDR"), std::string::npos);
  Launch last = launch;
  last.master->port = 65535;
  EXPECT_NE(ProcessGroupOptions::of(last).error().message().find("MASTER_PORT"), std::string::npos);
  EXPECT_TRUE(ProcessGroupOptions::of(Launch{}));
}

}  // namespace
}  // namespace penstock::zero
