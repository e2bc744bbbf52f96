#include "zero/simulate/simulation.hpp"

#include <gtest/gtest.h>
#include <string>

namespace penstock::zero::simulate {
namespace {

using swap::Access;
using swap::AccessTrace;

constexpr ByteCount page = 4_KiB;

AccessTrace sweep(std::uint32_t tiles, Access access) {
  AccessTrace trace{.label = "sweep"};
  for (std::uint32_t i = 0; i < tiles; ++i) {
    trace.tensors.push_back(
        {.name = "tile " + std::to_string(i), .size = page, .purpose = tiers::Purpose::optimizer_tile});
    trace.uses.push_back({i, access});
  }
  return trace;
}
/// A page is read in 1 s, written in 2 s and used in `use_seconds`.
Machine machine_of(double use_seconds) {
  Machine machine{.costs = {.disks = {{.rates = {.read = 4096, .write = 2048, .mixed = 2048},
                                       .endurance = page * 1000}}}};
  machine.costs.use.fill(4096 / use_seconds);
  return machine;
}

// docs/simulation.md counts these seconds by hand.
TEST(Simulation, HasTheFirstStepAndOneThatStandsForTheRest) {
  const Machine machine = machine_of(0.5);
  const Simulation simulation =
      simulate(sweep(2, Access::modify), machine, {.host_budget = page, .steps = 3}).value();
  EXPECT_DOUBLE_EQ(simulation.first.seconds, 5);
  EXPECT_DOUBLE_EQ(simulation.steady.seconds, 7);
  EXPECT_EQ(simulation.steady.written, page * 2);
  EXPECT_DOUBLE_EQ(endurance_of(simulation, machine).value().steps, 500);
}

// docs/policies.md counts these tiles by hand: 1, 1 and 2 are read in three steps, for ever.
TEST(Simulation, HasTheMeanOfStepsThatAlternate) {
  const auto simulation_of = [](std::uint32_t tiles, std::uint64_t in_memory) {
    return simulate_steps(sweep(tiles, Access::modify), machine_of(0.5), {.host_budget = page * in_memory})
        .value();
  };
  const Simulation alternating = simulation_of(4, 3);
  EXPECT_EQ(alternating.first.read, page * 4);
  EXPECT_EQ(alternating.steps, steps_max);
  EXPECT_EQ(alternating.steady_from(), 33u);
  EXPECT_FALSE(alternating.settled);
  EXPECT_TRUE(simulation_of(2, 1).settled);
  const auto& [read, written, busy] = alternating.steady.disks[0];
  for (const ByteCount bytes : {alternating.steady.read, alternating.steady.written, read, written})
    EXPECT_NEAR(static_cast<double>(bytes.value()) / static_cast<double>(page.value()), 4.0 / 3, 0.02);
  EXPECT_NEAR(busy, 4.0 / 3 * (1 + 2), 0.05);

  const auto one =
      simulate_steps(sweep(2, Access::modify), machine_of(0.5), {.host_budget = page, .steps = 1});
  EXPECT_EQ(one.value().steps, 1u);
  EXPECT_EQ(one.value().steady.seconds, one.value().first.seconds);
}

TEST(Simulation, TakesFewStepsOfALongTraceWhereTheyAreAlikeOrOnlyTheirTimeHasToBe) {
  AccessTrace alternating = sweep(4, Access::modify);
  alternating.tensors.push_back({.name = "in memory", .size = page, .on_disk = false});
  for (int i = 0; i < 4096; ++i) alternating.uses.push_back({4, Access::read});
  const auto steps = [](const AccessTrace& trace, std::uint64_t in_memory, bool bytes_settle) {
    return simulate_steps(trace, machine_of(0.5),
                          {.host_budget = page * (in_memory + 1), .bytes_settle = bytes_settle})
        .value()
        .steps;
  };
  EXPECT_EQ(steps(alternating, 3, true), steps_max);
  EXPECT_EQ(steps(alternating, 3, false), 4u);
  EXPECT_EQ(steps(alternating, 4, true), 4u);
}

// Each disk has one of the tiles.
TEST(Simulation, HasTheEnduranceOfTheDiskThatEndsFirst) {
  Machine machine = machine_of(0.5);
  machine.costs.disks.push_back({.rates = machine.costs.disks[0].rates, .endurance = page * 300});
  const Simulation simulation = simulate(sweep(2, Access::modify), machine, {.host_budget = page}).value();
  EXPECT_EQ(endurance_of(simulation, machine).value().disk, 1u);
  EXPECT_DOUBLE_EQ(endurance_of(simulation, machine).value().steps, 300);
}

TEST(Simulation, PutsFirstWhatHelpsMost) {
  const auto changes = [](double use_seconds) {
    return simulate(sweep(2, Access::modify), machine_of(use_seconds), {.host_budget = page}).value().changes;
  };
  const auto disk_bound = changes(0.5), use_bound = changes(20);
  ASSERT_EQ(disk_bound.size(), 2u);
  EXPECT_EQ(disk_bound[0].what, "disks twice as fast");
  EXPECT_DOUBLE_EQ(disk_bound[0].seconds, 4);
  EXPECT_DOUBLE_EQ(disk_bound[1].seconds, 6.5);
  ASSERT_EQ(use_bound.size(), 2u);
  EXPECT_EQ(use_bound[0].what, "uses that take half of their time");
  EXPECT_DOUBLE_EQ(use_bound[0].seconds, 26);
}

TEST(Simulation, SaysWhereABudgetHelps) {
  const Simulation simulation =
      simulate(sweep(5, Access::read), machine_of(0.001), {.host_budget = page * 4}).value();
  ASSERT_FALSE(simulation.changes.empty());
  EXPECT_EQ(simulation.changes[0].what, "25 % more host budget");  // holds all five
  EXPECT_NEAR(simulation.changes[0].seconds, 0.005, 1e-9);
  EXPECT_FALSE(endurance_of(simulation, machine_of(1)));  // nothing is written
}

TEST(Simulation, RefusesWhatCannotRun) {
  EXPECT_EQ(simulate(sweep(2, Access::read), machine_of(1), {.host_budget = page, .steps = 0}).error().code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(simulate(sweep(2, Access::read), machine_of(1), {.host_budget = 1_KiB}).error().code(),
            ErrorCode::budget_too_small);
  EXPECT_EQ(simulate(sweep(2, Access::read), Machine{}, {.host_budget = page}).error().code(),
            ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace penstock::zero::simulate
