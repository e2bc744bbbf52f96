#include "zero/launch/run_description.hpp"

#include "zero/launch/control_message.hpp"

#include <gtest/gtest.h>
#include <barrier>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::zero {
namespace {

struct Job {
  Config config;
  ModelLayout model;
};

Job usual_job() {
  Job run;
  for (const char* name : {"first", "second"})
    run.model.units.push_back(
        {.name = name, .parameters = {{"weight", ElementCount(100), 0}, {"bias", ElementCount(4), 0}}});
  return run;
}

/// The outcome of check_same_run() on each rank, a thread.
std::vector<Result<void>> compare(const std::vector<std::string>& descriptions) {
  const std::size_t ranks = descriptions.size();
  std::vector<Result<void>> outcomes(ranks);
  std::vector<std::vector<std::byte>> given(ranks);
  std::barrier here(static_cast<std::ptrdiff_t>(ranks));
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto gather = [&, rank](const std::string& label, std::span<const std::byte> bytes) {
        given[rank].assign(bytes.begin(), bytes.end());
        here.arrive_and_wait();
        Result<std::vector<std::vector<std::byte>>> all(given);
        std::size_t total = 0;
        for (const auto& one : given) total += one.size();
        EXPECT_LT(total, control::payload_bytes_max) << label;
        here.arrive_and_wait();
        return all;
      };
      outcomes[rank] = check_same_run(rank, gather, descriptions[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::vector<Result<void>> compare(const std::vector<Job>& jobs) {
  std::vector<std::string> descriptions;
  for (const Job& job : jobs) descriptions.push_back(describe_run(job.config, job.model));
  return compare(descriptions);
}

/// Every rank's error is this one, if rank 2 of three runs what `change` makes.
template <class Change>
void expect_named(const Change& change, const std::string& words) {
  Job other = usual_job();
  change(other);
  for (const auto& outcome : compare({usual_job(), usual_job(), other})) {
    ASSERT_FALSE(outcome) << words;
    EXPECT_EQ(outcome.error().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(outcome.error().message(), "ranks were started with different settings: " + words +
                                             ", of rank 2 [Rank::create]\n  try     start every rank with "
                                             "the same ds_config.json and the same model");
  }
}

TEST(RunDescription, IsEqualOnRanksThatRunTheSame) {
  for (const auto& outcome : compare({usual_job(), usual_job(), usual_job()})) EXPECT_TRUE(outcome);
}

TEST(RunDescription, LeavesOutWhatBelongsToAMachine) {
  Job other = usual_job();
  other.config.offload_param.nvme_paths = {"/elsewhere"};
  other.config.penstock.threads = 3;
  other.config.penstock.host_budget = 1_GiB;
  other.config.penstock.path_weights = {1};
  for (const auto& outcome : compare({usual_job(), other})) EXPECT_TRUE(outcome);
}

TEST(RunDescription, NamesTheSettingThatDiffers) {
  expect_named([](Job& run) { run.config.gradient_clipping = 0.5f; },
               "gradient_clipping, wanted 1.0, as rank 0, got 0.5");
  expect_named([](Job& run) { run.config.offload_optimizer.device = OffloadDevice::cpu; },
               "zero_optimization.offload_optimizer.device, wanted \"none\", as rank 0, got \"cpu\"");
  expect_named([](Job& run) { run.config.penstock.device_budget = 1_MiB; },
               "penstock.device_budget, wanted 0, as rank 0, got 1048576");
}

TEST(RunDescription, NamesWhatOnlyOneRankHas) {
  const std::string less = "a\t1\nc\t3\n", more = "a\t1\nb\t2\nc\t3\n";
  for (const auto& outcome : compare({less, more}))
    EXPECT_NE(outcome.error().message().find(": b, wanted nothing, as rank 0, got 2, of rank 1"),
              std::string::npos);
  for (const auto& outcome : compare({more, less}))
    EXPECT_NE(outcome.error().message().find(": b, wanted 2, as rank 0, got nothing, of rank 1"),
              std::string::npos);
}

TEST(RunDescription, NamesThePartOfTheModelThatDiffers) {
  expect_named([](Job& run) { run.model.units.pop_back(); },
               "the model's number of units, wanted 2, as rank 0, got 1");
  expect_named(
      [](Job& run) { run.model.units[1].parameters[1].count = ElementCount(5); },
      "unit 1 (second), wanted weight of 100 elements in optimizer group 0, bias of 4 elements in optimizer "
      "group 0, as rank 0, got weight of 100 elements in optimizer group 0, bias of 5 elements in optimizer "
      "group 0");
  expect_named(
      [](Job& run) { run.model.units[0].name = "1st"; },
      "unit 0 (first), wanted weight of 100 elements in optimizer group 0, bias of 4 elements in optimizer "
      "group 0, as rank 0, got nothing");
  expect_named(
      [](Job& run) { run.model.groups[0].weight_decay = 0; },
      "the model's optimizer groups, wanted learning_rate_factor 1, as rank 0, got learning_rate_factor 1 "
      "weight_decay 0");
  expect_named([](Job& run) { run.model.groups[0].frozen = true; },
               "the model's optimizer groups, wanted learning_rate_factor 1, as rank 0, got frozen "
               "learning_rate_factor 1");
  expect_named([](Job& run) { run.model.checkpoints = {.count = 1, .size = 8_B}; },
               "the model's activation checkpoints, wanted 0 of 0 bytes, 2 leased at a time, as rank 0, got "
               "1 of 8 bytes, 2 "
               "leased at a time");
}

TEST(RunDescription, NamesEveryRankThatDiffers) {
  Job second = usual_job(), third = usual_job();
  second.config.gradient_clipping = 0.5f;
  third.model.units[0].shared = {{1, 0}};
  const auto outcomes = compare({usual_job(), second, third});
  for (const auto& outcome : outcomes) {
    ASSERT_FALSE(outcome);
    EXPECT_NE(outcome.error().message().find("got 0.5, of rank 1"), std::string::npos)
        << outcome.error().message();
    EXPECT_NE(outcome.error().message().find("\n  rank 2  unit 0 (first) weight"), std::string::npos)
        << outcome.error().message();
    EXPECT_NE(outcome.error().message().find("parameter 0 of unit 1"), std::string::npos);
  }
}

TEST(RunDescription, TellsLongValuesWithOneBeginningApart) {
  Job one = usual_job();
  for (int i = 0; i < 50; ++i) one.model.units[0].parameters.push_back({"p", ElementCount(7), 0});
  Job other = one;
  other.model.units[0].parameters.back().count = ElementCount(8);
  for (const auto& outcome : compare({one, other})) {
    ASSERT_FALSE(outcome);
    EXPECT_NE(outcome.error().message().find("unit 0 (first)"), std::string::npos);
    EXPECT_NE(outcome.error().message().find("… (hash "), std::string::npos) << outcome.error().message();
    EXPECT_LT(outcome.error().message().size(), 700u);
  }
}

TEST(RunDescription, FitsIntoAMessageHoweverManyUnitsAndRanksThereAre) {
  for (const std::size_t units : {5'000u, 50'000u}) {
    Job one = usual_job();
    one.model.units.resize(units, one.model.units[0]);
    Job other = one;
    other.model.units.back().parameters[0].count = ElementCount(8);
    const std::string named =
        units == 5'000 ? "unit 4999 (first), wanted" : "the model's layout, wanted hash ";
    for (const auto& outcome : compare({one, one, one, other})) {
      ASSERT_FALSE(outcome);
      EXPECT_NE(outcome.error().message().find(named), std::string::npos) << outcome.error().message();
    }
  }
}

TEST(RunDescription, TakesNoNameForTheEndOfALine) {
  Job one = usual_job(), other = usual_job();
  one.model.units[0].name = "a\nb\tc";
  other.model.units[0].name = "a\nb\td";
  for (const auto& outcome : compare({one, other})) {
    ASSERT_FALSE(outcome);
    EXPECT_NE(outcome.error().message().find("unit 0 (a?b?c)"), std::string::npos)
        << outcome.error().message();
  }
}

}  // namespace
}  // namespace penstock::zero
