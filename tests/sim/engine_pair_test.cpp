// Two engines on one runtime: host memory, swap files and workers are shared; bits, collectives and failures are not.
#include "kit/cluster.hpp"
#include "kit/seeds.hpp"
#include "kit/trainer.hpp"

#include <gtest/gtest.h>
#include <array>
#include <bit>
#include <cerrno>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::SeededRandom;

/// A value that bf16 holds: a frozen parameter has no master.
float initial_in_bf16(ParameterId parameter, std::uint64_t element) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(initial_value(parameter, element)) & 0xffff0000u);
}

OffloadDevice random_tier(SeededRandom& random) {
  return random.below(4) == 0 ? OffloadDevice::cpu : OffloadDevice::nvme;
}

RunOptions random_actor(SeededRandom& random, std::uint64_t seed) {
  RunOptions actor{.ranks = 1 + static_cast<std::uint32_t>(random.below(3)),
                   .micro_batches = 1 + static_cast<std::uint32_t>(random.below(2)),
                   .seed = seed};
  actor.model = random.below(2) == 0 ? deep_model() : random_model(random);
  actor.config.offload_optimizer.device = random_tier(random);
  actor.config.offload_param.device = random_tier(random);
  if (random.below(2) == 0) actor.config.grad_accum_dtype = DType::fp32;
  if (random.below(2) == 0) actor.device_memory = tiers::DeviceMemory::separate;
  if (actor.device_memory == tiers::DeviceMemory::separate)
    actor.config.cpu_update_ratio = std::array{1.0f, 0.5f, 0.0f}[random.below(3)];
  return actor;
}

/// All groups are frozen.
RunOptions random_reference(const RunOptions& actor, SeededRandom& random) {
  RunOptions reference{.ranks = actor.ranks, .steps = 0, .initial = initial_in_bf16};
  reference.model = random.below(2) == 0 ? deep_model() : random_model(random);
  for (OptimizerGroup& group : reference.model.groups) group.frozen = true;
  reference.config.offload_param.device = random_tier(random);
  reference.config.stage = random.below(4) == 0 ? 2 : 3;
  if (reference.config.stage < 3) reference.config.offload_param.device = OffloadDevice::none;
  reference.device_memory = actor.device_memory;
  return reference;
}

/// Gives each engine the least memory with which it can run alone, or a little more.
void limit_host_memory(RunOptions& options, SeededRandom& random) {
  const auto limit = [&](RunOptions& one) {
    one.config.penstock.host_budget = smallest_host_budget(one);
    if (random.below(3) == 0) one.config.penstock.host_budget += ByteCount(random.below(300'000));
  };
  limit(options);
  for (RunOptions& beside : options.beside) limit(beside);
  if (options.ranks == 1 || random.below(3) != 0) return;
  // The first rank has the same part on a node of its own, the others have twice as much on theirs.
  const auto limit_by_node = [](RunOptions& one, std::uint32_t ranks) {
    PenstockConfig& penstock = one.config.penstock;
    const ByteCount part = penstock.host_budget / ranks;
    penstock.host_budget = {};
    penstock.node_budgets = {part, part * 2 * (ranks - 1)};
    penstock.rank_nodes.assign(ranks, 1);
    penstock.rank_nodes.front() = 0;
  };
  limit_by_node(options, options.ranks);
  for (RunOptions& beside : options.beside) limit_by_node(beside, options.ranks);
}

RunOptions actor_and_reference(std::uint64_t seed) {
  SeededRandom random(seed + 7000);
  RunOptions actor = random_actor(random, seed);
  actor.beside = {random_reference(actor, random)};
  if (random.below(4) != 0) limit_host_memory(actor, random);
  return actor;
}

/// The first engine of `options` alone.
RunOptions alone(RunOptions options) {
  options.beside.clear();
  return options;
}

std::uint64_t parameters_of(const ModelLayout& model) {
  std::uint64_t count = 0;
  for (std::uint32_t unit = 0; unit < model.units.size(); ++unit) count += model.parameters_of(unit).size();
  return count;
}

TEST(EnginePair, TrainsToTheBitsOfARunAloneBesideAReferenceThatKeepsItsOwn) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 60)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const RunOptions options = actor_and_reference(seed);
    const RunResult expected = train(alone(options));
    ASSERT_FALSE(expected.error) << expected.error->message();

    const RunResult result = train(options);

    ASSERT_FALSE(result.error) << result.error->message();
    EXPECT_EQ(result.digest, expected.digest);
    EXPECT_EQ(result.parameters, expected.parameters);
    const RunResult& reference = result.beside[0];
    ASSERT_FALSE(reference.error) << reference.error->message();
    EXPECT_EQ(reference.wrong_values, 0u);
    EXPECT_EQ(reference.parameters_read,
              2 * options.steps * options.ranks * parameters_of(options.beside[0].model));
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
    EXPECT_LE(result.host_peak, result.host_budget);
  }
}

TEST(EnginePair, TrainsAnActorAndACriticToTheBitsOfTheirRunsAlone) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 40)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SeededRandom random(seed + 9000);
    RunOptions options = random_actor(random, seed);
    RunOptions critic = random_actor(random, seed);
    critic.ranks = options.ranks;
    critic.device_memory = options.device_memory;
    if (critic.device_memory == tiers::DeviceMemory::host) critic.config.cpu_update_ratio = 1;
    options.beside = {critic};
    if (random.below(4) != 0) limit_host_memory(options, random);
    const RunResult actor_alone = train(alone(options)), critic_alone = train(options.beside[0]);

    const RunResult result = train(options);

    ASSERT_FALSE(result.error) << result.error->message();
    ASSERT_FALSE(result.beside[0].error) << result.beside[0].error->message();
    EXPECT_EQ(result.digest, actor_alone.digest);
    EXPECT_EQ(result.beside[0].digest, critic_alone.digest);
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
  }
}

/// Units of which a few are large, with gradients that are larger, and a reference of small ones. One rank on host
/// memory leases shards in place, so that the reference's divide the memory while the actor's step needs large
/// ranges.
RunOptions small_beside_large(std::uint64_t seed) {
  SeededRandom random(seed + 11'000);
  const auto model = [&](std::uint64_t units, std::uint64_t small, std::uint64_t large, bool frozen) {
    ModelLayout made{.groups = {{.frozen = frozen}}};
    for (std::uint64_t u = 0; u < units; ++u) {
      const std::uint64_t most = random.below(3) == 0 ? large : small;
      made.units.push_back(
          {.name = std::to_string(u), .parameters = {{"weight", ElementCount(1 + random.below(most)), 0}}});
    }
    return made;
  };
  RunOptions options{
      .ranks = 1, .micro_batches = 1, .model = model(6, 6'000, 60'000, /*frozen=*/false), .seed = seed};
  options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::nvme;
  if (random.below(2) == 0) options.config.grad_accum_dtype = DType::fp32;
  RunOptions reference{
      .ranks = 1, .steps = 0, .model = model(12, 2'000, 8'000, /*frozen=*/true), .initial = initial_in_bf16};
  reference.config.offload_param.device = OffloadDevice::nvme;
  reference.order_of_use = [seed, units = reference.model.units.size()](std::uint32_t step, std::uint32_t) {
    return random_order(seed * 16 + step, units);
  };
  options.beside = {reference, reference};
  for (RunOptions* one : {&options, &options.beside[0], &options.beside[1]})
    one->config.penstock.host_budget = smallest_host_budget(*one);
  return options;
}

TEST(EnginePair, NeverStarvesWithTheLeastMemory) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 60)) {
    const RunResult result = train(small_beside_large(seed));

    ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    for (const RunResult& reference : result.beside)
      ASSERT_FALSE(reference.error) << "seed " << seed << ": " << reference.error->message();
  }
}

TEST(EnginePair, AbandonsStepsOfOneEngineAlone) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 20)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunOptions options = actor_and_reference(seed);
    const RunResult expected = train(alone(options));
    options.trainer_error = abandons_anywhere(seed);

    const RunResult result = train(options);

    ASSERT_FALSE(result.error) << result.error->message();
    EXPECT_EQ(result.digest, expected.digest);
    EXPECT_FALSE(result.beside[0].error) << result.beside[0].error->message();
    EXPECT_EQ(result.beside[0].wrong_values, 0u);
  }
}

/// Everything on disk, in little memory: the reference does not fit into what the actor leaves free.
RunOptions pair_on_disk() {
  RunOptions options{.steps = 2, .model = small_model(), .seed = 7, .attempts = 40};
  options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::nvme;
  RunOptions reference{
      .steps = 0, .model = {.groups = {{.frozen = true}}}, .initial = initial_in_bf16, .attempts = 40};
  for (int unit = 0; unit < 24; ++unit) {
    reference.model.units.push_back(
        {.name = "layer" + std::to_string(unit), .parameters = {{"weight", ElementCount(80'000), 0}}});
  }
  reference.config.offload_param.device = OffloadDevice::nvme;
  options.beside = {reference};
  options.config.penstock.host_budget = smallest_host_budget(options);
  options.beside[0].config.penstock.host_budget = smallest_host_budget(reference);
  return options;
}

/// A read that does not match its checksum ends the engine whose tensor it reads, on all ranks, and no other one.
TEST(EnginePair, FailsOnlyTheEngineWhoseTensorCannotBeRead) {
  const RunResult clean = train(pair_on_disk());
  ASSERT_FALSE(clean.error) << clean.error->message();
  std::uint64_t actors = 0, references = 0;
  for (std::uint64_t request = 0; request < clean.requests; request += 7) {
    SCOPED_TRACE("request " + std::to_string(request));
    RunOptions options = pair_on_disk();
    options.faults = {{.operation = tiers::IoOperation::read,
                       .occurrence = request,
                       .effect = tiers::Fault::Effect::flip_bit,
                       .bit = 54321}};

    const RunResult run = train(options);

    if (run.injected == 0) break;
    const RunResult& reference = run.beside[0];
    EXPECT_EQ(reference.wrong_values, 0u);
    EXPECT_FALSE(run.error && reference.error) << run.error->message() << reference.error->message();
    if (!run.error) {
      EXPECT_EQ(run.digest, clean.digest);
    }
    actors += run.error.has_value();
    references += reference.error.has_value();
  }
  EXPECT_GT(actors, 0u);
  EXPECT_GT(references, 0u);
}

TEST(EnginePair, WritesNothingOfTheReferenceAfterItsFirstValues) {
  const auto written = [](RunOptions options, std::uint32_t steps) {
    options.steps = steps;
    const RunResult result = train(options);
    EXPECT_FALSE(result.error) << result.error->message();
    return result.shards_written;
  };
  const RunOptions pair = pair_on_disk(), actor = alone(pair);
  EXPECT_EQ(written(pair, 3) - written(pair, 0), written(actor, 3) - written(actor, 0));
}

TEST(EnginePair, ReportsALostPathToBothEngines) {
  const RunResult clean = train(pair_on_disk());
  for (const std::uint64_t request : {clean.requests / 3, clean.requests / 2}) {
    RunOptions options = pair_on_disk();
    options.attempts = options.beside[0].attempts = 3;
    options.faults = {tiers::Fault::fail({}, request, ENODEV, 1'000'000)};

    const RunResult run = train(options);

    for (const auto& error : {run.error, run.beside[0].error}) {
      ASSERT_TRUE(error) << "request " << request << ": " << (run.error ? run.error->message() : "no error");
      EXPECT_NE(error->message().find("simulated file in"), std::string::npos) << error->message();
    }
  }
}

}  // namespace
}  // namespace penstock::zero::test
