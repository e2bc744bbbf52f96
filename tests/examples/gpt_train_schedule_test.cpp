// Options of gpt_train that change when it computes and what it keeps, but not the result.
#include "gpt_train_fixture.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <regex>
#include <string>

namespace gpt::test {
namespace {

TEST_F(GptTrain, TrainsWithCheckpointedActivationsToTheSameDigestInLessMemory) {
  const std::string deep = arguments() + " --layers 6 --context 64";
  const Outcome whole = train(deep), checkpointed = train(deep + " --checkpoint-activations");
  const auto activations = [](const Outcome& outcome) {
    const std::string label = "activations ";
    const auto at = outcome.output.find(label);
    return at == std::string::npos ? 0 : std::atof(outcome.output.c_str() + at + label.size());
  };

  EXPECT_EQ(checkpointed.status, 0) << checkpointed.output;
  EXPECT_EQ(digest_in(checkpointed.output), digest_in(whole.output));
  EXPECT_GT(activations(checkpointed), 0);
  EXPECT_LT(activations(checkpointed), 0.5 * activations(whole)) << checkpointed.output;
}

TEST_F(GptTrain, ReadsParametersAsOftenForManyMicroBatchesAsForOneIfItAccumulatesByLayer) {
  // The budget holds two thirds of the shards.
  const std::string changes = R"(, "penstock": {"host_budget": "3MiB", "tile_elements": 16384})";
  // Of three runs the least: what is evicted and read ahead depends on which transfers have ended, and that adds reads.
  const auto read_mib = [&](int micro_batches, const std::string& option) {
    double least = std::numeric_limits<double>::max();
    for (int run = 0; run < 3; ++run) {
      const Outcome outcome = train(with_replaced(arguments(changes) + " --layers 8 --width 128 " + option,
                                                  "accumulation_steps\": 2",
                                                  "accumulation_steps\": " + std::to_string(micro_batches)));
      EXPECT_EQ(outcome.status, 0) << outcome.output;
      std::smatch match;
      EXPECT_TRUE(
          std::regex_search(outcome.output, match, std::regex("\nparameter shards\\* +([0-9.]+) MiB")))
          << outcome.output;
      least = std::min(least, match.empty() ? 0 : std::stod(match[1]));
    }
    return least;
  };
  const double one = read_mib(1, "");

  EXPECT_GT(one, 1);
  EXPECT_GT(read_mib(6, ""), 4 * one);
  EXPECT_NEAR(read_mib(6, "--accumulate-by-layer") / one, 1, 0.25);
}

TEST_F(GptTrain, TrainsByLayerToTheSameDigestOnDiskAndInMemoryWithAndWithoutCheckpoints) {
  const Outcome outcome = train(arguments() + " --accumulate-by-layer --check"),
                checkpointed = train(arguments() + " --accumulate-by-layer --checkpoint-activations");

  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("check passed"), std::string::npos) << outcome.output;
  EXPECT_EQ(digest_in(checkpointed.output), digest_in(outcome.output));
}

TEST_F(GptTrain, KeepsCheckpointsInTheEnginesTiersWithoutChangingTheResult) {
  const std::string deep = " --layers 6 --context 512 ";
  const std::string budget = R"(, "penstock": {"host_budget": "3MiB", "tile_elements": 16384})";
  const Outcome kept = train(arguments() + deep + "--checkpoint-activations"),
                in_host = train(arguments() + deep + "--offload-activations"),
                on_disk = train(arguments(budget) + deep + "--offload-activations");
  for (const Outcome* const outcome : {&in_host, &on_disk}) {
    EXPECT_EQ(outcome->status, 0) << outcome->output;
    EXPECT_EQ(digest_in(outcome->output), digest_in(kept.output));
    EXPECT_NE(outcome->output.find("device  checkpoints"), std::string::npos) << outcome->output;
  }
  EXPECT_NE(on_disk.output.find("nvme    checkpoints"), std::string::npos) << on_disk.output;
  const std::string by_layer = arguments() + " --layers 3 --accumulate-by-layer ";
  EXPECT_EQ(digest_in(train(by_layer + "--offload-activations").output), digest_in(train(by_layer).output));
  const std::string cut = arguments(R"(, "penstock": {"unit_elements_max": 33000})") + " --layers 3 ";
  EXPECT_EQ(digest_in(train(cut + "--offload-activations").output), digest_in(train(cut).output));
  const std::string both = cut + "--accumulate-by-layer ";
  EXPECT_EQ(digest_in(train(both + "--offload-activations").output), digest_in(train(both).output));
}

// The largest matrices have 1024 x 4096 elements of bf16: 8 MiB.
TEST_F(GptTrain, TrainsAMatrixThatIsLargerThanTheDevicesBudget) {
  const std::string shape = " --width 1024 --context 16";
  const std::string budget = R"(, "penstock": {"device_budget": "4MiB")";

  expect_refused(train(arguments(budget + "}") + shape), 2,
                 {"device budget is too small", "penstock.device_budget"});
  const Outcome cut = train(arguments(budget + R"(, "unit_elements_max": 300000})") + shape +
                            " --checkpoint-activations --check");

  EXPECT_EQ(cut.status, 0) << cut.output;
  EXPECT_NE(cut.output.find("check passed"), std::string::npos) << cut.output;
}

TEST_F(GptTrain, RefusesALimitOfUnitsThatItCannotKeep) {
  const auto limited = [&](const char* limit) {
    return train(arguments(R"(, "penstock": {"unit_elements_max": )" + std::string(limit) + "}"));
  };
  expect_refused(limited("1000"), 2, {"qkv.weight", "64 rows", "penstock.unit_elements_max"});
  expect_refused(limited("17000"), 2, {"embed", "at most 17 000", "unit_elements_max"});
  expect_refused(limited("-1"), 2, {"penstock.unit_elements_max"});
}

}  // namespace
}  // namespace gpt::test
