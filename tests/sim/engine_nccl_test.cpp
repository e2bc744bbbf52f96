// The engine over NCCL: ranks on devices of their own, on the fake NCCL and the fake CUDA runtime.
#include "fake_cuda/fake_cuda.hpp"
#include "fake_nccl/fake_nccl.hpp"
#include "kit/cluster.hpp"
#include "kit/free_port.hpp"
#include "kit/memory_job.hpp"
#include "kit/seeds.hpp"
#include "zero/comm/nccl/nccl_group.hpp"

#include <penstock/zero/comm/process_group.hpp>

#include <gtest/gtest.h>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

namespace fake_cuda = penstock::test::fake_cuda;
namespace fake_nccl = penstock::test::fake_nccl;
using enum OffloadDevice;
using penstock::test::SeededRandom;
using Point = RunOptions::ProgramPoint;

class EngineOnNccl : public testing::TestWithParam<std::uint32_t> {
 protected:
  void SetUp() override { ASSERT_EQ(setenv("PENSTOCK_NCCL", PENSTOCK_FAKE_NCCL, /*overwrite=*/1), 0); }
  void TearDown() override {
    fake_nccl::restart();
    fake_cuda::restart();
  }

  static RunOptions run_options(OffloadDevice offload) {
    RunOptions options{.ranks = GetParam(), .steps = 2, .device_memory = tiers::DeviceMemory::separate};
    options.config.offload_param.device = options.config.offload_optimizer.device = offload;
    options.config.penstock.reduction = Reduction::exact;
    return options;
  }
  /// Trains with the same options over NCCL; the streams and what NCCL has in progress in an order chosen by `seed`.
  static RunResult train_over_nccl(RunOptions options, std::uint64_t seed) {
    fake_nccl::restart({.seed = seed});
    fake_cuda::restart({.devices = static_cast<int>(options.ranks), .seed = seed});
    options.accelerator = {
        .make = [](std::uint32_t rank, ByteCount) { return make_cuda_accelerator(static_cast<int>(rank)); },
        .enqueue =
            [](StreamHandle stream, std::function<void()> operation) {
              (void)fake_cuda::enqueue(static_cast<cudaStream_t>(stream.native()), std::move(operation));
            },
        .bytes =
            [](DeviceSpan span) {
              const auto* const address = reinterpret_cast<const void*>(span.address());
              return HostSpan(fake_cuda::bytes(address, span.size().value()), span.size());
            }};
    if (!options.membership) {
      auto job = std::make_shared<penstock::test::MemoryJob>(options.ranks);
      options.membership = [job](std::uint32_t rank) {
        return nccl_membership(job->control(rank), {.deadline = std::chrono::minutes(1)});
      };
    }
    RunResult result = train(options);
    EXPECT_EQ(fake_nccl::take_violations(), std::vector<std::string>{}) << "seed " << seed;
    EXPECT_EQ(fake_nccl::live(), 0u) << "seed " << seed;
    EXPECT_EQ(fake_cuda::live(), fake_cuda::Live{}) << "seed " << seed;
    return result;
  }
};

TEST_P(EngineOnNccl, TrainsToTheBitsOfRanksInOneProcessInEveryOrderOfTheStreams) {
  std::uint64_t seed = 0;
  for (const OffloadDevice offload : {cpu, nvme, none}) {
    const RunResult expected = train(run_options(offload));
    ASSERT_FALSE(expected.error) << expected.error->message();
    for (int order = 0; order < 4; ++order) {
      const RunResult result = train_over_nccl(run_options(offload), ++seed);

      ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
      EXPECT_EQ(result.digest, expected.digest) << "seed " << seed;
      EXPECT_EQ(result.parameters, expected.parameters) << "seed " << seed;
    }
  }
  EXPECT_EQ(fake_nccl::calls("ncclCommAbort"), 0u);  // the ranks have left together
  EXPECT_EQ(fake_nccl::collectives_in_windows() * GetParam(), fake_nccl::calls("ncclAllGather"));
}

TEST_P(EngineOnNccl, ParksWhatNcclHasNotRegisteredAndComesBackWithTheSameBits) {
  const RunResult expected = train(run_options(none));
  RunOptions options = run_options(none);
  options.without_leases = [](Engine& engine, const Point& point) -> Result<void> {
    if (point.unit != 1 || point.micro_batch != 1 || point.place != Point::Place::forward) return ok();
    PENSTOCK_TRY_ASSIGN(const ParkReport report, engine.park(tiers::Tier::host));
    EXPECT_GT(report[tiers::Tier::device].given_back, ByteCount());
    EXPECT_NE(report.stays.at(0).find("the communicator has registered"), std::string::npos)
        << report.stays.at(0);
    PENSTOCK_TRY(engine.unpark());
    return ok();
  };
  for (const std::uint64_t seed : penstock::test::seeds(0, 6)) {
    const RunResult result = train_over_nccl(options, seed);
    ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    EXPECT_EQ(result.digest, expected.digest) << "seed " << seed;
  }
}

/// A run in which all is chosen that changes the order of collectives, and what waits for what. The result of threads
/// does not depend on the order in which their streams run.
RunOptions random_run(std::uint64_t seed, std::uint32_t ranks) {
  SeededRandom random(seed);
  const auto choose = [&random] { return random.below(2) == 0; };
  const auto tier = [&random] { return std::array{none, cpu, nvme}[random.below(3)]; };
  RunOptions options{.ranks = ranks, .model = choose() ? deep_model() : random_model(random)};
  options.device_memory = tiers::DeviceMemory::separate;
  options.micro_batches = 1 + static_cast<std::uint32_t>(random.below(3));
  Config& config = options.config;
  config.offload_param.device = tier();
  config.offload_optimizer.device = tier();
  config.penstock.reduction = Reduction::exact;
  if (choose()) config.grad_accum_dtype = DType::fp32;
  config.overlap_comm = choose();
  config.reduce_bucket_size = ElementCount(1 + random.below(100'000));
  config.prefetch_bucket_size = ElementCount(random.below(100'000));
  config.max_live_parameters = ElementCount(random.below(100'000));
  const std::size_t units = options.model.units.size();
  if (choose()) {
    // Steps deviate from those before.
    options.order_of_use = [=](std::uint32_t step, std::uint32_t) {
      return random_order(seed * 16 + step / 2, units);
    };
  } else if (choose()) {
    options.model.checkpoints = {
        .count = static_cast<std::uint32_t>(units), .size = ByteCount(1 + random.below(20'000)), .reads = 2};
  }
  if (choose()) options.trainer_error = abandons_anywhere(seed);
  return options;
}

void expect_equal(const RunResult& result, const RunResult& expected) {
  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.digest, expected.digest);
  EXPECT_EQ(result.parameters, expected.parameters);
  EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
  EXPECT_EQ(result.wrong_checkpoints, 0u);
}

TEST_P(EngineOnNccl, TrainsRandomRunsToTheBitsOfRanksInOneProcess) {
  for (const std::uint64_t seed : penstock::test::seeds(600, 608)) {
    SCOPED_TRACE(seed);
    const RunOptions options = random_run(seed * 8 + GetParam(), GetParam());
    const RunResult expected = train(options);
    ASSERT_FALSE(expected.error) << expected.error->message();

    const RunResult result = train_over_nccl(options, seed);

    expect_equal(result, expected);
  }
}

/// A short run whose tensors are all on simulated disks.
RunOptions run_on_disks(std::uint64_t seed, std::uint32_t ranks, const ModelLayout& model) {
  RunOptions options{.ranks = ranks, .micro_batches = 1, .steps = 2, .model = model};
  options.device_memory = tiers::DeviceMemory::separate;
  options.config.offload_param.device = options.config.offload_optimizer.device = nvme;
  options.config.penstock.reduction = Reduction::exact;
  options.config.penstock.host_budget = smallest_host_budget(options) + seed % 3 * 400_KiB;
  options.disk = [](std::uint32_t) { return tiers::SimDisk::Options(); };
  return options;
}

/// As it runs on one thread and disks of one speed, in an order chosen by a seed, without NCCL.
RunResult train_on_one_thread(RunOptions options, std::uint64_t seed) {
  options.seed = seed;
  options.disk = nullptr;
  options.faults.clear();
  return train(options);
}

/// One rank's disk is ten times as slow as the others', or as fast. In every second run steps deviate from those
/// before, so that what was prefetched is not what a step needs.
RunOptions skewed_run(std::uint64_t seed, std::uint32_t ranks) {
  RunOptions options = run_on_disks(seed, ranks, deep_model());
  options.disk = [odd = seed % ranks, one_is_slow = seed / 2 % 2 == 0](std::uint32_t rank) {
    tiers::SimDisk::Options disk{.latency = std::chrono::microseconds(300)};
    if ((rank == odd) == one_is_slow) disk.bytes_per_second /= 10, disk.latency *= 10;
    return disk;
  };
  if (seed % 2 == 0) return options;
  options.order_of_use = [seed, units = options.model.units.size()](std::uint32_t step, std::uint32_t) {
    return random_order(seed * 16 + step, units);
  };
  options.units_without_gradient = [](std::uint32_t step) {
    return step == 1 ? std::vector<std::uint32_t>{1, 4} : std::vector<std::uint32_t>();
  };
  return options;
}

TEST_P(EngineOnNccl, TrainsToTheSameBitsWhereTheDisksOfOneRankAreTenTimesSlowerOrFaster) {
  for (std::uint64_t seed = 700; seed < 704; ++seed) {
    SCOPED_TRACE(seed);
    const RunOptions options = skewed_run(seed, GetParam());
    const RunResult expected = train_on_one_thread(options, seed);
    ASSERT_FALSE(expected.error) << expected.error->message();

    const RunResult result = train_over_nccl(options, seed);

    expect_equal(result, expected);
  }
}

/// A fault of a disk, and the errors with which a run may end then.
struct DiskFault {
  tiers::Fault fault;
  std::set<ErrorCode> errors;  ///< none: every run ends well
};

std::vector<DiskFault> disk_faults() {
  using tiers::Fault;
  using tiers::IoOperation;
  return {{Fault::fail({}, 0, EAGAIN), {}},
          {Fault::fail({}, 0, EINTR), {}},
          {{.effect = Fault::Effect::shorten, .length = 4097_B}, {}},
          {{.effect = Fault::Effect::delay, .delay = std::chrono::milliseconds(20)}, {}},
          {Fault::fail({}, 0, ENODEV), {ErrorCode::io}},
          {Fault::fail({}, 0, EIO, 12), {ErrorCode::io}},
          {Fault::fail(IoOperation::write, 0, ENOSPC), {ErrorCode::no_space}},
          {{.effect = Fault::Effect::shorten}, {ErrorCode::truncated}},
          {{.operation = IoOperation::write, .effect = Fault::Effect::lose}, {ErrorCode::corrupted}},
          {{.operation = IoOperation::read, .effect = Fault::Effect::flip_bit, .bit = 54321},
           {ErrorCode::corrupted}}};
}

/// Expects that the rank with the faulty disk has ended with an error of the disk, and the others with that cause if
/// they had not ended before. Returns how many have ended with it.
std::size_t expect_the_cause_on_every_rank(const RunResult& result, const DiskFault& injected,
                                           std::uint32_t faulty) {
  const std::optional<Error>& cause = result.errors[faulty];
  if (!cause) {
    ADD_FAILURE() << "the rank with the faulty disk has ended without an error: " << result.error->message();
    return 0;
  }
  EXPECT_TRUE(injected.errors.contains(cause->code())) << cause->message();
  EXPECT_NE(cause->message().find("simulated file in"), std::string::npos) << cause->message();
  EXPECT_NE(cause->message().find("at offset"), std::string::npos) << cause->message();
  std::size_t informed = 0;
  for (std::uint32_t rank = 0; rank < result.errors.size(); ++rank) {
    const std::optional<Error>& error = result.errors[rank];
    if (rank == faulty || !error) continue;
    ++informed;
    EXPECT_EQ(error->code(), ErrorCode::peer_failed) << "rank " << rank << ": " << error->message();
    EXPECT_NE(error->message().find("simulated file in"), std::string::npos) << error->message();
  }
  return informed;
}

TEST_P(EngineOnNccl, EndsWithTheErrorOfOneRanksDiskOnAllRanksOrTheRightBits) {
  const RunResult clean = train_on_one_thread(run_on_disks(0, GetParam(), small_model()), 0);
  ASSERT_FALSE(clean.error) << clean.error->message();
  std::size_t failed = 0, informed = 0, survived = 0, affected = 0;
  for (const DiskFault& injected : disk_faults()) {
    for (std::uint64_t of_fault = 0; of_fault < 2; ++of_fault) {
      const std::uint64_t seed = 800 + failed + survived;
      SCOPED_TRACE(seed);
      RunOptions options = run_on_disks(0, GetParam(), small_model());
      options.faulty_rank = static_cast<std::uint32_t>(seed % GetParam());
      options.faults = {injected.fault};
      options.faults[0].occurrence =
          SeededRandom(seed).below(clean.requests / (injected.fault.operation ? 3 : 1));
      // A rank repeats a call that has failed where its engine can go on; the others wait for it.
      options.attempts = of_fault % 2 == 0 ? 1 : 40;

      const RunResult result = train_over_nccl(options, seed);

      if (result.injected > 0) ++affected;
      if (result.error) {
        ++failed;
        informed += expect_the_cause_on_every_rank(result, injected, options.faulty_rank);
      } else {
        ++survived;
        EXPECT_EQ(result.digest, clean.digest);
        EXPECT_EQ(result.parameters, clean.parameters);
      }
    }
  }
  EXPECT_GT(affected, 15u);
  EXPECT_GT(failed, 2u);
  EXPECT_GT(informed, 2u);
}

TEST_P(EngineOnNccl, CountsTheScratchOfAnExactReductionAsItWasPlanned) {
  RunOptions options = run_options(cpu);
  const auto expect_scratch = [&options](ByteCount size) {
    options.before_step = [size](std::uint32_t, std::uint32_t rank, swap::Runtime& runtime) {
      EXPECT_EQ(runtime.ledger().line(tiers::Tier::device, tiers::Purpose::scratch).held, size) << rank;
    };
  };
  for (const Reduction reduction : {Reduction::exact, Reduction::native}) {
    options.config.penstock.reduction = reduction;
    const MemoryPlan plan = plan_memory(options.config, options.model, options.ranks, options.ranks,
                                        tiers::DeviceMemory::separate)
                                .value();
    expect_scratch(plan.device_partials + plan.exact_slots_max * (options.ranks - 1));

    const RunResult result = train_over_nccl(options, 500);

    ASSERT_FALSE(result.error) << result.error->message();
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
    EXPECT_EQ(plan.exact_slots_max.is_zero(), reduction == Reduction::native);
    if (reduction == Reduction::native) continue;
    expect_scratch(plan.device_partials);
    EXPECT_FALSE(train(options).error);  // ranks of one process read each other's memory
  }
}

TEST_P(EngineOnNccl, IsWhatAProcessGroupConnectsDevicesOfTheirOwnMemoryWith) {
  RunOptions options = run_options(cpu);
  const RunResult expected = train(options);
  const std::uint16_t port = penstock::test::free_port();
  std::vector<std::future<Result<std::shared_ptr<ProcessGroup>>>> joining;
  for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
    joining.push_back(std::async(std::launch::async, [=, ranks = options.ranks] {
      return ProcessGroup::join({.rank = rank, .ranks = ranks, .rank_0 = {"127.0.0.1", port}, .job = "job"});
    }));
  }
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  for (auto& one : joining) groups.push_back(one.get().value());
  options.membership = [&groups](std::uint32_t rank) { return process_membership(groups[rank]); };

  const RunResult result = train_over_nccl(options, 400);
  while (!groups.empty()) groups.pop_back();  // rank 0 waits for the others

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.digest, expected.digest);
  EXPECT_GT(fake_nccl::calls("ncclAllGather"), 0u);
}

/// A gradient whose average is rounded otherwise may have another sign where it is about zero: then a step moves its
/// parameter the other way. An update of Adam is at most lr (1 - beta1) / sqrt(1 - beta2).
TEST_P(EngineOnNccl, AveragesByNcclUnlessConfiguredOtherwiseAndTrainsToTheSameWithinItsRoundings) {
  RunOptions options = run_options(cpu);
  const RunResult exact = train_over_nccl(options, 300);
  ASSERT_EQ(fake_nccl::calls("ncclReduceScatter"), 0u);
  const auto& [beta1, beta2] = options.config.optimizer.betas;
  const float update = options.config.optimizer.learning_rate * (1 - beta1) / std::sqrt(1 - beta2);
  for (const auto reduction : {std::optional<Reduction>(), std::optional(Reduction::native)}) {
    options.config.penstock.reduction = reduction;

    const RunResult native = train_over_nccl(options, 301);

    ASSERT_FALSE(native.error) << native.error->message();
    EXPECT_GT(fake_nccl::calls("ncclReduceScatter"), 0u);
    EXPECT_EQ(fake_nccl::calls("ncclSend"), 0u);
    ASSERT_EQ(native.parameters.size(), exact.parameters.size());
    std::size_t compared = 0;
    for (std::size_t unit = 0; unit < exact.parameters.size(); ++unit) {
      for (std::size_t i = 0; i < exact.parameters[unit].size(); ++i, ++compared) {
        const float wanted = exact.parameters[unit][i], got = native.parameters[unit][i];
        const float rounding = std::abs(wanted) / 128;  // bf16 has 8 bits
        ASSERT_LE(std::abs(got - wanted), 2 * update * static_cast<float>(options.steps) + rounding);
      }
    }
    EXPECT_GT(compared, 1000u);
  }
}

TEST_P(EngineOnNccl, LeavesNoTraceOfAbandonedSteps) {
  const std::uint32_t last = GetParam() - 1;
  const RunResult expected = train(run_options(cpu));
  for (const std::uint64_t seed : penstock::test::seeds(100, 110)) {
    RunOptions options = run_options(cpu);
    options.trainer_error = [seed, last](const Point& point) -> std::optional<ErrorCode> {
      const auto place = static_cast<Point::Place>(seed % 3);
      const bool here =
          point.rank == last && point.attempt < 2 && point.unit == seed % 2 && point.place == place;
      return here ? std::optional(ErrorCode::interrupted) : std::nullopt;
    };

    const RunResult result = train_over_nccl(options, seed);

    ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    EXPECT_GT(result.interruptions.size(), 1u);
    EXPECT_EQ(result.digest, expected.digest) << "seed " << seed;
  }
}

TEST_P(EngineOnNccl, EndsAllRanksWithTheCauseWhereOneFails) {
  for (std::uint64_t seed = 200; seed < 203; ++seed) {
    RunOptions options = run_options(cpu);
    options.trainer_error = [](const Point& point) -> std::optional<ErrorCode> {
      const bool here = point.rank == 0 && point.step == 1 && point.place == Point::Place::backward;
      return here ? std::optional(ErrorCode::non_finite) : std::nullopt;
    };

    const RunResult result = train_over_nccl(options, seed);

    ASSERT_TRUE(result.error) << "seed " << seed;
    EXPECT_EQ(result.error->code(), ErrorCode::non_finite)
        << "seed " << seed << ": " << result.error->message();
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EngineOnNccl, testing::Values(2u, 3u, 4u), testing::PrintToStringParamName());

}  // namespace
}  // namespace penstock::zero::test
