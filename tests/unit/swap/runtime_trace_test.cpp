#include "kit/seeded_random.hpp"
#include "swap/simulate/replay.hpp"
#include "unit/swap/runtime_fixture.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <string>
#include <vector>

namespace penstock::swap {
namespace {

using penstock::test::SeededRandom;
using test::add;
using test::Simulation;
using test::write;
using tiers::TensorId;

void use(Simulation& simulation, TensorId tensor, Access access) {
  auto lease = simulation.runtime->acquire(tensor, access);
  ASSERT_TRUE(lease) << lease.error().message();
  lease->end();
  simulation.run();  // a replay's transfers end before the next use
}

/// Tensors with contents, which are on disk only; `budget` is that of host memory.
std::vector<TensorId> stored_tensors(Simulation& simulation, ByteCount budget, std::size_t count,
                                     std::uint64_t pages_most, SeededRandom& random) {
  std::vector<TensorId> tensors;
  for (std::size_t i = 0; i < count; ++i) {
    tensors.push_back(add(*simulation.runtime, 4_KiB * (1 + random.below(pages_most)), /*on_disk=*/true));
    write(*simulation.runtime, tensors.back(), 1);
  }
  const TensorId all = add(*simulation.runtime, budget);
  write(*simulation.runtime, all, 1);  // the others leave memory for it
  EXPECT_TRUE(simulation.runtime->flush());
  simulation.runtime->remove(all).value();
  return tensors;
}

TEST(RuntimeTrace, HasTheUsesBetweenItsBeginAndItsEnd) {
  Simulation simulation({.host_budget = 64_KiB});
  Runtime& runtime = *simulation.runtime;
  const TensorId one = add(runtime, 8_KiB), other = add(runtime, 4_KiB, /*on_disk=*/false);
  EXPECT_EQ(runtime.end_trace("early").error().code(), ErrorCode::failed_state);
  write(runtime, one, 1, Use::recorded);
  runtime.begin_trace();
  write(runtime, other, 1, Use::recorded);
  write(runtime, one, 2);  // not recorded
  { const auto lease = runtime.acquire(one, Access::read).value(); }
  (void)runtime.announce(one, Access::modify);
  ASSERT_TRUE(runtime.remove(one));
  const auto trace = runtime.end_trace("train").value();

  EXPECT_EQ(trace.label, "train");
  ASSERT_EQ(trace.tensors.size(), 2u);
  EXPECT_FALSE(trace.tensors[0].on_disk);
  EXPECT_EQ(trace.tensors[1].size, 8_KiB);
  EXPECT_TRUE(trace.tensors[1].write_behind);
  EXPECT_EQ(trace.uses,
            (std::vector<AccessTrace::Use>{{0, Access::overwrite}, {1, Access::read}, {1, Access::modify}}));
  EXPECT_EQ(runtime.end_trace("again").error().code(), ErrorCode::failed_state);
  runtime.begin_trace();
  EXPECT_EQ(runtime.end_trace("two\nlines").error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(runtime.end_trace("one line").value().label, "one line");  // the refusal has changed nothing
}

TEST(RuntimeTrace, TakesTensorsOfEveryName) {
  Simulation simulation({.host_budget = 64_KiB});
  Runtime& runtime = *simulation.runtime;
  runtime.begin_trace();
  std::vector<TensorId> tensors;
  ByteCount size;
  for (const char* name : {"", "two\nlines", "", "one", "one"}) {
    tensors.push_back(
        runtime
            .add({.name = name, .key = test::next_key(), .size = size += 4_KiB, .home_in_memory = true},
                 /*on_disk=*/false)
            .value());
  }
  for (std::size_t i = tensors.size(); i-- > 0;) write(runtime, tensors[i], 1, Use::recorded);
  const AccessTrace trace = runtime.end_trace("train").value();

  ASSERT_EQ(trace.tensors.size(), 5u);
  EXPECT_EQ(trace.tensors[1].name, "one");
  EXPECT_EQ(trace.tensors[3].name, "two\\x0alines");
  EXPECT_EQ(trace.tensors[4].name.find("unnamed "), 0u) << trace.tensors[4].name;
  EXPECT_NE(trace.tensors[4].name, trace.tensors[2].name);
  EXPECT_TRUE(check_trace(trace));
  EXPECT_FALSE(trace.tensors[0].home_in_memory) << "it has no place on disk";
  const auto predicted = runtime.predict(parse_trace(to_text(trace)).value());
  EXPECT_TRUE(predicted);
  AccessTrace other = trace;
  other.tensors[3].size = 64_KiB;
  EXPECT_NE(runtime.predict(other).error().message().find("another size"), std::string::npos);
  other = trace;
  other.tensors[0] = other.tensors[1];  // two of one name and size
  EXPECT_NE(runtime.predict(other).error().message().find("does not have"), std::string::npos);
  other.tensors[0].home_in_memory = true;
  EXPECT_NE(check_trace(other).error().message().find("home_in_memory"), std::string::npos);
}

TEST(RuntimeTrace, PredictsTheFirstRound) {
  const auto read_by_a_round = [](bool predicted) {
    Simulation simulation({.host_budget = 40_KiB, .lookahead = {}});
    SeededRandom random(1);
    Runtime& runtime = *simulation.runtime;
    const auto tensors = stored_tensors(simulation, 40_KiB, 12, 1, random);
    AccessTrace trace;
    for (const TensorId tensor : tensors)
      trace.tensors.push_back({.name = "tensor", .size = runtime.describe(tensor).size});
    for (std::uint32_t i = 0; i < 12; ++i) trace.uses.push_back({i, Access::read});
    for (std::uint32_t i = 0; i < 12; ++i) trace.uses.push_back({i, Access::read});
    if (predicted) runtime.predict(trace).value();
    const ByteCount before = runtime.ledger().traffic().read;
    for (const auto& [number, access] : trace.uses) use(simulation, tensors[number], access);
    return runtime.ledger().traffic().read - before;
  };
  EXPECT_LT(read_by_a_round(true), read_by_a_round(false));
}

TEST(RuntimeTrace, KeepsWhatIsOnTheSlowerDriveWhereTheirRatesAreKnown) {
  for (const bool knows_rates : {false, true}) {
    Simulation simulation(
        {.host_budget = 8_KiB, .lookahead = {}, .bandwidths = {1, 4}, .knows_rates = knows_rates});
    SeededRandom random(1);
    Runtime& runtime = *simulation.runtime;
    const auto tensors = stored_tensors(simulation, 8_KiB, 5, 1, random);
    const auto on_path = [&](std::uint32_t path) {
      return *std::find_if(tensors.begin(), tensors.end(),
                           [&](TensorId tensor) { return runtime.describe(tensor).extent->path == path; });
    };
    const TensorId slow = on_path(0), fast = on_path(1);
    const TensorId other = *std::find_if(tensors.begin(), tensors.end(),
                                         [&](TensorId tensor) { return tensor != slow && tensor != fast; });
    const auto read_of_slow = [&] { return runtime.paths()[0].counters.bytes_read; };
    for (int round = 0; round < 2; ++round) {
      for (const TensorId tensor : {slow, fast, other}) use(simulation, tensor, Access::read);
      const ByteCount before = read_of_slow();
      for (const TensorId tensor : {fast, slow}) use(simulation, tensor, Access::read);
      runtime.end_round();
      // By their next uses alone the one on the slow drive leaves, which is used last.
      if (round == 1) {
        EXPECT_EQ(read_of_slow() - before, knows_rates ? 0_B : 4_KiB);
      }
    }
  }
}

TEST(RuntimeTrace, OfAnotherModelIsRefused) {
  Simulation simulation({.host_budget = 64_KiB});
  Runtime& runtime = *simulation.runtime;
  (void)add(runtime, 8_KiB);
  const auto refusal = [&](const AccessTrace& trace) {
    const auto predicted = runtime.predict(trace);
    return predicted ? "none" : predicted.error().message();
  };
  AccessTrace trace{.tensors = {{.name = "tensor", .size = 8_KiB}}, .uses = {{0, Access::read}}};
  EXPECT_EQ(refusal(trace), "none");
  trace.tensors[0].size = 12_KiB;
  EXPECT_NE(refusal(trace).find("wanted 12.0 KiB (12288 B), got 8.0 KiB"), std::string::npos)
      << refusal(trace);
  trace.tensors[0] = {.name = "layer 7", .size = 8_KiB};
  EXPECT_NE(refusal(trace).find("layer 7"), std::string::npos) << refusal(trace);
  trace.tensors = {{.name = "tensor", .size = 8_KiB}, {.name = "tensor", .size = 8_KiB}};
  EXPECT_NE(refusal(trace), "none");  // the runtime has one
  trace.uses[0].tensor = 5;
  EXPECT_NE(refusal(trace).find("uses[0].tensor"), std::string::npos) << refusal(trace);
}

// Without prefetches, and of tensors that are written behind: otherwise a decision may depend on what is in flight.
TEST(RuntimeTrace, ReplayedMovesTheBytesOfTheRun) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SeededRandom random(seed);
    const ByteCount budget = 4_KiB * (6 + random.below(20));
    const Eviction eviction = random.below(2) == 0 ? Eviction::planned : Eviction::lru;
    Simulation simulation({.seed = seed, .host_budget = budget, .eviction = eviction, .lookahead = {}});
    Runtime& runtime = *simulation.runtime;
    const auto tensors = stored_tensors(simulation, budget, 3 + random.below(10), 4, random);
    std::vector<AccessTrace::Use> uses;
    for (std::uint64_t i = 0; i < 30; ++i) {
      uses.push_back(
          {static_cast<std::uint32_t>(random.below(tensors.size())), static_cast<Access>(random.below(3))});
    }
    std::vector<ReplayedRound> actual;
    runtime.begin_trace();
    for (int round = 0; round < 3; ++round) {
      const auto before = runtime.ledger().traffic();
      for (const auto& [number, access] : uses) use(simulation, tensors[number], access);
      runtime.end_round();
      simulation.run();
      const auto after = runtime.ledger().traffic();
      actual.push_back({after.read - before.read, after.written - before.written});
    }
    AccessTrace trace = runtime.end_trace("train").value();
    trace.uses.resize(uses.size());

    const auto replay =
        Replay::create(trace, {.host_budget = budget, .eviction = eviction, .predicted = false}).value();
    for (std::size_t round = 0; round < actual.size(); ++round) {
      const auto predicted = replay->round().value();
      EXPECT_EQ(predicted.read, actual[round].read) << "round " << round;
      EXPECT_EQ(predicted.written, actual[round].written) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace penstock::swap
